"""Whose a store is: who may begin in it, and what a lost log without a snapshot leaves (S5)."""

from __future__ import annotations

import asyncio
import shlex
from collections.abc import Awaitable, Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from maar.block.format import dead_letter
from maar.metastore.leader.stores import claim
from maar.metastore.recovery import restoring, traces
from maar.metastore.replica import snapshot
from maar.metastore.service import MetastoreService
from maar.metastore.state.state import CountsSinceGenesis, MetaState
from maar.model import keys
from maar.model.block import Kind
from maar.model.errors import InvalidInput, NotFound, Rejected, Unavailable
from maar.model.ids import (
    BlockId,
    FencingToken,
    Incarnation,
    PlanId,
    Shard,
    StoreName,
    TenantId,
    block_time_ns,
)
from maar.model.stores import StoreSet, StoreSpec
from maar.model.time import LeaseTime, WallTime
from maar.ports.metastore.log import Candidate
from maar.ports.stores.object_store import ObjectStore
from support.clock.fake_clock import FakeClock
from support.clock.virtual_time import run_virtually
from support.lake.lost_log import Lives
from support.metastore.dead_letters import FaultyStore
from support.metastore.fold import INCARNATION, SMALL
from support.metastore.logged import Logged
from support.metastore.memory_log import MemoryLog, SharedLog
from support.stores.memory_store import MemoryStore

OTHER = Incarnation("feedbeef")
BLOCK = BlockId("000000000000000a00000000000000ff")
ONE, TWO = b"\1", b"\2"
WALL = WallTime(1_800_000_000_000_000_000)


def run(test: Coroutine[Any, Any, None]) -> None:
    run_virtually(test)


async def no_snapshot() -> int:
    return 0


def server(
    store: ObjectStore,
    shared: SharedLog | None = None,
    *,
    entropy: bytes = ONE,
    take: Callable[[], Awaitable[int]] = no_snapshot,
    **how: Any,
) -> MetastoreService:
    return MetastoreService(
        MemoryLog(shared or SharedLog()),
        store,
        FakeClock(),
        SMALL,
        entropy=lambda count: entropy * count,
        candidate=Candidate("one"),
        take_snapshot=take,
        registry=CollectorRegistry(),
        **how,
    )


def written(key: str) -> Callable[[], MemoryStore]:
    def made() -> MemoryStore:
        store = MemoryStore()
        store.create(key, INCARNATION.encode())
        return store

    return made


TOKEN = FencingToken(INCARNATION, 8)
STEM = keys.stem(block=BLOCK, plan=PlanId(7, 0), token=TOKEN, attempt="a1")
TENANT = TenantId("anonymous")


# ── before a log begins ────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("key", "what"),
    [
        (keys.marker(INCARNATION), "the marker of log 0badcafe"),
        (keys.CLAIM, "the claim of log 0badcafe"),
        (keys.segment(shard=Shard(3), block=BLOCK, incarnation=INCARNATION), "segments of log 0ba"),
        (keys.manifest(tenant=TENANT, day=7, stem=STEM), "blocks of log 0badcafe"),
        (keys.table(name="samples", tenant=TENANT, day=7, stem=STEM), "blocks of log 0badcafe"),
        (keys.quarantine(tenant=TENANT, stem=STEM), "quarantined profiles of log 0badcafe"),
        (keys.dead_letter(incarnation=INCARNATION, block=BLOCK), "dead letters of log 0badcafe"),
        (keys.held_letter(incarnation=INCARNATION, name="x"), "dead letters of log 0badcafe"),
        ("segments/v1/what-is-this", "segments. That log"),
    ],
)
def test_an_empty_log_does_not_begin_over_anything_that_another_one_left(
    key: str, what: str
) -> None:
    async def test() -> None:
        store, shared = written(key)(), SharedLog()
        before = [info.key for info in store.list("")]
        stopped = server(store, shared, log_url="sqlite:///var/lib/my maar/log")
        with pytest.raises(Rejected, match=what) as refusal:
            await stopped.start()
        command = "maar metastore restore --log 'sqlite:///var/lib/my maar/log' --store memory://"
        assert f"run `{command}`" in str(refusal.value)
        assert shlex.split(command)[4] == "sqlite:///var/lib/my maar/log"
        await stopped.stop()
        assert not shared.records, "the log is still empty, so that it can be restored into"
        assert [info.key for info in store.list("")] == before
        anew = server(store, shared, begin_anew=True)
        await anew.start()
        assert anew.ready() == ""
        await anew.stop()

    run(test())


