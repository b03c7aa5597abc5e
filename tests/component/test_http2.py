"""HTTP/2 without TLS: every protocol reaches every service, and no client can hold the server."""

from __future__ import annotations

import asyncio
import base64
import gzip
import json
from collections.abc import Callable
from typing import Any

import httpx
import pytest

from maar.api.app import ApiSettings
from maar.api.protocol.wire import (
    LabelValuesRequest,
    LabelValuesResponse,
    ProfileTypesResponse,
    PushResponse,
    SelectMergeStacktracesRequest,
)
from maar.app.http import gate, http2
from maar.model.errors import MaarError, Overloaded, Unavailable
from support.http.front import CPU, Front
from support.http.h2_client import (
    CONTINUATION,
    DATA,
    HEADERS,
    PING,
    RST,
    SETTINGS,
    WINDOW,
    Answer,
    H2Client,
    framed,
    h2_client,
)
from support.http.port import PUSH, Port, told, until
from support.http.port import request as push_request

pytestmark = [pytest.mark.component, pytest.mark.timeout(120)]

QUERIER = "/querier.v1.QuerierService"
PROTO = [("content-type", "application/proto")]
JSON = [("content-type", "application/json")]
GRPC = [("content-type", "application/grpc"), ("te", "trailers")]
WEB = [("content-type", "application/grpc-web+proto")]
CALM = 11


def message(payload: bytes, flags: int = 0) -> bytes:
    return bytes([flags]) + len(payload).to_bytes(4, "big") + payload


def web_parts(body: bytes) -> list[tuple[int, bytes]]:
    """Flags and payloads of a gRPC-Web body."""
    parts = []
    while body:
        size = int.from_bytes(body[1:5], "big")
        parts.append((body[0], body[5 : 5 + size]))
        body = body[5 + size :]
    return parts


def trailers_in(part: bytes) -> dict[str, str]:
    lines = part.decode().strip().split("\r\n")
    return {name: value.strip() for name, _, value in (line.partition(":") for line in lines)}


# ------------------------------------------------------------------ every protocol, every service


def test_connect_over_h2c_pushes_and_asks() -> None:
    async def story(port: Port) -> None:
        async with h2_client(port.number) as client:
            pushed = await client.ask(PUSH, [*PROTO, ("x-scope-orgid", "acme")], push_request())
            assert (pushed.status, pushed.headers["content-type"]) == (200, "application/proto")
            assert len(pushed.headers["maar-profile-ids"]) == 32
            body = json.dumps({"name": "service_name"}).encode()
            asked = await client.ask(
                f"{QUERIER}/LabelValues", [*JSON, ("x-scope-orgid", "acme")], body
            )
            assert json.loads(asked.body) == {"names": ["shop"]}
            packed = gzip.compress(push_request("b"))
            again = await client.ask(PUSH, [*PROTO, ("content-encoding", "gzip")], packed)
            assert again.status == 200

    assert {one.tenant for one in told(story).writer.profiles()} == {"acme", "anonymous"}


def test_the_pages_and_health_are_there_too() -> None:
    async def story(port: Port) -> None:
        async with h2_client(port.number) as client:
            for path, status in (("/healthz", 200), ("/", 200), ("/nowhere", 404)):
                stream = client.begin(path, method="GET", end=True)
                assert (await client.answer(stream)).status == status
            stream = client.begin("/healthz", method="HEAD", end=True)
            assert (await client.answer(stream)).body == b""

    told(story)


def test_grpc_offers_what_connect_offers() -> None:
    asked: dict[str, tuple[Any, Any]] = {
        "ProfileTypes": (b"", ProfileTypesResponse),
        "LabelValues": (
            LabelValuesRequest(name="service_name").SerializeToString(),
            LabelValuesResponse,
        ),
        "LabelNames": (b"", None),
        "Series": (b"", None),
        "SelectMergeStacktraces": (
            SelectMergeStacktracesRequest(
                profile_typeID=CPU, label_selector="{}"
            ).SerializeToString(),
            None,
        ),
    }

    async def story(port: Port) -> None:
        await port.push(push_request())
        async with port.channel() as channel, httpx.AsyncClient(trust_env=False) as http:
            for name, (body, kind) in asked.items():
                got = await channel.unary_unary(f"{QUERIER}/{name}")(body, timeout=20)
                url = f"http://127.0.0.1:{port.number}{QUERIER}/{name}"
                same = await http.post(url, content=body, headers=dict(PROTO))
                assert same.status_code == 200
                assert got == same.content
                assert kind is None or kind.FromString(got).ByteSize()

    told(story)


