"""Damaged blocks are left out only when the request allows it, and the answer says so."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any, cast

import grpc
import pytest
from prometheus_client import CollectorRegistry

from maar.adapters.rpc import refusals
from maar.api.query.partly import ROUNDS_MAX, Partly, PartlyEngine
from maar.model.errors import Corrupt, Damaged
from maar.model.ids import TenantId
from maar.model.time import TimeRange
from maar.ports.calls import Caller, LocalPort
from maar.ports.reader.query import QueryEngine, RankFunctions, Scope, Top
from support.clock.virtual_time import run_virtually

DAY_NS = 86_400 * 10**9
SCOPE = Scope(TenantId("acme"), TimeRange(0, 1 << 60))
HEADER = (b"x-maar-allow-partial", b"true")


class Broken(LocalPort):
    """Every question fails until each damaged block is left out; an error names two at most."""

    def __init__(self, damaged: int, *, named: bool = True) -> None:
        self.damaged = {f"{n:032x}": (n * DAY_NS, n * DAY_NS + 1) for n in range(damaged)}
        self.named = named
        self.asked: list[Scope] = []

    async def top(self, request: RankFunctions) -> Top:
        scope = request.scope
        self.asked.append(scope)
        left = [block for block in self.damaged if block not in scope.without]
        if not left:
            return Top((), 7)
        if not self.named:
            raise Corrupt("nobody knows what it was")
        blocks = tuple((block, *self.damaged[block]) for block in left[:2])
        raise Damaged("an object is missing", blocks=blocks)


class Answered:
    """One request to an application that asks the engine once."""

    def __init__(self, engine: Broken, *headers: tuple[bytes, bytes], query: str = "") -> None:
        self.registry = CollectorRegistry()
        partly = PartlyEngine(cast(Caller[QueryEngine], engine), self.registry)
        self.headers: dict[bytes, bytes] = {}
        self.total = 0

        async def app(_scope: Any, _receive: Any, send: Any) -> None:
            top = await asyncio.create_task(
                partly.call(RankFunctions(SCOPE, profile_type="x", limit=1))
            )
            self.total = top.total
            await send({"type": "http.response.start", "status": 200, "headers": []})

        async def sent(message: Any) -> None:
            self.headers = dict(message["headers"])

        scope = {"type": "http", "headers": list(headers), "query_string": query.encode()}
        run_virtually(Partly(app)(scope, cast(Any, None), sent))

    @property
    def counted(self) -> float | None:
        return self.registry.get_sample_value("maar_api_partial_answers_total")


def test_by_default_damage_is_an_error() -> None:
    engine = Broken(1)
    for query in ("", "allow_partial=false", "other=true"):
        with pytest.raises(Damaged):
            Answered(engine, query=query)
    assert all(scope.without == () for scope in engine.asked)


@pytest.mark.parametrize("how", [([HEADER], ""), ([], "allow_partial=true&x=1")])
def test_whoever_allows_it_gets_what_is_left_and_is_told_what_is_missing(how: Any) -> None:
    headers, query = how
    answered = Answered(Broken(3), *headers, query=query)
    assert answered.total == 7
    assert answered.headers[b"x-maar-partial"] == (
        b"blocks=3 from=1970-01-01T00:00:00Z until=1970-01-03T00:00:00Z"
    )
    assert answered.counted == 1


def test_what_one_request_allows_is_not_allowed_by_the_next_on_its_connection() -> None:
    """The server begins a pipelined request where the one before it is answered, in its context."""
    engine = Broken(1)
    partly = PartlyEngine(cast(Caller[QueryEngine], engine), CollectorRegistry())
    later: list[asyncio.Task[None]] = []

    async def app(_scope: Any, _receive: Any, send: Any) -> None:
        await partly.call(RankFunctions(SCOPE, profile_type="x", limit=1))
        await send({"type": "http.response.start", "status": 200, "headers": []})

    async def sent(_message: Any) -> None:
        if not later:
            later.append(asyncio.create_task(served([])))

    async def served(headers: list[tuple[bytes, bytes]]) -> None:
        scope = {"type": "http", "headers": headers, "query_string": b""}
        await Partly(app)(scope, cast(Any, None), sent)

    async def both() -> None:
        await served([HEADER])
        with pytest.raises(Damaged):
            await later[0]

    run_virtually(both())


def test_a_whole_answer_says_nothing_of_the_kind() -> None:
    answered = Answered(Broken(0), HEADER)
    assert (answered.total, answered.headers, answered.counted) == (7, {}, 0)


def test_damage_that_nobody_can_name_is_an_error_all_the_same() -> None:
    with pytest.raises(Corrupt):
        Answered(Broken(1, named=False), HEADER)


def test_a_lake_in_ruins_is_an_error_in_the_end() -> None:
    engine = Broken(1000)
    with pytest.raises(Damaged):
        Answered(engine, HEADER)
    assert len(engine.asked) == ROUNDS_MAX + 1


def test_the_blocks_of_an_error_come_through_the_wire() -> None:
    kept: dict[str, Any] = {}

    async def abort(code: Any, sentence: str, trailing_metadata: Any) -> None:
        kept.update(code=code, sentence=sentence, trailer=trailing_metadata)

    error = Damaged("an object is missing", blocks=(("0" * 32, 5, 9),))
    run_virtually(refusals.refuse(SimpleNamespace(abort=abort), error))
    assert kept["code"] is grpc.StatusCode.DATA_LOSS
    wire = SimpleNamespace(
        trailing_metadata=lambda: kept["trailer"],
        details=lambda: kept["sentence"],
        code=lambda: kept["code"],
    )
    again = refusals.error_of(wire, path="/x/y", address="here")
    assert isinstance(again, Damaged)
    assert (str(again), again.blocks) == (str(error), error.blocks)