def test_a_look_at_a_large_store_is_a_short_one() -> None:
    store = FaultyStore()
    for number in range(3_000):
        store.create(f"segments/v1/shard=1/{number:032x}-{INCARNATION}.parquet", b"")
    with pytest.raises(Rejected):
        claim.check_unused(store)
    assert [call for call in store.calls if call[0] == "read"] == []
    assert len([call for call in store.calls if call[0] == "list"]) <= 6


# ── two that begin at once ─────────────────────────────────────────────────────────────────────


def test_of_two_that_begin_at_once_in_one_store_one_gives_way() -> None:
    """The second looked before the first had left anything."""

    async def test() -> None:
        store = MemoryStore()
        first, second = SharedLog(), SharedLog()
        one = server(store, first, entropy=ONE)
        await one.start()
        for info in list(store.list(keys.MARKERS)):
            store.delete(info.key)  # it has only claimed so far
        claimed = store.read(keys.CLAIM)
        store.delete(keys.CLAIM)
        two = server(_ClaimedMeanwhile(store, claimed), second, entropy=TWO)
        with pytest.raises(Rejected, match="belongs to log 01010101, which began in it before"):
            await two.start()
        assert two.standing().standing == "stopped"
        await two.stop()
        assert [info.key for info in store.list(keys.MARKERS)] == [], "the loser has no marker"
        again = server(store, second, entropy=TWO)
        with pytest.raises(Rejected, match="belongs to log 01010101"):
            await again.start()
        await again.stop()
        anew = server(store, second, begin_anew=True)  # somebody wants both
        await anew.start()
        assert (await anew.replica()).incarnation == "02020202"
        await anew.stop()
        await one.stop()
        for shared in (first, second):  # each goes on from now on
            later = server(store, shared)
            await later.start()
            await later.stop()

    run(test())


class _ClaimedMeanwhile(MemoryStore):
    """Another log's claim arrives between a look and our own claim."""

    def __init__(self, store: MemoryStore, claimed: bytes) -> None:
        self.__dict__ = store.__dict__
        self._claimed = claimed

    def create(self, key: str, body: bytes) -> None:
        if key == keys.CLAIM and self._claimed:
            claimed, self._claimed = self._claimed, b""
            super().create(key, claimed)
        super().create(key, body)


@pytest.mark.parametrize("lost", ["before the claim", "before the marker"])
def test_who_dies_while_it_begins_goes_on_with_its_own_claim(lost: str) -> None:
    async def test() -> None:
        store, shared = MemoryStore(), SharedLog()
        first = server(store, shared)
        await first.start()
        await first.stop()
        kept = {"before the claim": (), "before the marker": (keys.CLAIM,)}[lost]
        for info in list(store.list("")):
            if info.key not in kept:
                store.delete(info.key)  # as if it had come no further
        again = server(store, shared, entropy=TWO)
        await again.start()
        assert (await again.replica()).incarnation == "01010101"
        assert store.read(keys.CLAIM) == b"01010101"
        assert [info.key for info in store.list(keys.MARKERS)] == [
            keys.marker(Incarnation("01010101"))
        ]
        await again.stop()

    run(test())


def test_a_log_that_was_there_before_claims_goes_on() -> None:
    """Its own marker is enough, whatever else is in the store."""
    store = MemoryStore()
    store.create(keys.marker(INCARNATION), b"")
    store.create(keys.CLAIM, OTHER.encode())
    claim.settle(store, MetaState(incarnation=INCARNATION))


def test_a_log_that_has_led_goes_on_although_the_store_does_not_answer() -> None:
    store = FaultyStore()
    store.fault = lambda _operation, _key: Unavailable("the store is away")
    claim.settle(
        store, MetaState(incarnation=INCARNATION, tally=CountsSinceGenesis(profiles_added=1))
    )
    claim.settle(store, MetaState(incarnation=INCARNATION, former=(OTHER,)))
    with pytest.raises(Unavailable):
        claim.settle(store, MetaState(incarnation=INCARNATION))
    store.heal()
    claim.settle(store, MetaState(incarnation=INCARNATION, former=(OTHER,)))
    assert store.read(keys.marker(INCARNATION)) == b"main"


