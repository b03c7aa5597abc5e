"""A minimal HTTP client for the load: kept connections, one request at a time on each."""

from __future__ import annotations

import asyncio
import json
import ssl
from typing import Any, NamedTuple
from urllib.parse import urlsplit

import httptools

from maar.cli.client import CONNECT_TIMEOUT_S, IDS_HEADER, TENANT_HEADER, retry_after_s
from maar.cli.output.failure import CommandFailed

PATH = "/push.v1.PusherService/Push"
TEXT_MAX = 64 << 10  # of an answer's body; the rest of a stranger's page is not kept

_IDS = IDS_HEADER.lower().encode()


class Broken(Exception):
    """There was no answer: the request may or may not have been carried out."""


class PushReply(NamedTuple):
    status: int
    ids: tuple[str, ...]
    retry_after_s: float  # 0 when absent
    sentence: str  # what a refusal says


class Address(NamedTuple):
    url: str
    host: str
    port: int
    path: str
    secure: bool

    @classmethod
    def of(cls, url: str) -> Address:
        try:
            parts = urlsplit(url)
            host, port = parts.hostname or "", parts.port
        except ValueError as error:
            raise CommandFailed(f"{url!r} is not a server's address: {error}") from None
        if parts.scheme not in ("http", "https") or not host:
            raise CommandFailed(f"{url!r} is not a server's address; use http://host:port")
        secure = parts.scheme == "https"
        path = parts.path.rstrip("/") + PATH
        return cls(url.rstrip("/"), host, port or (443 if secure else 80), path, secure)

    def head(self, tenant: str, size: int) -> bytes:
        whose = f"{TENANT_HEADER}: {tenant}\r\n" if tenant else ""
        return (
            f"POST {self.path} HTTP/1.1\r\nHost: {self.host}:{self.port}\r\n{whose}"
            f"Content-Type: application/proto\r\nUser-Agent: maar-load\r\n"
            f"Content-Length: {size}\r\n\r\n"
        ).encode()


class LoadConnection(asyncio.Protocol):
    """Sends a request and waits for its answer."""

    def __init__(self) -> None:
        self.usable = True
        self._transport: Any = None
        self._waiting: asyncio.Future[PushReply] | None = None
        self._expect()

    async def ask(self, *parts: bytes) -> PushReply:
        self._waiting = asyncio.get_running_loop().create_future()
        self._transport.writelines(parts)
        try:
            return await self._waiting
        finally:
            self._waiting = None

    def close(self) -> None:
        self.usable = False
        if self._transport is not None:
            self._transport.abort()

    def _expect(self) -> None:
        self._parser = httptools.HttpResponseParser(self)
        self._ids = self._later = b""
        self._text = b""

    # asyncio calls

    def connection_made(self, transport: Any) -> None:
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError as error:
            self._fail(f"not HTTP: {error}")
            self.close()

    def connection_lost(self, error: Exception | None) -> None:
        self.usable = False
        self._fail(str(error) if error else "the server hung up")

    def _fail(self, cause: str) -> None:
        if self._waiting is not None and not self._waiting.done():
            self._waiting.set_exception(Broken(cause))

    # the parser calls

    def on_header(self, name: bytes, value: bytes) -> None:
        if name.lower() == _IDS:
            self._ids = value
        elif name.lower() == b"retry-after":
            self._later = value

    def on_body(self, part: bytes) -> None:
        if len(self._text) < TEXT_MAX:
            self._text += part

    def on_message_complete(self) -> None:
        ids = tuple(text for text in self._ids.decode("latin-1").split(",") if text)
        answer = PushReply(
            self._parser.get_status_code(), ids, retry_after_s(self._later), _sentence(self._text)
        )
        self.usable = self.usable and bool(self._parser.should_keep_alive())
        self._expect()
        if self._waiting is not None and not self._waiting.done():
            self._waiting.set_result(answer)


class ConnectionPool:
    """One server, and the connections to it that are free just now."""

    def __init__(self, address: Address, *, timeout_s: float) -> None:
        self.address = address
        self._timeout_s = timeout_s
        self._idle: list[LoadConnection] = []
        self._tls = ssl.create_default_context() if address.secure else None

    async def push(self, tenant: str, body: bytes) -> PushReply:
        """What the server answers; Broken when it does not."""
        try:
            async with asyncio.timeout(self._timeout_s):
                connection = self._free() or await self.connect()
                try:
                    answer = await connection.ask(self.address.head(tenant, len(body)), body)
                except BaseException:
                    connection.close()  # a late answer would be taken for that of another request
                    raise
        except TimeoutError:
            raise Broken(f"no answer within {self._timeout_s:g} s") from None
        self.keep(connection)
        return answer

    async def connect(self) -> LoadConnection:
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(CONNECT_TIMEOUT_S):
                _, made = await loop.create_connection(
                    LoadConnection, self.address.host, self.address.port, ssl=self._tls
                )
        except TimeoutError:
            raise Broken(f"no connection within {CONNECT_TIMEOUT_S:g} s") from None
        except OSError as error:
            raise Broken(str(error)) from None
        return made

    def keep(self, connection: LoadConnection) -> None:
        if connection.usable:
            self._idle.append(connection)
        else:
            connection.close()

    def close(self) -> None:
        for connection in self._idle:
            connection.close()

    def _free(self) -> LoadConnection | None:
        while self._idle:
            connection = self._idle.pop()
            if connection.usable:
                return connection
        return None


def _sentence(text: bytes) -> str:
    try:
        return str(json.loads(text)["message"])
    except (ValueError, KeyError, TypeError):
        return text[:200].decode("utf-8", "replace").strip()
