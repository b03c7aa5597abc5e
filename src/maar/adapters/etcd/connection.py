"""Calls to an etcd cluster: fails over between members, and maps etcd's errors to maar's."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from operator import attrgetter
from pathlib import Path
from typing import Any, TypeVar

import grpc
import grpc.aio
from aetcd import rpc

from maar.adapters.etcd.settings import EtcdSettings
from maar.adapters.etcd.tuning import TUNING
from maar.adapters.reconnecting import RECONNECT_OPTIONS
from maar.model.errors import (
    InvalidInput,
    MaarError,
    NotFound,
    OutcomeUnknown,
    Rejected,
    StoreFull,
    TooLarge,
    Unavailable,
)

log_ = logging.getLogger("maar.etcd")

TRY_S = 2.0  # timeout of one member before the next is asked
CALL_S = 8.0

_OPTIONS = (
    *RECONNECT_OPTIONS,
    # Keepalives notice a member that went silent; etcd allows at most one ping in five seconds.
    ("grpc.keepalive_time_ms", 6_000),
    ("grpc.keepalive_timeout_ms", 3_000),
    ("grpc.enable_http_proxy", 0),
    ("grpc.use_local_subchannel_pool", 1),
)
_AGAIN = (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED)
_STALE_TOKEN = ("invalid auth token", "revision of auth store is old")

T = TypeVar("T")


class Member:
    """One member's services over one channel."""

    def __init__(self, endpoint: str, channel: grpc.aio.Channel) -> None:
        self.endpoint = endpoint
        self.channel = channel
        self.kv = rpc.KVStub(channel)
        self.lease = rpc.LeaseStub(channel)
        self.watch = rpc.WatchStub(channel)
        self.maintenance = rpc.MaintenanceStub(channel)
        self.auth = rpc.AuthStub(channel)


Ask = Callable[[Member], Callable[..., Any]]  # which of a member's methods is meant

TXN: Ask = attrgetter("kv.Txn")
COMPACT: Ask = attrgetter("kv.Compact")
GRANT: Ask = attrgetter("lease.LeaseGrant")
REVOKE: Ask = attrgetter("lease.LeaseRevoke")
RENEW: Ask = attrgetter("lease.LeaseKeepAlive")
STATUS: Ask = attrgetter("maintenance.Status")
ALARM: Ask = attrgetter("maintenance.Alarm")
DEFRAGMENT: Ask = attrgetter("maintenance.Defragment")


class EtcdConnection:
    """The members of one cluster; calls one of them, and the next one when it fails."""

    def __init__(
        self, settings: EtcdSettings, *, message_bytes_max: int = TUNING.message_bytes_max
    ) -> None:
        if not settings.endpoints:
            raise InvalidInput("the log's url names no etcd member: etcd://host:2379/prefix")
        self._settings = settings
        credentials = _credentials(settings)
        options = (
            *_OPTIONS,
            ("grpc.max_send_message_length", message_bytes_max),
            ("grpc.max_receive_message_length", message_bytes_max),
        )
        self.members = [
            Member(endpoint, _channel(endpoint, credentials, options))
            for endpoint in settings.endpoints
        ]
        self.at = 0
        self._token = ""
        self._signing_in = asyncio.Lock()

    @property
    def member(self) -> Member:
        return self.members[self.at]

    def turn(self, failed: Member) -> None:
        """Call another member from now on, unless a concurrent call has switched already."""
        if failed is self.member:
            self.at = (self.at + 1) % len(self.members)

    async def call(self, ask: Ask, request: object, *, within_s: float = CALL_S) -> Any:
        """A call that may be repeated: every member is tried until one answers in time."""
        loop = asyncio.get_running_loop()
        end = loop.time() + within_s
        tried = 0
        while True:
            member = self.member
            left = end - loop.time()
            try:
                return await self.ask(member, ask, request, within_s=min(TRY_S, max(left, 0.05)))
            except Unavailable:
                self.turn(member)
                tried += 1
                if end - loop.time() <= 0:
                    raise
                if tried % len(self.members) == 0:
                    await asyncio.sleep(min(0.1, max(end - loop.time(), 0)))

    async def once(self, ask: Ask, request: object, *, within_s: float) -> Any:
        """A call that must not be repeated: OutcomeUnknown when no answer came back."""
        member = self.member
        try:
            return await self.ask(member, ask, request, within_s=within_s)
        except Unavailable as error:
            self.turn(member)
            raise OutcomeUnknown(f"{error}; it may or may not have been stored") from error

    async def ask(self, member: Member, ask: Ask, request: object, *, within_s: float) -> Any:
        """One call to one member."""
        return await self._call_signed_in(
            member,
            lambda metadata: ask(member)(request, timeout=within_s, metadata=metadata),
        )

    async def exchange(self, member: Member, ask: Ask, request: object, *, within_s: float) -> Any:
        """The first answer of a stream to which one request is sent."""

        async def first(metadata: Any) -> Any:
            stream = ask(member)(iter((request,)), timeout=within_s, metadata=metadata)
            try:
                async for reply in stream:
                    return reply
            finally:
                stream.cancel()
            raise Unavailable(f"etcd at {member.endpoint} ended without an answer")

        return await self._call_signed_in(member, first)

    async def metadata(self, member: Member) -> tuple[tuple[str, str], ...]:
        """What a call, or a stream that stays open, sends to authenticate."""
        if not self._settings.user:
            return ()
        if not self._token:
            await self._sign_in(member, stale="")
        return (("token", self._token),)

    async def _call_signed_in(self, member: Member, call: Callable[[Any], Awaitable[T]]) -> T:
        metadata = await self.metadata(member)
        try:
            return await call(metadata)
        except grpc.aio.AioRpcError as error:
            if not (metadata and _is_stale(error)):
                raise error_of(error, member.endpoint, self._settings.user) from error
        await self._sign_in(member, stale=metadata[0][1])
        try:
            return await call(await self.metadata(member))
        except grpc.aio.AioRpcError as error:
            raise error_of(error, member.endpoint, self._settings.user) from error

    async def _sign_in(self, member: Member, *, stale: str) -> None:
        async with self._signing_in:
            if self._token != stale:
                return  # a concurrent call has done it meanwhile
            asked = rpc.AuthenticateRequest(
                name=self._settings.user, password=self._settings.password
            )
            try:
                reply = await member.auth.Authenticate(asked, timeout=TRY_S)
            except grpc.aio.AioRpcError as error:
                raise error_of(error, member.endpoint, self._settings.user) from error
            self._token = reply.token

    async def close(self) -> None:
        await asyncio.gather(*(member.channel.close() for member in self.members))


