"""Calls whose clients wait for so long, or not at all, in virtual time."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest
from prometheus_client import CollectorRegistry
from starlette.types import Message

from maar.api.guard import RequestGuard
from maar.api.protocol import wire
from maar.api.protocol.connect import CallService, CallsFirst, Unary
from maar.api.query.querier import graph_reply
from maar.api.settings import ApiSettings
from support.clock.virtual_time import run_virtually
from support.oracles.graphs import graph_of

PATH = "/querier.v1.QuerierService/LabelNames"


class Client:
    """Sends one request, and hangs up after a while (None: never)."""

    def __init__(
        self, *, hangs_up_after_s: float | None = None, headers: Any = (), codec: str = "json"
    ) -> None:
        self._hangs_up_after_s = hangs_up_after_s
        self._sent = False
        self._body = b"{}" if codec == "json" else b""
        self.scope = {
            "type": "http",
            "method": "POST",
            "path": PATH,
            "http_version": "1.1",
            "headers": [(b"content-type", f"application/{codec}".encode()), *headers],
            "query_string": b"",
        }
        self.heard: list[Message] = []

    async def receive(self) -> Message:
        if not self._sent:
            self._sent = True
            return {"type": "http.request", "body": self._body}
        if self._hangs_up_after_s is None:
            await asyncio.Event().wait()
        await asyncio.sleep(self._hangs_up_after_s or 0)
        return {"type": "http.disconnect"}

    async def send(self, message: Message) -> None:
        self.heard.append(message)


class Work:
    """A method that takes a while."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self.ended: list[str] = []

    async def answer(self, _tenant: Any, _request: Any) -> Any:
        try:
            await asyncio.sleep(self._seconds)
        except asyncio.CancelledError:
            self.ended.append("cancelled")
            raise
        self.ended.append("done")
        return wire.LabelNamesResponse(names=["a"]), None


async def elsewhere(_scope: Any, _receive: Any, send: Any) -> None:
    await send({"type": "elsewhere"})


def app_of(work: Work, *, finishes: bool = False) -> CallsFirst:
    guard = RequestGuard(ApiSettings(), CollectorRegistry())
    call = Unary(guard, "LabelNames", wire.LabelNamesRequest, work.answer, finishes=finishes)
    service = CallService("querier.v1.QuerierService", {"LabelNames": call})
    return CallsFirst([service], elsewhere)


async def ask(client: Client, work: Work, *, finishes: bool = False) -> int:
    await app_of(work, finishes=finishes)(client.scope, client.receive, client.send)
    status: int = client.heard[0]["status"]
    return status


@pytest.mark.parametrize("seconds", [0, 0.01, 5])
def test_whoever_waits_is_answered(seconds: float) -> None:
    async def test() -> None:
        work = Work(seconds)
        client = Client()
        assert await ask(client, work) == 200
        assert client.heard[1]["body"] == b'{"names":["a"]}'

    run_virtually(test())


@pytest.mark.parametrize("after_s", [0.001, 3.0])
def test_work_ends_when_its_client_hangs_up(after_s: float) -> None:
    async def test() -> None:
        work = Work(60)
        began = asyncio.get_running_loop().time()
        assert await ask(Client(hangs_up_after_s=after_s), work) == 503
        assert work.ended == ["cancelled"]
        assert asyncio.get_running_loop().time() - began < after_s + 0.1

    run_virtually(test())


def test_work_ends_with_the_clients_deadline() -> None:
    async def test() -> None:
        work = Work(60)
        client = Client(headers=[(b"connect-timeout-ms", b"250")])
        assert await ask(client, work) == 504
        assert work.ended == ["cancelled"]
        assert b"0.25 s" in client.heard[1]["body"]

    run_virtually(test())


def test_a_push_goes_on_when_its_clients_deadline_has_passed() -> None:
    async def test() -> None:
        work = Work(60)
        client = Client(headers=[(b"connect-timeout-ms", b"250")])
        assert await ask(client, work, finishes=True) == 504
        assert not work.ended
        await asyncio.sleep(100)
        assert work.ended == ["done"]

    run_virtually(test())


@pytest.mark.parametrize(("method", "path"), [("GET", PATH), ("POST", PATH + "/x"), ("POST", "/")])
def test_what_is_no_call_is_for_the_other_routes(method: str, path: str) -> None:
    async def test() -> None:
        client = Client()
        scope = {**client.scope, "method": method, "path": path}
        await app_of(Work(0))(scope, client.receive, client.send)
        assert client.heard == [{"type": "elsewhere"}]

    run_virtually(test())


@pytest.mark.parametrize(("nodes", "inline"), [(1, True), (50_000, False)])
def test_a_large_answer_becomes_protobuf_beside_the_event_loop(nodes: int, inline: bool) -> None:
    """A million nodes take a quarter of a second, in which nobody else would be served."""
    prepared = graph_reply(graph_of(["total"], [[0, 5, 0, 0] * nodes], 5, 5))
    made_in: list[threading.Thread] = []

    def message() -> Any:
        made_in.append(threading.current_thread())
        return prepared.message()

    class Graphs(Work):
        async def answer(self, _tenant: Any, _request: Any) -> Any:
            return prepared._replace(message=message), None

    client = Client(codec="proto")
    assert asyncio.run(ask(client, Graphs(0))) == 200
    reply = wire.SelectMergeStacktracesResponse.FromString(client.heard[1]["body"])
    assert len(reply.flamegraph.levels[0].values) == 4 * nodes
    assert [thread is threading.main_thread() for thread in made_in] == [inline]