# ── the first of several stores ────────────────────────────────────────────────────────────────


def of_stores(*names: str) -> MetaState:
    state = MetaState(incarnation=INCARNATION)
    state.blocks.copies.set_stores(StoreSet(tuple(StoreSpec(StoreName(name)) for name in names)))
    return state


def test_another_first_store_than_before_is_refused_with_what_to_do() -> None:
    claim.check_first(MemoryStore("a"), of_stores("a", "b"))
    with pytest.raises(Rejected, match=r"first store of this log is 'a'.*Name 'a' first in") as no:
        claim.check_first(MemoryStore("b"), of_stores("a", "b"))
    assert "restore the log with settings that do not have it" in str(no.value)


def test_a_log_that_is_restored_may_have_another_first_store() -> None:
    state = of_stores("a", "b")
    state.adopting = (OTHER,)
    claim.check_first(MemoryStore("b"), state)


@pytest.mark.parametrize("marked", [b"main", b""])
def test_the_single_store_of_a_log_keeps_its_name_when_others_come(marked: bytes) -> None:
    lake = Lives()
    lake.push(1, 2)
    for name, fits in (("main", True), ("a", False)):
        store = MemoryStore(name)
        store.create(keys.marker(INCARNATION), marked)
        if fits:
            claim.check_first(store, lake.state)
            continue
        with pytest.raises(Rejected, match=r"the store of \[store\] is called 'main'"):
            claim.check_first(store, lake.state)


def test_a_store_that_does_not_answer_is_not_taken_for_another() -> None:
    lake = Lives()
    lake.push(1, 2)
    store = FaultyStore("a")
    store.fault = lambda _operation, _key: Unavailable("the store is away")
    claim.check_first(store, lake.state)


def test_a_server_whose_first_store_has_another_name_than_before_writes_nothing() -> None:
    async def test() -> None:
        shared = SharedLog()
        first = server(MemoryStore("a"), shared)
        await first.start()
        await first.stop()
        written = len(shared.records)
        other = MemoryStore("b")
        other.create(keys.marker(Incarnation("01010101")), b"a")
        again = server(other, shared)
        with pytest.raises(Rejected, match="first store of this log is 'a'"):
            await again.start()
        await again.stop()
        assert len(shared.records) == written

    run(test())


# ── the first snapshot ─────────────────────────────────────────────────────────────────────────


def test_a_new_log_has_its_first_snapshot_within_a_minute_and_no_other_before_one_is_due() -> None:
    async def test() -> None:
        store, shared = MemoryStore(), SharedLog()
        now, asked_s = asyncio.get_running_loop().time, []

        async def take() -> int:
            asked_s.append(now())
            return await snapshot.make(MemoryLog(shared), store)

        service = server(store, shared, take=take)
        await service.start()
        await service.replica()
        began_s = now()
        await asyncio.sleep(3600)
        (first_s,) = asked_s
        assert 9 <= first_s - began_s <= 60
        assert len(snapshot.list_snapshots(store)) == 1
        await service.stop()

    run_virtually(test())


def test_a_log_that_ends_in_order_leaves_a_snapshot_if_there_is_none() -> None:
    async def test() -> None:
        store, shared = MemoryStore(), SharedLog()
        first = server(store, shared)
        await first.start()
        index = (await first.replica()).index
        await first.stop()
        ((at, key),) = snapshot.list_snapshots(store)
        assert at >= index
        again = server(store, shared)
        await again.start()
        await again.stop()
        assert key in [key for _, key in snapshot.list_snapshots(store)]

    run(test())


# ── a log that left no snapshot ────────────────────────────────────────────────────────────────


def lost() -> Lives:
    """Merged and not merged, replaced and still there, attempted and never completed."""
    lake = Lives()
    lake.pass_time(10**9)
    lake.merge([lake.push(1, 2), lake.push(3)])
    lake.pass_time(10**9)
    attempted = lake.schedule([lake.push(4), lake.push(5)])
    lake.write(attempted, lake.lease(attempted))
    lake.push(6)
    lake.upload([7])  # never announced: it may come back, or not
    return lake