def error_of(error: grpc.aio.AioRpcError, endpoint: str, user: str) -> MaarError:
    """Map an error of etcd to the class that says what the caller should do about it."""
    code, said = error.code(), error.details() or ""
    where = f"etcd at {endpoint}"
    if code in _AGAIN:
        return Unavailable(f"{where} does not answer: {said}")
    if code is grpc.StatusCode.RESOURCE_EXHAUSTED and "space exceeded" in said:
        return StoreFull(
            f"{where} has reached its quota and refuses all writes ({said}); "
            "give it room: see the runbook"
        )
    if code is grpc.StatusCode.RESOURCE_EXHAUSTED and "larger than max" in said:
        return TooLarge(f"{where} answers with more than fits in a message: {said}")
    if code is grpc.StatusCode.INVALID_ARGUMENT and "too large" in said:
        return TooLarge(f"{where} refuses the request: {said}")
    if code is grpc.StatusCode.PERMISSION_DENIED or "permission denied" in said:
        return Rejected(
            f"{where} does not let the user {user!r} do this ({said}); grant it readwrite on the "
            "log's prefix"
        )
    if _is_stale(error):  # twice in a row: etcd's users are being changed
        return Unavailable(f"{where} does not accept our auth token any more: {said}")
    if "authentication failed" in said or "user name is empty" in said:
        return Rejected(
            f"{where} does not accept the user {user!r} ({said}); check log.user and log.password"
        )
    if code is grpc.StatusCode.NOT_FOUND:
        return NotFound(f"{where} does not find it: {said}")
    if code is grpc.StatusCode.OUT_OF_RANGE:
        return Rejected(f"{where} refuses: {said}")
    return Unavailable(f"{where} fails: {code.name} {said}")


def _is_stale(error: grpc.aio.AioRpcError) -> bool:
    said = error.details() or ""
    return any(words in said for words in _STALE_TOKEN)


def _channel(
    endpoint: str, credentials: grpc.ChannelCredentials | None, options: tuple[tuple[str, int], ...]
) -> grpc.aio.Channel:
    if credentials is None:
        return grpc.aio.insecure_channel(endpoint, options=options)
    return grpc.aio.secure_channel(endpoint, credentials, options=options)


def _credentials(settings: EtcdSettings) -> grpc.ChannelCredentials | None:
    if not settings.ca_file:
        return None
    return grpc.ssl_channel_credentials(
        root_certificates=_file(settings.ca_file),
        private_key=_file(settings.key_file) if settings.key_file else None,
        certificate_chain=_file(settings.cert_file) if settings.cert_file else None,
    )


def _file(path: str) -> bytes:
    try:
        return Path(path).read_bytes()
    except OSError as error:
        raise InvalidInput(
            f"the file {path} for etcd's connections cannot be read: {error.strerror}"
        ) from error
