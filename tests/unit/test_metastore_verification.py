"""What is wrong with a log, its snapshots, its objects or its replicas is reported by name."""

from __future__ import annotations

import pytest

from maar.metastore.records.entries import (
    StateHashed,
    encode,
    encode_entry,
)
from maar.metastore.recovery.verify import compare_replicas, verify
from maar.metastore.replica import snapshot
from maar.metastore.state.digest import digest
from maar.model import keys
from maar.model.ids import Incarnation
from maar.model.time import LeaseTime
from maar.ports.metastore.log import Record
from maar.ports.metastore.replica import ReplicaStatus
from support.lake.fold_and_store import objects_of
from support.metastore.fold import INCARNATION
from support.metastore.operations import new_log, restore_into_new, run


def test_nothing_is_wrong_with_a_good_log() -> None:
    async def test() -> None:
        ours = await new_log()
        await ours.snapshot()
        await ours.add(2)
        await ours.hash()
        await ours.snapshot()
        await ours.add()
        found = await verify(ours.log, ours.store, objects=True)
        assert found.wrong == []
        assert (found.first, found.head) == (1, ours.replica.head.index)
        assert found.digest == digest(ours.state)
        assert list(found.snapshots.values()) == ["", ""]
        assert (found.blocks, found.objects, len(found.hashes)) == (6, 6, 1)

    run(test())


def test_damaged_snapshots_are_told_and_named() -> None:
    async def test() -> None:
        ours = await new_log()
        await ours.snapshot()
        await ours.add()
        key = keys.snapshot(incarnation=INCARNATION, index=await ours.snapshot())
        body = ours.store.read(key)
        ours.store.delete(key)
        ours.store.create(key, body[:50] + b"?" + body[51:])
        found = await verify(ours.log, ours.store)
        assert len(found.wrong) == 1
        assert key in found.wrong[0]
        assert found.digest == digest(ours.state)

    run(test())


def test_what_is_damaged_of_another_log_is_told_and_not_wrong_with_this_one() -> None:
    async def test() -> None:
        ours = await new_log()
        await ours.snapshot()
        key = keys.snapshot(incarnation=Incarnation("feedbeef"), index=10**12)
        ours.store.create(key, b"rot")
        found = await verify(ours.log, ours.store)
        assert found.wrong == []
        assert [key in sentence for sentence in found.elsewhere] == [True]
        assert found.snapshots[key]

    run(test())


def test_a_snapshot_of_another_state_than_the_log_folds_to_is_told() -> None:
    async def test() -> None:
        ours = await new_log()
        await ours.snapshot()
        await ours.add()
        ours.state.tally.profiles_added += 1
        key = keys.snapshot(incarnation=INCARNATION, index=ours.state.index)
        ours.store.create(key, snapshot.encode(ours.state, ours.replica.head))
        found = await verify(ours.log, ours.store)
        assert [key in sentence for sentence in found.wrong] == [True]
        assert found.snapshots[key] == "it differs from what replaying the log gives"

    run(test())


def test_an_entry_that_is_not_what_was_written_is_told() -> None:
    async def test() -> None:
        ours = await new_log()
        at = ours.shared.records[-2]
        ours.shared.records[-2] = Record(at.index, at.term, at.body + b"!", at.hash)
        found = await verify(ours.log, ours.store)
        assert f"entry {at.index} of the log is not what was written" in found.wrong[0]

    run(test())


@pytest.mark.parametrize("replica", ["", "two"])
def test_a_hash_that_the_log_does_not_fold_to_is_told(replica: str) -> None:
    async def test() -> None:
        ours = await new_log()
        at = ours.state.index
        if replica:
            await ours.hash()
        wrong = StateHashed(at, bytes(32), replica)
        body = encode(ours.state.version, LeaseTime(ours.now), ours.wall, encode_entry(wrong))
        await ours.log.append([body], term=ours.term, head=ours.replica.head)
        found = await verify(ours.log, ours.store)
        assert [f"at entry {at}" in sentence for sentence in found.wrong] == [True]

    run(test())


def test_missing_and_short_objects_are_told_when_they_are_looked_for() -> None:
    async def test() -> None:
        ours = await new_log()
        one, two, _ = (ours.state.blocks.get(block) for block in ours.state.blocks.where)
        ours.store.delete(objects_of(one)[0])
        ours.store.delete(objects_of(two)[0])
        ours.store.create(objects_of(two)[0], b"short")
        assert (await verify(ours.log, ours.store)).wrong == []
        found = await verify(ours.log, ours.store, objects=True)
        assert sorted(one.id in sentence for sentence in found.wrong) == [False, True]
        assert any("of another size" in sentence for sentence in found.wrong)

    run(test())


def test_a_log_that_cannot_be_folded_is_told() -> None:
    async def test() -> None:
        ours = await new_log()
        index = await ours.snapshot()
        await ours.add()
        await ours.truncate(index + 1)
        ours.store.delete(keys.snapshot(incarnation=INCARNATION, index=index))
        found = await verify(ours.log, ours.store)
        assert "it cannot be replayed" in found.wrong[0]

    run(test())


def test_replicas_that_hold_another_state_or_stopped_are_told() -> None:
    async def test() -> None:
        ours = await new_log()
        at = ours.state.index
        same = digest(ours.state)
        await ours.hash()
        found = await verify(ours.log, ours.store)
        one = ReplicaStatus("one", "a:1", "leader", hashed_at=at, digest=same)
        two = ReplicaStatus("two", "b:1", "follower", hashed_at=at, digest=bytes(32))
        three = ReplicaStatus("three", "c:1", "stopped", hashed_at=at, fault="the log has a gap")
        compare_replicas(found, [one, two, three])
        assert ["two" in found.wrong[0], "three" in found.wrong[1]] == [True, True]
        assert len(found.wrong) == 2

    run(test())


def test_a_restored_log_is_said_to_adopt() -> None:
    async def test() -> None:
        ours = await new_log()
        await ours.snapshot()
        log, _ = await restore_into_new(ours)
        found = await verify(log, ours.store)
        assert found.adopting
        assert found.wrong == []

    run(test())