def test_a_log_begins_again_from_the_objects_in_the_store_alone() -> None:
    lake = lost()
    names = [keys.segment_name(info.key) for info in lake.store.list(keys.SEGMENTS)]
    newest = max(block_time_ns(name.block) for name in names if name)
    before = lake.state.index
    shown = lake.visible_profiles()

    lake.lose_all()

    assert lake.state.adopting == (INCARNATION,)
    assert lake.state.lease_time == newest, "no name that was given is given again"
    assert lake.state.index > before
    assert lake.state.registration_floor < 0, "what is in the store is above the floor"
    assert "give them again" in lake.state.hold.why, "nobody knows how long tenants keep theirs"
    lake.adopt()
    assert lake.adoption.blocked == ()
    assert lake.visible_profiles() >= shown
    lake.merge([meta for meta in lake.live() if meta.kind is Kind.SEGMENT])
    for _ in range(3):
        lake.pass_time(SMALL.retire_delay_ns + 1)
        lake.clean()
    assert lake.visible_profiles() >= shown, "and merging and cleaning go on"


def test_letters_are_delivered_held_ones_too() -> None:
    lake = lost()
    waiting, held = lake.upload([8]), lake.upload([9])
    lake.store.create(
        keys.dead_letter(incarnation=INCARNATION, block=waiting.id), dead_letter.encode(waiting)
    )
    lake.store.create(
        keys.held_letter(incarnation=INCARNATION, name=f"{held.id}.msgpack"),
        dead_letter.encode(held),
    )
    lake.store.create(keys.held_letter(incarnation=INCARNATION, name="what.msgpack"), b"is this")
    lake.lose_all()
    lake.adopt()
    shown = {number for meta in (waiting, held) for number in lake.profiles_in(meta)}
    assert shown <= lake.visible_profiles()
    left = [info.key for info in lake.store.list(keys.DEAD_LETTERS)]
    assert left == [keys.held_letter(incarnation=INCARNATION, name="what.msgpack")]


def test_lives_that_were_restored_as_one_another_are_one_log() -> None:
    store = lost().store
    store.create(keys.segment(shard=Shard(1), block=BLOCK, incarnation=OTHER), b"")
    with pytest.raises(Rejected, match=r"of several logs.*--adopt 0badcafe --adopt feedbeef"):
        traces.origin(store)
    assert traces.origin(store, (OTHER,)).incarnations == (OTHER,)
    with pytest.raises(InvalidInput, match="holds nothing of such a log"):
        traces.origin(store, (Incarnation("12345678"),))
    store.create(keys.successor(INCARNATION), OTHER.encode())
    found = traces.origin(store)
    assert found.incarnations == (OTHER, INCARNATION)
    assert found.state.incarnation == OTHER, "the last of them"


def test_a_store_without_anything_has_nothing_to_restore() -> None:
    store = MemoryStore()
    store.create(keys.CLAIM, b"01010101")
    with pytest.raises(NotFound, match=r"nothing to restore.*begin_anew"):
        traces.origin(store)


def test_names_that_no_log_gave_do_not_move_time_or_index() -> None:
    found = traces.Traces()
    for key in (
        f"segments/v1/shard=1/{'f' * 32}-{INCARNATION}.parquet",
        f"quarantine/v1/tenant=t/{BLOCK}-7.0-{INCARNATION}.{10**30}-a1.parquet",
        f"dlq/v1/{INCARNATION}/{'e' * 32}.msgpack",
    ):
        found.see(key)
    assert (found.lease_time, found.index) == (LeaseTime(10), 7)
    assert found.objects == {INCARNATION: 3}


def test_a_restored_log_leads_in_the_store_of_the_one_that_was_lost(tmp_path: Path) -> None:
    """The claim is the old life's, and stays; broken off anywhere, it is done again."""

    async def test() -> None:
        ours = Logged()
        await ours.begin()
        await ours.add(3)
        ours.store.create(keys.CLAIM, INCARNATION.encode())
        log = MemoryLog(SharedLog())
        origin = traces.origin(ours.store)
        done = await restoring.restore(
            log, ours.store, origin, incarnation=OTHER, adopts=origin.incarnations[1:], wall=WALL
        )
        assert done.adopts == (INCARNATION,)
        leader = server(ours.store, log.shared)
        await leader.start()
        assert (await leader.replica()).incarnation == OTHER
        await leader.stop()
        assert ours.store.read(keys.successor(INCARNATION)) == OTHER.encode()

    run(test())