def test_grpc_and_connect_mix_on_one_connection() -> None:
    async def story(port: Port) -> None:
        async with h2_client(port.number) as client:
            streams = []
            for number in range(20):
                body = push_request(f"s{number}")
                style = (PROTO, GRPC)[number % 2]
                stream = client.begin(PUSH, style)
                client.send(stream, message(body) if style is GRPC else body)
                streams.append(stream)
            answers = [await client.answer(stream) for stream in streams]
            assert [answer.status for answer in answers] == [200] * 20
            assert [one.trailers for one in answers[1::2]] == [{"grpc-status": "0"}] * 10

    assert len(told(story).writer.profiles()) == 20


@pytest.mark.parametrize("text", [False, True], ids=["binary", "text"])
@pytest.mark.parametrize("version", [1, 2], ids=["http1", "http2"])
def test_grpc_web_has_its_status_in_the_body(text: bool, version: int) -> None:
    kind = "application/grpc-web-text" if text else "application/grpc-web+proto"

    async def story(port: Port) -> None:
        async def called(path: str, payload: bytes) -> list[tuple[int, bytes]]:
            body = message(payload)
            if text:  # in two padded pieces, as clients that stream send it
                body = base64.b64encode(body[:5]) + base64.b64encode(body[5:])
            if version == 2:
                async with h2_client(port.number) as client:
                    answer = await client.ask(path, [("content-type", kind)], body)
                    status, said, got = answer.status, answer.headers["content-type"], answer.body
            else:
                async with httpx.AsyncClient(trust_env=False) as http:
                    url = f"http://127.0.0.1:{port.number}{path}"
                    reply = await http.post(url, content=body, headers={"content-type": kind})
                    said, got = reply.headers["content-type"], reply.content
                    status = reply.status_code
            assert (status, said) == (200, kind)
            return web_parts(base64.b64decode(got) if text else got)

        (flags, pushed), (end, trailers) = await called(PUSH, push_request())
        assert (flags, end) == (0, 0x80)
        PushResponse.FromString(pushed)
        assert trailers_in(trailers)["grpc-status"] == "0"
        ((end, trailers),) = await called(PUSH, b"\xff\xff")
        assert (end, trailers_in(trailers)["grpc-status"]) == (0x80, "3")
        ((end, trailers),) = await called("/push.v1.PusherService/Pull", b"")
        assert (end, trailers_in(trailers)["grpc-status"]) == (0x80, "12")

    told(story)


@pytest.mark.parametrize(
    ("failure", "status", "code", "number"),
    [
        (Overloaded("full"), 429, "resource_exhausted", "8"),
        (Unavailable("away"), 503, "unavailable", "14"),
    ],
)
def test_an_error_has_the_code_of_each_protocol(
    failure: MaarError, status: int, code: str, number: str
) -> None:
    front = Front()
    front.writer.failure = failure

    async def story(port: Port) -> None:
        async with h2_client(port.number) as client:
            connect = await client.ask(PUSH, PROTO, push_request())
            assert connect.status == status
            assert json.loads(connect.body) == {"code": code, "message": str(failure)}
            assert connect.headers["retry-after"] == "1"
            called = await client.ask(PUSH, GRPC, message(push_request()))
            assert (called.status, called.headers["grpc-status"]) == (200, number)
            assert called.headers["grpc-message"] == str(failure)
            assert called.frames == 1  # trailers only

    told(story, front)


