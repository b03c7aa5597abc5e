"""How one port tells HTTP/1.1 from HTTP/2 by the first bytes, and what of HTTP/1.1 it refuses."""

from __future__ import annotations

import asyncio
import contextlib

import pytest

from maar.api.settings import ApiSettings
from maar.app.http.gate import PortBounds
from maar.app.http.http1 import PIPELINED_MAX
from maar.app.http.http2_frames import PREFACE
from support.http.front import Front
from support.http.port import PATIENCE_S, Port, request, run_story, until
from support.http.pushed import pprof

pytestmark = [pytest.mark.component, pytest.mark.timeout(120)]


def test_a_preface_that_comes_byte_by_byte_is_understood() -> None:
    async def story(port: Port) -> None:
        reader, writer = await port.raw()
        for byte in PREFACE:
            writer.write(bytes([byte]))
            await asyncio.sleep(0.002)
        writer.write(b"\x00\x00\x00\x04\x00\x00\x00\x00\x00")  # SETTINGS
        frame = await asyncio.wait_for(reader.readexactly(9), PATIENCE_S)
        assert frame[3] == 4  # the server's SETTINGS
        writer.close()

    run_story(story)


@pytest.mark.parametrize("said", [PREFACE[:10], b""])
def test_half_a_preface_or_nothing_at_all_is_hung_up_on(said: bytes) -> None:
    async def story(port: Port) -> None:
        reader, _ = await port.raw(said)
        try:
            assert await asyncio.wait_for(reader.read(), PATIENCE_S) == b""
        except ConnectionResetError:
            pass  # as the kernel chooses
        assert (await port.get("/healthz")).status_code == 200

    bounds = PortBounds(silent_s=0.2)
    run_story(story, Front(api=ApiSettings(head_s=0.2), bounds=bounds))


def test_half_a_preface_and_then_the_end_leaves_nothing() -> None:
    async def story(port: Port) -> None:
        before = len(port.http_server.server_state.connections)
        for length in (0, 1, 10, 23):
            _, writer = await port.raw(PREFACE[:length])
            writer.close()
        await until(lambda: len(port.http_server.server_state.connections) == before)

    run_story(story)


@pytest.mark.parametrize(
    "begun",
    [b"PRI", b"P", b"PR", b"PRI * HTTP/2.0\r\n\r\nSM\r\n"],
)
def test_what_only_begins_like_http2_is_answered_as_http(begun: bytes) -> None:
    """A method that shares letters with the preface, and a preface that goes wrong at its end."""

    async def story(port: Port) -> None:
        reader, writer = await port.raw(begun)
        await asyncio.sleep(0.02)
        writer.write(b"OPFIND /healthz HTTP/1.1\r\nhost: localhost\r\n\r\n")
        assert (await asyncio.wait_for(reader.readline(), PATIENCE_S)).startswith(b"HTTP/1.1 4")
        writer.close()

    run_story(story)


def test_a_request_that_comes_in_pieces_is_still_one() -> None:
    async def story(port: Port) -> None:
        reader, writer = await port.raw(b"P")
        await asyncio.sleep(0.02)
        body = pprof()
        head = "OST /ingest?format=pprof&name=shop HTTP/1.1\r\nhost: localhost\r\n"
        head += f"content-length: {len(body)}"
        writer.write(head.encode() + b"\r\n\r\n" + body)
        assert await asyncio.wait_for(reader.readline(), PATIENCE_S) == b"HTTP/1.1 200 OK\r\n"
        writer.close()

    assert len(run_story(story).writer.profiles()) == 1


def test_an_offer_to_upgrade_is_passed_over_and_the_body_is_read() -> None:
    """As curl and Java's client make one with their first request."""

    async def story(port: Port) -> None:
        body = pprof()
        head = (
            "POST /ingest?format=pprof&name=shop HTTP/1.1\r\nhost: localhost\r\n"
            "connection: Upgrade, HTTP2-Settings\r\nupgrade: h2c\r\n"
            f"http2-settings: AAMAAABkAAQAAP__\r\ncontent-length: {len(body)}\r\n\r\n"
        )
        reader, writer = await port.raw()
        for _ in range(2):
            writer.write(head.encode() + body)
            assert await asyncio.wait_for(reader.readline(), PATIENCE_S) == b"HTTP/1.1 200 OK\r\n"
            await reader.readuntil(b"\r\n\r\n")

    assert len(run_story(story).writer.profiles()) == 2


HIDDEN = (
    b"POST /ingest?format=groups&name=hidden HTTP/1.1\r\nhost: localhost\r\n"
    b"content-length: 6\r\n\r\nmain 1"
)


