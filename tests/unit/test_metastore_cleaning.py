"""Retired blocks go after their time when what replaced them is whole, and not otherwise."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
import pytest

from maar.metastore.fold.deleting import retirement
from maar.metastore.leader.deleting import removals
from maar.metastore.leader.deleting.cleaner import CleanerBounds
from maar.metastore.leader.held_back import REST_NS
from maar.metastore.records.entries import BlocksExpired, PinsTaken
from maar.metastore.replica.timing import TIMING
from maar.model import keys
from maar.model.block import BlockMeta, Kind
from maar.model.errors import NotLeading, Unavailable
from maar.model.ids import FencingToken, PlanId
from maar.model.time import DAY_NS, SECOND_NS, LeaseTime
from support.clock.virtual_time import Gate, run_virtually, until
from support.lake.fold_and_store import Lake, bare_deleter, objects_of, put, with_time
from support.metastore.fold import DAY_START_NS, INCARNATION, SMALL, TENANT, Fold, output, segment
from support.stores.memory_store import MemoryStore


def remove(world: Lake) -> None:
    while run_virtually(world.cleaner.remove()):
        pass


def replaced(world: Lake, *numbers: int) -> tuple[tuple[BlockMeta, ...], BlockMeta]:
    """Segments, and the block that they became some time ago."""
    metas = world.add(*numbers)
    made = world.merge(metas)
    world.pass_time(SMALL.retire_delay_ns + 1)
    return metas, made


def blocked_blocks(world: Lake) -> float | None:
    return world.registry.get_sample_value("maar_metastore_clean_blocked_blocks")


def test_objects_go_when_what_replaced_them_is_there() -> None:
    world = Lake()
    _, made = replaced(world, 1, 2, 3)
    remove(world)
    assert world.objects("segments/") == set()
    assert set(objects_of(made)) <= world.objects()
    assert world.state.retired == {}
    assert world.registry.get_sample_value("maar_metastore_cleaned_blocks_total") == 3


def test_whoever_was_deposed_removes_nothing() -> None:
    """Removals wait for threads: one may get its turn when another leads already."""
    world = Lake()
    replaced(world, 1, 2, 3)
    before = world.objects()
    world.deposed = True
    with pytest.raises(NotLeading):
        run_virtually(world.cleaner.remove())
    assert world.objects() == before
    world.deposed = False
    world.pass_time(REST_NS + 1)
    remove(world)
    assert world.objects("segments/") == set()


def test_a_merged_block_takes_its_manifest_and_intents_along_and_nobody_elses() -> None:
    plan, token = PlanId(7, 0), FencingToken(INCARNATION, 8)
    old = output(plan, token, (segment(1),), profiles=10, attempt="0-3-abc")
    new = output(PlanId(9, 0), FencingToken(INCARNATION, 10), (old,), profiles=10, level=2)
    intents = [
        keys.intent(plan=plan, token=token, attempt=attempt, ordinal=0)
        for attempt in ("0-3-abc", "0-3-abcd")  # the second: another task under the same token
    ]
    store = MemoryStore()
    put(store, old)
    put(store, new)
    for key in intents:
        store.create(key, b"i")
    removal = removals.Removal((old,), (removals.Successor(new),))
    assert removals.carry_out(bare_deleter(store), removal) == ""
    kept = {info.key for info in store.list("")}
    assert kept == {*objects_of(new), intents[1]}


class Mortal(MemoryStore):
    """Dies before a deletion, as the process that asks for it may."""

    deletions = 0

    def delete(self, key: str) -> None:
        if self.deletions == 0:
            raise Unavailable("killed")
        self.deletions -= 1
        super().delete(key)


MANIFEST_TABLES_AND_INTENT = 1 + 5 + 1


@pytest.mark.parametrize("deletions", range(MANIFEST_TABLES_AND_INTENT))
def test_a_deletion_that_is_broken_off_leaves_nothing_that_comes_back(deletions: int) -> None:
    """A log that is made from manifests must not know a block whose tables are going (S5)."""
    world = Lake(store=Mortal())
    (meta,) = world.add(1)
    made = world.merge([meta])
    intents = [info.key for info in world.store.list("attempts/")]
    assert len(intents) == 1
    assert isinstance(world.store, Mortal)
    world.store.deletions = deletions
    with pytest.raises(Unavailable):
        removals.carry_out(bare_deleter(world.store), removals.Removal((made,), ()))
    left = {info.key for info in world.store.list("lake/")}
    manifest = keys.manifest_of(made.files[0].locations[0].key)
    tables = {file.locations[0].key for file in made.files}
    assert manifest not in left or tables <= left
    assert (manifest in left) == (deletions == 0)
    if tables & left:
        assert world.objects("attempts/") == set(intents), "what is left must still be announced"
    world.store.deletions = 100
    assert removals.carry_out(bare_deleter(world.store), removals.Removal((made,), ())) == ""
    assert not world.objects("lake/") | world.objects("attempts/")


def test_a_quarantine_block_that_expired_goes_with_its_intents() -> None:
    plan, token = PlanId(7, 0), FencingToken(INCARNATION, 8)
    made = output(plan, token, (segment(1),), profiles=10, kind=Kind.QUARANTINE)
    stem = keys.stem(block=made.id, plan=plan, token=token, attempt="a1")
    key = keys.quarantine(tenant=TENANT, stem=stem)
    file = msgspec.structs.replace(
        made.files[0],
        locations=(msgspec.structs.replace(made.files[0].locations[0], key=key),),
    )
    made = msgspec.structs.replace(made, files=(file,))
    store = MemoryStore()
    put(store, made)
    store.create(keys.intent(plan=plan, token=token, attempt="a1", ordinal=0), key.encode())
    assert removals.carry_out(bare_deleter(store), removals.Removal((made,), ())) == ""
    assert list(store.list("")) == []


@pytest.mark.parametrize("body", [None, b"short"])
def test_sources_stay_and_an_alarm_is_given_while_an_output_is_missing_or_cut_short(
    body: bytes | None, caplog: pytest.LogCaptureFixture
) -> None:
    world = Lake()
    metas, made = replaced(world, 1, 2, 3)
    key = made.files[0].locations[0].key
    whole = world.store.read(key)
    world.store.delete(key)
    if body is not None:
        world.store.create(key, body)
    for _ in range(3):
        remove(world)
        world.pass_time(REST_NS + 1)
    assert len(world.objects("segments/")) == 3
    assert set(world.state.retired) == {meta.id for meta in metas}
    (sentence,) = world.cleaner.blocked
    assert key in sentence
    assert metas[0].id in sentence
    assert blocked_blocks(world) == 3
    assert [record.levelname for record in caplog.records] == ["ERROR"]  # not every few seconds
    # a person has brought it back
    world.store.delete(key)
    world.store.create(key, whole)
    remove(world)
    assert world.objects("segments/") == set()
    assert world.cleaner.blocked == ()
    assert blocked_blocks(world) == 0


def test_what_has_to_stay_holds_up_nobody_else() -> None:
    world = Lake(bounds=CleanerBounds(removed_at_once=3))
    _, made = replaced(world, 1, 2, 3)
    replaced(world, 11, 12, 13)
    world.store.delete(made.files[0].locations[0].key)
    for _ in range(2):
        remove(world)
    assert len(world.state.retired) == 3
    assert len(world.objects("segments/")) == 3


def test_what_replaced_blocks_that_have_to_stay_does_not_hold_up_others() -> None:
    """It stays for them, and there may be more of it than is looked at in one go."""
    world = Lake(bounds=CleanerBounds(removed_at_once=3))
    made = [replaced(world, n)[1] for n in range(4)]
    merged = world.merge(made)
    for meta in (*made, merged):
        world.store.delete(objects_of(meta)[0])
    replaced(world, 10, 11, 12)
    for _ in range(4):
        remove(world)
    assert len(world.objects("segments/")) == 4
    assert len(world.state.retired) == 8


def test_past_a_bound_nothing_more_is_passed_by() -> None:
    world = Lake(bounds=CleanerBounds(removed_at_once=3, held_max=3))
    lost = [replaced(world, n, n + 1, n + 2)[1] for n in (1, 11, 21)]
    for made in lost:
        world.store.delete(made.files[0].locations[0].key)
    for _ in range(4):
        remove(world)
    assert len(world.cleaner.blocked) == 1
    assert blocked_blocks(world) == 3


def test_a_store_that_does_not_answer_postpones_the_part(monkeypatch: pytest.MonkeyPatch) -> None:
    world = Lake()
    replaced(world, 1, 2, 3)

    def down(_: str) -> None:
        raise Unavailable("no answer")

    with monkeypatch.context() as broken:
        broken.setattr(world.store, "delete", down)
        with pytest.raises(Unavailable):
            remove(world)
    assert len(world.state.retired) == 3
    assert "no answer" in world.cleaner.blocked[0]
    world.pass_time(REST_NS + 1)
    remove(world)
    assert world.state.retired == {}
    assert world.cleaner.blocked == ()


def test_copies_in_another_store_are_not_ours_to_delete() -> None:
    world = Lake(store=MemoryStore("other"))
    replaced(world, 1, 2, 3)
    remove(world)
    assert len(world.objects("segments/")) == 3
    assert "'main'" in world.cleaner.blocked[0]


def test_expired_blocks_have_no_successors_to_wait_for() -> None:
    world = Lake()
    old_ns = DAY_START_NS - SMALL.retention_ns - DAY_NS
    metas = tuple(with_time(segment(n), old_ns) for n in (1, 2, 3))
    world.register(*metas)
    world.fold.put(BlocksExpired(old_ns + 1, tuple(m.id for m in metas)))
    world.pass_time(SMALL.expired_delay_ns + 1)
    (removal,) = removals.due(world.state, now=world.now(), limit=10)
    assert (len(removal.blocks), removal.successors) == (3, ())
    remove(world)
    assert world.objects() == set()


def test_what_replaced_a_block_does_not_go_while_that_block_is_looked_after() -> None:
    world = Lake()
    firsts = [world.merge(world.add(n, n + 1, n + 2)) for n in (1, 11)]
    world.merge(tuple(firsts))
    world.pass_time(SMALL.retire_delay_ns + 1)
    work = removals.due(world.state, now=world.now(), limit=100)
    found = [
        removals.carry_out(bare_deleter(world.store), one) for one in reversed(work)
    ]  # threads have no order
    assert found == ["", ""]
    for _ in range(2):
        remove(world)
    assert world.state.retired == {}
    assert world.cleaner.blocked == ()


def test_resting_blocks_are_passed_by() -> None:
    world = Lake()
    metas, _ = replaced(world, 1, 2, 3)
    found = retirement.due(world.state, now=world.now(), limit=1, resting={metas[0].id})
    assert found == [metas[1].id]


def test_pins_are_dropped_from_the_one_renewed_longest_ago() -> None:
    fold = Fold()
    for reader, end in (("a", 10), ("b", 20), ("a", 30)):
        fold.put(PinsTaken((reader,), LeaseTime(end)))
    assert list(fold.state.pins) == ["b", "a"]
    assert retirement.expired_pins(fold.state, LeaseTime(20)) == ()
    assert retirement.expired_pins(fold.state, LeaseTime(21)) == ("b",)
    assert retirement.expired_pins(fold.state, LeaseTime(31)) == ("b", "a")


# ── the parts side by side ─────────────────────────────────────────────────────────────────────


def test_a_part_that_breaks_stops_neither_itself_nor_the_others(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    world = Lake(msgspec.structs.replace(SMALL, leftovers_ns=SECOND_NS, retention_ns=DAY_NS))
    broken = {"sweeps": 0}

    def breaks(*_: Any, **__: Any) -> Any:
        broken["sweeps"] += 1
        raise ZeroDivisionError

    monkeypatch.setattr("maar.metastore.fold.plans.leftovers.due", breaks)

    async def test() -> None:
        parts = asyncio.create_task(world.cleaner.forever())
        replaced(world, 1, 2, 3)
        await until(lambda: not world.state.retired and broken["sweeps"] >= 3)
        world.pass_time(2 * DAY_NS)
        await until(lambda: not len(world.state.blocks))
        parts.cancel()
        await asyncio.gather(parts, return_exceptions=True)
        assert parts.cancelled()

    run_virtually(test())
    assert any(record.exc_info for record in caplog.records)


def test_a_store_that_hangs_holds_up_neither_sweeps_nor_retention() -> None:
    released = Gate()

    class Hanging(MemoryStore):
        def delete(self, key: str) -> None:
            if key.startswith("segments/"):
                released.wait()
            super().delete(key)

    policy = msgspec.structs.replace(SMALL, leftovers_ns=SECOND_NS, retention_ns=DAY_NS)
    world = Lake(policy, Hanging())

    async def test() -> None:
        for first in range(0, 30, 3):
            replaced(world, first, first + 1, first + 2)
        parts = asyncio.create_task(world.cleaner.forever())
        await until(lambda: not world.state.leftovers)
        world.pass_time(2 * DAY_NS)
        await until(lambda: not len(world.state.blocks))
        assert len(world.objects("segments/")) == 30
        parts.cancel()
        await asyncio.gather(parts, return_exceptions=True)

    try:
        run_virtually(test())
    finally:
        released.set()


def test_retention_runs_once_a_minute_though_there_is_more() -> None:
    policy = msgspec.structs.replace(
        SMALL, retention_ns=DAY_NS, retention_run_max=2, retire_delay_ns=10**18
    )
    world = Lake(policy)
    world.add(*range(6))
    world.pass_time(2 * DAY_NS)

    async def test() -> None:
        parts = asyncio.create_task(world.cleaner.forever())
        for left in (4, 2, 0):
            await until(lambda left=left: len(world.state.blocks) <= left)  # type: ignore[misc]
            await asyncio.sleep(600)  # however often the part looks
            assert len(world.state.blocks) == left
            world.pass_time(TIMING.expire_ns)
        parts.cancel()
        await asyncio.gather(parts, return_exceptions=True)

    run_virtually(test())


def test_a_status_tells_a_bounded_number_of_troubles() -> None:
    world = Lake(bounds=CleanerBounds(told_max=2))
    for first in range(10, 60, 10):
        _, made = replaced(world, first, first + 1)
        world.store.delete(made.files[0].locations[0].key)
    remove(world)
    assert blocked_blocks(world) == 10
    assert len(world.cleaner.blocked) == 2


def test_whoever_holds_up_removal_finds_none_under_way() -> None:
    """Giving up a block brings back what it had replaced: never while that is being deleted."""
    deleting, released = Gate(), Gate()

    class Slow(MemoryStore):
        def delete(self, key: str) -> None:
            deleting.set()
            released.wait()
            super().delete(key)

    async def test() -> None:
        world = Lake(store=Slow())
        replaced(world, 1, 2)
        removing = asyncio.create_task(world.cleaner.remove())
        await asyncio.to_thread(deleting.wait)
        held = asyncio.create_task(world.cleaner.removal.acquire())
        await asyncio.sleep(0)
        assert not held.done()
        released.set()
        await held
        assert world.state.retired == {}, "the deletion has ended, and the log knows"
        world.cleaner.removal.release()
        await removing

    run_virtually(test())