def test_what_is_not_offered_is_told_in_each_protocol() -> None:
    async def story(port: Port) -> None:
        async with h2_client(port.number) as client:
            connect = await client.ask(f"{QUERIER}/Diff", JSON, b"{}")
            assert (connect.status, json.loads(connect.body)["code"]) == (501, "unimplemented")
            assert "there are ProfileTypes," in json.loads(connect.body)["message"]
            other = await client.ask("/adhoc.v1.AdHoc/Get", PROTO, b"")
            assert (other.status, json.loads(other.body)["code"]) == (501, "unimplemented")
            called = await client.ask(f"{QUERIER}/Diff", GRPC, message(b""))
            assert called.headers["grpc-status"] == "12"
            packed = [*GRPC, ("grpc-encoding", "snappy")]
            snappy = await client.ask(PUSH, packed, message(b"x", flags=1))
            assert snappy.headers["grpc-status"] == "12"
            assert "gzip" in snappy.headers["grpc-accept-encoding"]
            half = await client.ask(PUSH, GRPC, message(push_request())[:-1])
            assert half.headers["grpc-status"] == "3"
        async with httpx.AsyncClient(trust_env=False) as http:
            url = f"http://127.0.0.1:{port.number}{PUSH}"
            reply = await http.post(url, content=message(b""), headers=dict(GRPC[:1]))
            assert reply.status_code == 415
            assert "without HTTP/2" in reply.json()["message"]

    told(story)


# ------------------------------------------------------------------ deadlines, and clients that go


class Slow:
    """A method of the engine that takes for ever, and how it ended."""

    def __init__(self) -> None:
        self.begun = asyncio.Event()
        self.cancelled = asyncio.Event()
        self.go_on = asyncio.Event()

    async def __call__(self, *_: Any, **__: Any) -> Any:
        self.begun.set()
        try:
            await self.go_on.wait()
        except asyncio.CancelledError:
            self.cancelled.set()
            raise


@pytest.mark.parametrize(
    ("headers", "body", "code"),
    [
        ([*JSON, ("connect-timeout-ms", "200")], b"{}", "deadline_exceeded"),
        ([*GRPC, ("grpc-timeout", "200m")], message(b""), "4"),
    ],
    ids=["connect", "grpc"],
)
def test_a_query_whose_client_has_no_time_left_is_cancelled(
    monkeypatch: pytest.MonkeyPatch, headers: list[tuple[str, str]], body: bytes, code: str
) -> None:
    slow = Slow()
    monkeypatch.setattr("support.http.front.PlainEngine.profile_types", slow.__call__)

    async def story(port: Port) -> None:
        async with h2_client(port.number) as client:
            answer = await client.ask(f"{QUERIER}/ProfileTypes", headers, body)
            got = answer.headers.get("grpc-status") or json.loads(answer.body)["code"]
            assert got == code
            assert answer.status == (200 if code == "4" else 504)
        await asyncio.wait_for(slow.cancelled.wait(), 10)

    told(story)


