"""Queries of clients that left or have no time are cancelled; pushes are stored all the same."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from support.http.front import Front
from support.http.h2_client import (
    RST,
    frame_bytes,
    h2_client,
)
from support.http.h2_requests import GRPC, JSON, QUERIER, Slow, message
from support.http.port import PUSH, Port, run_story, until
from support.http.port import request as push_request

pytestmark = [pytest.mark.component, pytest.mark.timeout(120)]


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
    monkeypatch.setattr("support.http.plain_engine.PlainEngine.profile_types", slow.__call__)

    async def story(port: Port) -> None:
        async with h2_client(port.number) as client:
            answer = await client.ask(f"{QUERIER}/ProfileTypes", headers, body)
            got = answer.headers.get("grpc-status") or json.loads(answer.body)["code"]
            assert got == code
            assert answer.status == (200 if code == "4" else 504)
        await asyncio.wait_for(slow.cancelled.wait(), 10)

    run_story(story)


@pytest.mark.parametrize("how", ["reset", "connection lost", "http1"])
def test_a_query_whose_client_is_gone_is_cancelled(
    monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    slow = Slow()
    monkeypatch.setattr("support.http.plain_engine.PlainEngine.profile_types", slow.__call__)

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
                    client.write(frame_bytes(RST, 0, stream, (8).to_bytes(4, "big")))
                    await asyncio.wait_for(slow.cancelled.wait(), 10)
        await asyncio.wait_for(slow.cancelled.wait(), 10)

    run_story(story)


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

    run_story(story, front)
    assert len(front.writer.profiles()) == 1