@pytest.mark.parametrize(
    "pieces",
    [
        (b"connection: Upgrade\r\nupgrade: h2c\r\nupgrade: x\r\ncontent-length: %d\r\n\r\n",),
        (b"", b"connection: Upgrade\r\nupgrade: h2c\r\ncontent-length: %d\r\n\r\n"),
        (b"connection: Upgrade\r\nupgr", b"ade: h2c\r\ncontent-length: %d\r\n\r\n"),
        (b"connection: Upgrade\r\ncontent-length: %d\r\nupgrade: h", b"2c\r\n\r\n"),
    ],
    ids=["twice", "later", "in its name", "in its value"],
)
def test_what_is_sent_as_a_body_is_never_a_request(pieces: tuple[bytes, ...]) -> None:
    """Else who sends bodies through a proxy could send whole requests past it."""

    async def story(port: Port) -> None:
        reader, writer = await port.raw(
            b"POST /ingest?format=groups&name=shop HTTP/1.1\r\nhost: localhost\r\n"
        )
        for piece in pieces:
            await asyncio.sleep(0.02)
            writer.write(piece % len(HIDDEN) if b"%d" in piece else piece)
        await asyncio.sleep(0.02)  # a piece of its own, too: with others it would be dropped
        writer.write(HIDDEN)
        writer.write_eof()
        said = await asyncio.wait_for(reader.read(), PATIENCE_S)
        assert said.startswith(b"HTTP/1.1 4")
        assert said.count(b"HTTP/1.1") == 1
        writer.close()

    assert run_story(story).writer.profiles() == []


def test_what_cannot_be_read_does_not_take_the_answer_of_the_request_before_it() -> None:
    async def story(port: Port) -> None:
        body = pprof()
        head = "POST /ingest?format=pprof&name=shop HTTP/1.1\r\nhost: localhost\r\n"
        head += f"content-length: {len(body)}\r\n\r\n"
        reader, _ = await port.raw(head.encode() + body + b"\0 is no method\r\n\r\n")
        said = await asyncio.wait_for(reader.read(), PATIENCE_S)
        assert said.startswith(b"HTTP/1.1 200 OK\r\n")
        assert said.count(b"HTTP/1.1") == 1

    assert len(run_story(story).writer.profiles()) == 1


def test_requests_that_do_not_wait_for_answers_are_answered_up_to_a_number() -> None:
    """All of them are in memory until then. The client hears where it has to go on."""

    async def story(port: Port) -> None:
        asked = b"GET /healthz HTTP/1.1\r\nhost: localhost\r\n\r\n"
        reader, writer = await port.raw(asked * PIPELINED_MAX)
        for _ in range(PIPELINED_MAX):
            await asyncio.wait_for(reader.readuntil(b"ok\n"), PATIENCE_S)
        writer.write(asked * (PIPELINED_MAX + 100))
        said = await asyncio.wait_for(reader.read(), PATIENCE_S)
        assert said.count(b"HTTP/1.1 200 OK") == PIPELINED_MAX + 1
        assert b"connection: close" in said.rpartition(b"HTTP/1.1")[2]

    run_story(story)


CHUNKED = (
    b"POST /push.v1.PusherService/Push HTTP/1.1\r\nhost: localhost\r\n"
    b"content-type: application/proto\r\ntransfer-encoding: chunked\r\n\r\n"
)


@pytest.mark.parametrize(
    "trailer", [b"x: " + b"y" * 1000 + b"\r\n", b"y" * 1000], ids=["many", "endless"]
)
def test_trailers_have_the_limit_of_headers(trailer: bytes) -> None:
    """Many, or one without end: they come after the headers were counted."""

    async def story(port: Port) -> None:
        reader, writer = await port.raw(CHUNKED, b"0\r\nx: ")
        with contextlib.suppress(ConnectionError):
            for _ in range(200):
                writer.write(trailer)
                await writer.drain()
                await asyncio.sleep(0)
        status = await asyncio.wait_for(reader.readline(), PATIENCE_S)
        assert status.startswith(b"HTTP/1.1 431 ")

    front = run_story(story)
    refused = {"reason": "head_large"}
    assert front.registry.get_sample_value("maar_front_refused_total", refused) == 1


def test_trailers_are_no_headers() -> None:
    async def story(port: Port) -> None:
        body = request()
        chunk = b"%x\r\n%s\r\n" % (len(body), body)
        reader, _ = await port.raw(CHUNKED + chunk + b"0\r\nx-scope-orgid: other\r\n\r\n")
        assert (await asyncio.wait_for(reader.readline(), PATIENCE_S)).startswith(b"HTTP/1.1 200 ")

    assert [one.tenant for one in run_story(story).writer.profiles()] == ["anonymous"]


def test_a_body_in_many_small_chunks_is_read() -> None:
    async def story(port: Port) -> None:
        body = request(*(f"s{number}" for number in range(300)))
        chunks = b"".join(b"1;%s\r\n%c\r\n" % (b"e" * 50, byte) for byte in body)
        assert len(chunks) > 1 << 20
        reader, _ = await port.raw(CHUNKED, chunks + b"0\r\n\r\n")
        assert (await asyncio.wait_for(reader.readline(), PATIENCE_S)).startswith(b"HTTP/1.1 200 ")

    assert len(run_story(story).writer.profiles()) == 300