@pytest.mark.parametrize("how", ["reset", "connection lost", "http1"])
def test_a_query_whose_client_is_gone_is_cancelled(
    monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    slow = Slow()
    monkeypatch.setattr("support.http.front.PlainEngine.profile_types", slow.__call__)

    async def story(port: Port) -> None:
        if how == "http1":
            head = f"POST {QUERIER}/ProfileTypes HTTP/1.1\r\nhost: localhost\r\n"
            head += "content-type: application/json\r\ncontent-length: 2\r\n\r\n{}"
            _, writer = await port.raw(head.encode())
            await asyncio.wait_for(slow.begun.wait(), 10)
            writer.transport.abort()
        else:
            async with h2_client(port.number) as client:
                stream = client.begin(f"{QUERIER}/ProfileTypes", JSON)
                client.send(stream, b"{}")
                await asyncio.wait_for(slow.begun.wait(), 10)
                if how == "reset":
                    client.write(framed(RST, 0, stream, (8).to_bytes(4, "big")))
                    await asyncio.wait_for(slow.cancelled.wait(), 10)
        await asyncio.wait_for(slow.cancelled.wait(), 10)

    told(story)


def test_a_push_whose_client_has_no_time_left_is_stored_all_the_same() -> None:
    front = Front()
    slow, stored = Slow(), front.writer.push

    async def push(*given: Any) -> None:
        await slow()
        await stored(*given)

    front.writer.push = push  # type: ignore[method-assign, assignment]

    async def story(port: Port) -> None:
        async with h2_client(port.number) as client:
            headers = [*GRPC, ("grpc-timeout", "100m")]
            answer = await client.ask(PUSH, headers, message(push_request()))
            assert answer.headers["grpc-status"] == "4"
        assert front.door.budget.held > 0  # its bytes are still here
        slow.go_on.set()
        await until(lambda: front.door.budget.held == 0)

    told(story, front)
    assert len(front.writer.profiles()) == 1


# ------------------------------------------------------------------ bounds


def test_a_body_is_bounded_and_counted_like_any_other() -> None:
    front = Front(api=ApiSettings(body_bytes_max=100_000, reading_bytes_max=150_000))

    async def story(port: Port) -> None:
        async with h2_client(port.number) as client:
            large = await client.ask(PUSH, PROTO, bytes(100_001))
            assert large.status == 413
            streams = [client.begin(PUSH, PROTO) for _ in range(2)]
            for stream in streams:
                client.send(stream, bytes(90_000), end=False)
            answer = await client.answer(streams[1])
            assert answer.status == 429
            client.send(streams[0], b"")
            assert (await client.answer(streams[0])).status == 400
            assert (await client.ask(PUSH, PROTO, push_request())).status == 200

    told(story, front)


def test_large_answers_keep_to_the_clients_windows() -> None:
    async def story(port: Port) -> None:
        small = (4).to_bytes(2, "big") + (1000).to_bytes(4, "big")
        async with h2_client(port.number, small) as client:
            stream = client.begin("/metrics", method="GET", end=True)
            answer = await client.answer(stream)
            assert answer.status == 200
            assert len(answer.body) == int(answer.headers["content-length"]) > 3000

    told(story)


@pytest.mark.parametrize("version", [1, 2], ids=["http1", "http2"])
def test_who_takes_nothing_of_its_answer_is_hung_up_on(
    monkeypatch: pytest.MonkeyPatch, version: int
) -> None:
    monkeypatch.setattr(gate, "STALL_S", 0.3)

    async def large(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        for _ in range(64):
            await send({"type": "http.response.body", "body": bytes(1 << 20), "more_body": True})
        await send({"type": "http.response.body", "body": b""})

    front = Front()
    front.app = large

    async def story(port: Port) -> None:
        if version == 2:
            async with h2_client(port.number) as client:
                client.takes = False
                stream = client.begin("/", method="GET", end=True)
                assert (await client.answer(stream)).reset == 8
        else:
            _, writer = await port.raw(b"GET / HTTP/1.1\r\nhost: localhost\r\n\r\n")
            writer.transport.pause_reading()  # type: ignore[attr-defined]
        name = "maar_front_refused_total"
        await until(lambda: front.counted(name, reason="answer_stalled") == 1)

    told(story, front)


def test_who_takes_its_answer_by_bytes_is_hung_up_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each byte of a window woke every stream of the connection, whose clocks began again."""
    monkeypatch.setattr(gate, "STALL_S", 0.5)

    async def large(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": bytes(1 << 20)})

    front = Front()
    front.app = large

    async def story(port: Port) -> None:
        async with h2_client(port.number) as client:
            client.takes = False
            streams = [client.begin("/", method="GET", end=True) for _ in range(3)]
            name = "maar_front_refused_total"
            async with asyncio.timeout(20):
                while front.counted(name, reason="answer_stalled") != 3:
                    client.write(framed(WINDOW, 0, 0, b"\0\0\0\1"))
                    client.write(framed(WINDOW, 0, streams[0], b"\0\0\0\1"))
                    await asyncio.sleep(0.1)
            assert [(await client.answer(stream)).reset for stream in streams] == [8, 8, 8]

    told(story, front)


def test_what_nobody_reads_is_bounded_by_windows() -> None:
    async def never_reads(scope: Any, receive: Any, send: Any) -> None:
        await asyncio.Event().wait()

    front = Front()
    front.app = never_reads

    async def story(port: Port) -> None:
        async with h2_client(port.number) as client:
            await until(lambda: bool(client.granted))
            window, of_all = client.settings[4], client.granted + 65_535
            stream = client.begin(PUSH, PROTO)
            client.send(stream, bytes(window), end=False)
            client.send(stream, b"x", end=False)
            assert (await client.answer(stream)).reset == 3  # FLOW_CONTROL_ERROR
        async with h2_client(port.number) as client:
            for _ in range(0, of_all + 1, window // 2):
                client.send(client.begin(PUSH, PROTO), bytes(window // 2), end=False)
            assert await client.ended() == 3

    told(story, front, drain_s=1)


def test_streams_beyond_their_number_are_refused_and_the_others_answered(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(http2, "STREAMS_MAX", 4)

    async def story(port: Port) -> None:
        async with h2_client(port.number) as client:
            streams = [client.begin(PUSH, PROTO) for _ in range(5)]
            refused = await client.answer(streams[4])
            assert refused.reset == 7  # REFUSED_STREAM: it may be sent again at once
            for stream in streams[:4]:
                client.send(stream, push_request())
                assert (await client.answer(stream)).status == 200

    told(story)


Flood = Callable[[H2Client], None]


def rapid_reset(client: H2Client) -> None:
    stream = client.begin(PUSH, PROTO)
    client.write(framed(RST, 0, stream, (8).to_bytes(4, "big")))


def rapid_reset_of_whole_requests(client: H2Client) -> None:
    stream = client.begin("/metrics", method="GET", end=True)
    client.write(framed(RST, 0, stream, (8).to_bytes(4, "big")))


FLOODS: dict[str, Flood] = {
    "pings": lambda client: client.write(framed(PING, 0, 0, bytes(8))),
    "settings": lambda client: client.write(framed(SETTINGS, 0, 0)),
    "rapid reset": rapid_reset,
    "rapid reset of whole requests": rapid_reset_of_whole_requests,
    "window updates": lambda client: client.write(framed(WINDOW, 0, 0, b"\0\0\0\1")),
    "unknown frames": lambda client: client.write(framed(77, 0, 0)),
}


@pytest.mark.parametrize("flood", FLOODS)
def test_floods_of_frames_that_bring_nothing_end_the_connection(flood: str) -> None:
    async def story(port: Port) -> None:
        async with h2_client(port.number) as client:
            for number in range(100_000):
                FLOODS[flood](client)
                if number % 100 == 0:
                    await asyncio.sleep(0)
                if client.closed.is_set():
                    break
            assert await client.ended() == CALM
            assert number < 20_000
        assert port.front.counted("maar_front_refused_total", reason="flood") == 1
        assert (await port.get("/healthz")).status_code == 200

    told(story)


def test_empty_pieces_of_a_body_and_of_headers_are_a_flood_too() -> None:
    async def story(port: Port) -> None:
        async with h2_client(port.number) as client:
            stream = client.begin(PUSH, PROTO)
            client.write(framed(DATA, 0, stream) * 3000)
            assert await client.ended() == CALM
        async with h2_client(port.number) as client:
            client.write(framed(HEADERS, 0, 1, b"\x82"))
            client.write(framed(CONTINUATION, 0, 1) * 3000)
            assert await client.ended() == CALM

    told(story)


def test_headers_over_the_limit_get_431_and_far_over_it_the_connection_ends() -> None:
    front = Front(api=ApiSettings(head_bytes_max=4096))

    async def story(port: Port) -> None:
        async with h2_client(port.number) as client:
            answer = await client.ask(PUSH, [*PROTO, ("x-a", "a" * 5000)], b"")
            assert answer.status == 431
            assert (await client.ask(PUSH, PROTO, push_request())).status == 200
            called = await client.ask(PUSH, [*GRPC, ("x-b", "b" * 5000)], b"")
            assert called.headers["grpc-status"] == "8"
            swelling = [(f"x-{'c' * 100}", "c" * 3000)] * 20  # one byte each, by the table
            client.begin(PUSH, [*PROTO, *swelling])
            assert await client.ended() == CALM
            assert "over the limit of 4096 bytes" in client.goaway_says
        async with h2_client(port.number) as client:
            client.write(framed(HEADERS, 0, 1, bytes(4000)))
            client.write(framed(CONTINUATION, 0, 1, bytes(4000)))
            assert await client.ended() == CALM

    told(story, front)
    assert front.counted("maar_front_refused_total", reason="head_large") == 4


@pytest.mark.parametrize(
    "begun",
    [
        b"\x00\x00",
        framed(HEADERS, 4, 1, bytes(100))[:50],
        framed(HEADERS, 0, 1, b"\x82"),
        framed(DATA, 0, 1, bytes(100))[:50],
    ],
    ids=["half a frame's head", "half a frame", "half a header block", "a body of nothing"],
)
def test_what_is_begun_and_not_finished_in_time_ends_the_connection(begun: bytes) -> None:
    async def story(port: Port) -> None:
        async with h2_client(port.number) as client:
            await until(lambda: bool(client.settings))  # which it acknowledges
            client.write(begun)
            assert await client.ended() == CALM
        assert port.front.counted("maar_front_refused_total", reason="head_slow") == 1

    told(story, Front(api=ApiSettings(head_s=0.5)))


def test_unfinished_streams_count_and_the_oldest_goes_with_an_answer() -> None:
    async def story(port: Port) -> None:
        async with h2_client(port.number) as client:
            streams = []
            for number in range(6):
                style = {1: GRPC, 2: WEB}.get(number, PROTO)
                streams.append(client.begin(PUSH, style))
                client.send(streams[-1], b"x", end=False)
                await asyncio.sleep(0.02)
            oldest = await client.answer(streams[0])
            assert oldest.status == 429
            assert "more than 5 requests from this address" in oldest.body.decode()
            client.begin(PUSH, PROTO)
            second = await client.answer(streams[1])
            assert (second.status, second.headers["grpc-status"]) == (200, "8")
            assert not client.answers[streams[2]].done.is_set()
            client.begin(PUSH, PROTO)
            third = await client.answer(streams[2])  # no answer of gRPC is one of gRPC-Web
            assert (third.status, third.headers["content-type"]) == (429, "application/json")
        await until(lambda: port.front.counted("maar_front_unfinished_requests") == 0)

    told(story, Front(api=ApiSettings(unfinished_per_address_max=5)))


def test_an_idle_connection_makes_room_and_says_so() -> None:
    async def story(port: Port) -> None:
        async with h2_client(port.number) as idle:
            assert (await idle.ask(PUSH, PROTO, push_request())).status == 200
            async with h2_client(port.number) as second, h2_client(port.number) as third:
                assert (await second.ask(PUSH, PROTO, push_request())).status == 200
                assert (await third.ask(PUSH, PROTO, push_request())).status == 200
                assert await idle.ended() == 0

    told(story, Front(api=ApiSettings(connections_max=2)))


def test_a_stream_that_breaks_the_rules_ends_alone() -> None:
    async def story(port: Port) -> None:
        async with h2_client(port.number) as client:
            shouted: list[Answer] = []
            for headers in ([("Upper", "x")], [("connection", "close")], [("te", "gzip")]):
                shouted.append(await client.ask(PUSH, headers, b""))
            assert [answer.reset for answer in shouted] == [1, 1, 1]
            assert (await client.ask(PUSH, PROTO, push_request())).status == 200

    told(story)


def test_when_the_server_ends_calls_are_answered_and_clients_told() -> None:
    front = Front()
    slow, stored = Slow(), front.writer.push

    async def push(*given: Any) -> None:
        await slow()
        await stored(*given)

    front.writer.push = push  # type: ignore[method-assign, assignment]

    async def story(port: Port) -> None:
        async with h2_client(port.number) as client:
            stream = client.begin(PUSH, PROTO)
            client.send(stream, push_request())
            await asyncio.wait_for(slow.begun.wait(), 10)
            stopping = asyncio.create_task(port.stop())
            await until(lambda: client.goaway == 0)
            slow.go_on.set()
            assert (await client.answer(stream)).status == 200
            await client.ended()
            await stopping

    told(story, front)


def test_a_thousand_calls_by_grpcio_over_few_connections() -> None:
    async def story(port: Port) -> None:
        async with port.channel() as one, port.channel() as two:
            calls = [
                (one, two)[number % 2].unary_unary(PUSH)(push_request(f"s{number % 9}"), timeout=60)
                for number in range(1000)
            ]
            await asyncio.gather(*calls)
        assert port.front.counted("maar_front_refused_total", reason="flood") == 0

    assert len(told(story).writer.profiles()) == 1000
