"""No client of HTTP/2 can hold the server: windows, streams, floods and headers are bounded."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from maar.api.settings import ApiSettings
from maar.app.http.gate import PortBounds
from support.http.front import Front
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
    frame_bytes,
    h2_client,
)
from support.http.h2_requests import GRPC, PROTO, Slow
from support.http.port import PUSH, Port, run_story, until
from support.http.port import request as push_request

pytestmark = [pytest.mark.component, pytest.mark.timeout(120)]
WEB = [("content-type", "application/grpc-web+proto")]
CALM = 11


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

    run_story(story, front)


def test_large_answers_keep_to_the_clients_windows() -> None:
    async def story(port: Port) -> None:
        small = (4).to_bytes(2, "big") + (1000).to_bytes(4, "big")
        async with h2_client(port.number, small) as client:
            stream = client.begin("/metrics", method="GET", end=True)
            answer = await client.answer(stream)
            assert answer.status == 200
            assert len(answer.body) == int(answer.headers["content-length"]) > 3000

    run_story(story)


@pytest.mark.parametrize("version", [1, 2], ids=["http1", "http2"])
def test_who_takes_nothing_of_its_answer_is_hung_up_on(version: int) -> None:
    async def large(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        for _ in range(64):
            await send({"type": "http.response.body", "body": bytes(1 << 20), "more_body": True})
        await send({"type": "http.response.body", "body": b""})

    front = Front(bounds=PortBounds(stall_s=0.3))
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
        await until(lambda: front.metric_value(name, reason="answer_stalled") == 1)

    run_story(story, front)


def test_who_takes_its_answer_by_bytes_is_hung_up_on() -> None:
    """Each byte of a window woke every stream of the connection, whose clocks began again."""

    async def large(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": bytes(1 << 20)})

    front = Front(bounds=PortBounds(stall_s=0.5))
    front.app = large

    async def story(port: Port) -> None:
        async with h2_client(port.number) as client:
            client.takes = False
            streams = [client.begin("/", method="GET", end=True) for _ in range(3)]
            name = "maar_front_refused_total"
            async with asyncio.timeout(20):
                while front.metric_value(name, reason="answer_stalled") != 3:
                    client.write(frame_bytes(WINDOW, 0, 0, b"\0\0\0\1"))
                    client.write(frame_bytes(WINDOW, 0, streams[0], b"\0\0\0\1"))
                    await asyncio.sleep(0.1)
            assert [(await client.answer(stream)).reset for stream in streams] == [8, 8, 8]

    run_story(story, front)


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
            assert await client.wait_end() == 3

    run_story(story, front, drain_s=1)


def test_streams_beyond_their_number_are_refused_and_the_others_answered() -> None:
    async def story(port: Port) -> None:
        async with h2_client(port.number) as client:
            streams = [client.begin(PUSH, PROTO) for _ in range(5)]
            refused = await client.answer(streams[4])
            assert refused.reset == 7  # REFUSED_STREAM: it may be sent again at once
            for stream in streams[:4]:
                client.send(stream, push_request())
                assert (await client.answer(stream)).status == 200

    run_story(story, Front(bounds=PortBounds(streams_max=4)))


Flood = Callable[[H2Client], None]


def rapid_reset(client: H2Client) -> None:
    stream = client.begin(PUSH, PROTO)
    client.write(frame_bytes(RST, 0, stream, (8).to_bytes(4, "big")))


def rapid_reset_of_whole_requests(client: H2Client) -> None:
    stream = client.begin("/metrics", method="GET", end=True)
    client.write(frame_bytes(RST, 0, stream, (8).to_bytes(4, "big")))


FLOODS: dict[str, Flood] = {
    "pings": lambda client: client.write(frame_bytes(PING, 0, 0, bytes(8))),
    "settings": lambda client: client.write(frame_bytes(SETTINGS, 0, 0)),
    "rapid reset": rapid_reset,
    "rapid reset of whole requests": rapid_reset_of_whole_requests,
    "window updates": lambda client: client.write(frame_bytes(WINDOW, 0, 0, b"\0\0\0\1")),
    "unknown frames": lambda client: client.write(frame_bytes(77, 0, 0)),
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
            assert await client.wait_end() == CALM
            assert number < 20_000
        assert port.front.metric_value("maar_front_refused_total", reason="flood") == 1
        assert (await port.get("/healthz")).status_code == 200

    run_story(story)


def test_empty_pieces_of_a_body_and_of_headers_are_a_flood_too() -> None:
    async def story(port: Port) -> None:
        async with h2_client(port.number) as client:
            stream = client.begin(PUSH, PROTO)
            client.write(frame_bytes(DATA, 0, stream) * 3000)
            assert await client.wait_end() == CALM
        async with h2_client(port.number) as client:
            client.write(frame_bytes(HEADERS, 0, 1, b"\x82"))
            client.write(frame_bytes(CONTINUATION, 0, 1) * 3000)
            assert await client.wait_end() == CALM

    run_story(story)


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
            assert await client.wait_end() == CALM
            assert "over the limit of 4096 bytes" in client.goaway_says
        async with h2_client(port.number) as client:
            client.write(frame_bytes(HEADERS, 0, 1, bytes(4000)))
            client.write(frame_bytes(CONTINUATION, 0, 1, bytes(4000)))
            assert await client.wait_end() == CALM

    run_story(story, front)
    assert front.metric_value("maar_front_refused_total", reason="head_large") == 4


@pytest.mark.parametrize(
    "begun",
    [
        b"\x00\x00",
        frame_bytes(HEADERS, 4, 1, bytes(100))[:50],
        frame_bytes(HEADERS, 0, 1, b"\x82"),
        frame_bytes(DATA, 0, 1, bytes(100))[:50],
    ],
    ids=["half a frame's head", "half a frame", "half a header block", "a body of nothing"],
)
def test_what_is_begun_and_not_finished_in_time_ends_the_connection(begun: bytes) -> None:
    async def story(port: Port) -> None:
        async with h2_client(port.number) as client:
            await until(lambda: bool(client.settings))  # which it acknowledges
            client.write(begun)
            assert await client.wait_end() == CALM
        assert port.front.metric_value("maar_front_refused_total", reason="head_slow") == 1

    run_story(story, Front(api=ApiSettings(head_s=0.5)))


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
        await until(lambda: port.front.metric_value("maar_front_unfinished_requests") == 0)

    run_story(story, Front(api=ApiSettings(unfinished_per_address_max=5)))


def test_an_idle_connection_makes_room_and_says_so() -> None:
    async def story(port: Port) -> None:
        async with h2_client(port.number) as idle:
            assert (await idle.ask(PUSH, PROTO, push_request())).status == 200
            async with h2_client(port.number) as second, h2_client(port.number) as third:
                assert (await second.ask(PUSH, PROTO, push_request())).status == 200
                assert (await third.ask(PUSH, PROTO, push_request())).status == 200
                assert await idle.wait_end() == 0

    run_story(story, Front(api=ApiSettings(connections_max=2)))


def test_a_stream_that_breaks_the_rules_ends_alone() -> None:
    async def story(port: Port) -> None:
        async with h2_client(port.number) as client:
            shouted: list[Answer] = []
            for headers in ([("Upper", "x")], [("connection", "close")], [("te", "gzip")]):
                shouted.append(await client.ask(PUSH, headers, b""))
            assert [answer.reset for answer in shouted] == [1, 1, 1]
            assert (await client.ask(PUSH, PROTO, push_request())).status == 200

    run_story(story)


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
            await client.wait_end()
            await stopping

    run_story(story, front)


def test_a_thousand_calls_by_grpcio_over_few_connections() -> None:
    async def story(port: Port) -> None:
        async with port.channel() as one, port.channel() as two:
            calls = [
                (one, two)[number % 2].unary_unary(PUSH)(push_request(f"s{number % 9}"), timeout=60)
                for number in range(1000)
            ]
            await asyncio.gather(*calls)
        assert port.front.metric_value("maar_front_refused_total", reason="flood") == 0

    assert len(run_story(story).writer.profiles()) == 1000
