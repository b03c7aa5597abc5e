"""push.v1.PusherService over gRPC: the same call as by Connect, with the same limits and errors.

Messages are not unpacked by gRPC, but here, where all requests together have a bound.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from typing import Any

import grpc
import grpc.aio

from maar.api.body import READ_SECONDS_MAX
from maar.api.connect import PROTO, Reply, Unary
from maar.api.door import Door, only_tenant
from maar.api.errors import TooSlow, answer_to, retry_after_s
from maar.api.push import PUSH, push_call
from maar.distributor.service import Distributor
from maar.model.errors import InvalidInput, MaarError, Retryable, Unavailable
from maar.model.ids import TenantId
from maar.model.messages import messages

log = logging.getLogger("maar.api")

ROUTE = f"grpc:{PUSH}"
IDLE_MS_MAX = 300_000  # of a connection without a call
CALLS_MAX = 2000  # at once; beyond it, RESOURCE_EXHAUSTED
SENTENCE_BYTES_MAX = 1200  # it travels twice in the trailer, whose bytes take up to three
TENANT_KEY = "x-scope-orgid"
RETRY_KEY = "retry-after"
DETAILS_KEY = "grpc-status-details-bin"
_RETRY_INFO = "type.googleapis.com/google.rpc.RetryInfo"
_IDENTITY_AND_GZIP = 0b101

_message = messages(
    {
        "google.protobuf": {
            "Any": ("1 type_url string", "2 value bytes"),
            "Duration": ("1 seconds int64", "2 nanos int32"),
        },
        "google.rpc": {
            "RetryInfo": ("1 retry_delay .google.protobuf.Duration",),
            "Status": ("1 code int32", "2 message string", "3 details .google.protobuf.Any[]"),
        },
    }
)
RetryInfo = _message("google.rpc.RetryInfo")
RpcStatus = _message("google.rpc.Status")


class PushServer:
    """The gRPC door of the front, at a socket of its own."""

    def __init__(self, door: Door, distributor: Distributor) -> None:
        self._door = door
        self._push = push_call(door, distributor)
        self._under_way: set[asyncio.Task[Reply]] = set()
        self._server = grpc.aio.server(
            options=(
                ("grpc.max_receive_message_length", door.settings.body_bytes_max),
                ("grpc.max_connection_idle_ms", IDLE_MS_MAX),
                ("grpc.per_message_decompression", 0),
                ("grpc.compression_enabled_algorithms_bitset", _IDENTITY_AND_GZIP),
            ),
            maximum_concurrent_rpcs=CALLS_MAX,
        )
        service, _, method = PUSH.strip("/").rpartition("/")
        # To gRPC a call with one message is a stream of one; so we can end one that never comes.
        handler = grpc.stream_unary_rpc_method_handler(self._answer)
        self._server.add_generic_rpc_handlers(
            (grpc.method_handlers_generic_handler(service, {method: handler}),)
        )

    async def start(self, address: str) -> None:
        try:
            self._server.add_insecure_port(address)
        except RuntimeError as error:
            raise Unavailable(f"cannot listen on {address}; does its directory exist?") from error
        await self._server.start()

    async def stop(self, grace_s: float) -> None:
        """No new calls; those under way get their answers, for so long."""
        await self._server.stop(grace_s)
        late = list(self._under_way)  # nobody waits for their answers any more
        for task in late:
            task.cancel()
        await asyncio.gather(*late, return_exceptions=True)

    async def _answer(self, sent: AsyncIterator[bytes], context: Any) -> bytes:
        try:
            tenant, body = _tenant(context), await _read(sent)
            # A client that hangs up must not take along what the budget of bytes still counts.
            reply, headers = await asyncio.shield(self._begun(tenant, body))
            if headers:
                metadata = tuple((name.lower(), value) for name, value in headers.items())
                await context.send_initial_metadata(metadata)
            return bytes(reply.SerializeToString())
        except MaarError as error:
            code = grpc.StatusCode[answer_to(error).code.upper()]
            self._door.count(ROUTE, code.name, error)
            await context.abort(code, *_told(code, error))
        except Exception:  # the edge: a fault in one call must not end the server
            log.exception("gRPC call failed method=%s", PUSH)
            sentence = "the server failed to answer this request; its log says why"
            await context.abort(grpc.StatusCode.INTERNAL, sentence)
        raise AssertionError("abort raises")

    def _begun(self, tenant: TenantId, body: bytes) -> asyncio.Task[Reply]:
        task = asyncio.create_task(_called(self._push, self._door, tenant, body))
        self._under_way.add(task)
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: asyncio.Task[Reply]) -> None:
        self._under_way.discard(task)
        if not task.cancelled():
            task.exception()  # seen, also when the client has hung up


async def _read(sent: AsyncIterator[bytes]) -> bytes:
    """The one message: as by HTTP it has its time, for a call that waits takes another's place."""
    try:
        async with asyncio.timeout(READ_SECONDS_MAX):
            return await anext(sent)
    except TimeoutError as error:
        raise TooSlow(
            f"the message did not arrive within {READ_SECONDS_MAX:.0f} s; send it again"
        ) from error
    except StopAsyncIteration:
        raise InvalidInput("the call has no message", reason="empty") from None


async def _called(push: Unary, door: Door, tenant: TenantId, body: bytes) -> Reply:
    with door.budget.hold() as hold:
        hold.take(len(body))
        return await push.call(tenant, PROTO, body, hold)


def _tenant(context: Any) -> TenantId:
    sent = context.invocation_metadata() or ()
    return only_tenant([value for key, value in sent if key == TENANT_KEY])


def _told(code: Any, error: MaarError) -> tuple[str, tuple[tuple[str, str | bytes], ...]]:
    """The sentence, and a trailer that says when to try again, if ever."""
    sentence = str(error).encode(errors="replace")[:SENTENCE_BYTES_MAX].decode(errors="ignore")
    if not isinstance(error, Retryable):
        return sentence, ()
    wait_s = retry_after_s(error)
    info = RetryInfo()
    info.retry_delay.seconds = int(wait_s)
    info.retry_delay.nanos = int(wait_s % 1 * 1e9)
    status = RpcStatus(code=code.value[0], message=sentence)
    status.details.add(type_url=_RETRY_INFO, value=info.SerializeToString())
    return sentence, ((RETRY_KEY, f"{wait_s:.3f}"), (DETAILS_KEY, status.SerializeToString()))
