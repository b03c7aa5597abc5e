"""Nothing that the leader's loop does in one go grows with what the metastore holds."""

from __future__ import annotations

import asyncio

import msgspec
import pytest

from maar.metastore.decide.schedule import Wish, assign
from maar.metastore.leader.inbox import TAKEN_AT_ONCE, Add, Inbox, PinRequest, Request
from maar.metastore.records.entries import BlocksAdded, PolicySet, Tick
from maar.metastore.replica.log_fold import UNBROKEN_BYTES, LogFold
from maar.metastore.state import index as indexes
from maar.metastore.state import marks
from maar.metastore.state.digest import digest
from maar.model.ids import WorkerId
from maar.model.time import LeaseTime, WallTime
from maar.ports.metastore.log import EMPTY, Term, follow
from support.clock.virtual_time import run_virtually
from support.metastore.fold import SMALL, Fold, encode_envelope, segment
from support.stores.memory_store import MemoryStore


def test_a_long_fold_lets_others_have_a_turn() -> None:
    fold = Fold()
    for first in range(0, 3_000, 100):
        fold.put(BlocksAdded(tuple(segment(first + n) for n in range(100))))
    bodies = [encode_envelope(item.envelope) for item in fold.log]
    records = follow(EMPTY, bodies, Term(1))
    seen: list[int] = []
    replica = LogFold(MemoryStore())

    async def other() -> None:
        while True:
            await asyncio.sleep(0)
            seen.append(replica.state.index)
            assert replica.head.index == replica.state.index

    async def test() -> None:
        task = asyncio.create_task(other())
        await replica.fold(records)
        task.cancel()

    run_virtually(test())
    assert replica.head.index == len(records)
    between = {index for index in seen if 0 < index < len(records)}
    assert len(between) >= sum(map(len, bodies)) // (2 * UNBROKEN_BYTES) > 2
    assert digest(replica.state) == digest(fold.state)


def test_the_loop_takes_no_more_blocks_at_once_than_it_can_fold_quickly() -> None:
    async def test() -> None:
        inbox = Inbox()
        large = tuple(segment(n) for n in range(TAKEN_AT_ONCE // 2))
        requests: list[Request[object]] = [Add(large), Add(large), Add(large), PinRequest("r")]  # type: ignore[list-item]
        for request in requests:
            assert inbox.put(request)
        assert await inbox.take(1) == requests[:2]
        assert await inbox.take(1) == requests[2:]
        for n in range(2 * TAKEN_AT_ONCE):
            inbox.put(PinRequest(str(n)))
        assert len(await inbox.take(1)) == TAKEN_AT_ONCE

    run_virtually(test())


def test_a_loop_that_is_called_off_ends_also_when_a_request_arrives_at_that_moment() -> None:
    """Else a metastore that is told to stop would go on for ever, now and then."""

    async def called_off(turns: int) -> None:
        inbox = Inbox()
        taking = asyncio.create_task(inbox.take(60))
        await asyncio.sleep(0.01)
        inbox.put(PinRequest("r"))
        for _ in range(turns):
            await asyncio.sleep(0)
        if taking.cancel():
            await asyncio.wait([taking])
            assert taking.cancelled()
            assert len(await inbox.take(1)) == 1, "and the request is not lost"

    for turns in range(5):
        run_virtually(called_off(turns))


def test_a_policy_with_the_same_levels_opens_no_block(monkeypatch: pytest.MonkeyPatch) -> None:
    fold = Fold()
    fold.put(BlocksAdded(tuple(segment(n) for n in range(300))))

    def opened(_: object) -> None:
        raise AssertionError("a million blocks would be decoded in one go")

    monkeypatch.setattr(indexes, "content", opened)
    monkeypatch.setattr(indexes, "outline", opened)
    monkeypatch.setattr(indexes, "unpack", opened)
    longer = tuple(msgspec.structs.replace(level, count=level.count * 2) for level in SMALL.levels)
    fold.put(PolicySet(msgspec.structs.replace(SMALL, lease_ns=7, retention_ns=9, levels=longer)))
    assert fold.state.policy.lease_ns == 7


def test_the_hash_of_a_state_is_made_of_what_has_changed(monkeypatch: pytest.MonkeyPatch) -> None:
    fold = Fold()
    fold.put(BlocksAdded(tuple(segment(n) for n in range(90))))
    for entry in assign(fold.state, [Wish(WorkerId("w"), 30)], now=LeaseTime(0)):
        fold.put(entry)
    assert len(fold.state.plans) == 30
    made: list[object] = []

    def counted(thing: object) -> bytes:
        made.append(thing)
        return msgspec.msgpack.encode(thing)

    monkeypatch.setattr(marks, "encode", counted)
    first = digest(fold.state)
    assert len(made) == 30
    fold.put(Tick())
    assert digest(fold.state) == first
    assert len(made) == 30
    plan = next(iter(fold.state.plans.values()))
    fold.state.plans[plan.id] = msgspec.structs.replace(plan, note="changed")
    assert digest(fold.state) != first
    assert len(made) == 31


def test_times_of_entries_are_not_in_the_hash() -> None:
    fold = Fold()
    before = digest(fold.state)
    fold.now = 99
    fold.put(Tick())
    fold.state.wall_time = WallTime(7)
    assert digest(fold.state) == before
