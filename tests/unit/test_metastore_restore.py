"""A restored log goes on from a backup or a snapshot; an empty one begins only on purpose."""

from __future__ import annotations

from pathlib import Path

import pytest

from maar.app.roles.marker import check_not_ended
from maar.metastore.decide.schedule import Wish, assign
from maar.metastore.records.entries import (
    PlansLeased,
)
from maar.metastore.recovery import backup, restoring
from maar.metastore.recovery.restoring import LIFE, Origin
from maar.model import keys
from maar.model.errors import (
    Corrupt,
    InvalidInput,
    NotFound,
    Rejected,
    Unavailable,
)
from maar.model.ids import Incarnation, WorkerId
from maar.model.time import LeaseTime, WallTime
from maar.ports.metastore.log import Candidate, Head
from support.clock.virtual_time import run_virtually
from support.metastore.fold import INCARNATION
from support.metastore.logged import Logged, fold_log
from support.metastore.memory_log import MemoryLog, SharedLog
from support.metastore.operations import NEW, WALL, new_log, replica, restore_into_new, run
from support.stores.memory_store import MemoryStore


def test_a_restored_log_has_a_new_life_far_above_the_old_one() -> None:
    async def test() -> None:
        ours = await new_log()
        for entry in assign(ours.state, [Wish(WorkerId("w"), 1)], now=LeaseTime(ours.now + 10**12)):
            await ours.append(entry)
        assert isinstance(entry, PlansLeased)
        old = ours.replica.head.index
        await ours.snapshot()
        await ours.add(5)  # these are lost
        log, done = await restore_into_new(ours)
        replica = await fold_log(log, ours.store)
        assert replica.state.incarnation == done.incarnation == NEW
        assert replica.state.adopting == done.adopts == (INCARNATION,)
        assert replica.head.index == done.head > old + LIFE
        assert len(replica.state.blocks) == 3
        assert not replica.state.plans
        term = await log.campaign(Candidate("next"))
        assert term > replica.state.term > ours.term

    run(test())


def test_a_backup_is_restored_with_everything_behind_its_snapshot(tmp_path: Path) -> None:
    async def test() -> None:
        ours = await new_log()
        await ours.snapshot()
        await ours.add(2)
        await backup.write(ours.log, ours.store, tmp_path / "b", wall_ns=0)
        content = await backup.read(tmp_path / "b")
        origin = Origin(content.state, content.head, "b")
        log, _ = await restore_into_new(ours, origin=origin)
        assert len((await fold_log(log, ours.store)).state.blocks) == 5

    run(test())


def test_a_damaged_snapshot_is_passed_by_and_a_named_one_is_taken() -> None:
    async def test() -> None:
        ours = await new_log()
        first = await ours.snapshot()
        await ours.add()
        second = await ours.snapshot()
        key = keys.snapshot(incarnation=INCARNATION, index=second)
        good = ours.store.read(key)
        assert (await restoring.newest(ours.store)).head.index == second
        older = keys.snapshot(incarnation=INCARNATION, index=first)
        assert (await restoring.newest(ours.store, older)).head.index == first
        ours.store.delete(key)
        ours.store.create(key, good[:-1] + b"x")
        assert (await restoring.newest(ours.store)).head.index == first
        with pytest.raises(Corrupt):
            await restoring.newest(ours.store, key)
        with pytest.raises(NotFound, match="has no snapshot nowhere"):
            await restoring.newest(ours.store, "nowhere")
        with pytest.raises(NotFound, match="no good snapshot"):
            await restoring.newest(MemoryStore())

    run(test())


def test_a_log_that_holds_something_is_not_restored_into() -> None:
    async def test() -> None:
        ours = await new_log()
        await ours.snapshot()
        before = ours.shared.head
        with pytest.raises(Rejected, match="not empty"):
            await restore_into_new(ours, log=ours.log)
        assert ours.shared.head == before
        log, _ = await restore_into_new(ours)
        with pytest.raises(Rejected, match="not empty"):
            await restore_into_new(ours, log=log, incarnation=Incarnation("00000003"))

    run(test())


def test_a_restore_that_was_broken_off_is_finished_by_the_next() -> None:
    async def test() -> None:
        ours = await new_log()
        await ours.snapshot()
        log = MemoryLog(SharedLog())

        async def broken() -> None:
            raise Unavailable("cut")

        whole, log.finish = log.finish, broken  # type: ignore[method-assign]
        with pytest.raises(Unavailable):
            await restore_into_new(ours, log=log)
        with pytest.raises(Rejected, match="copied into"):
            await log.campaign(Candidate("too early"))
        log.finish = whole  # type: ignore[method-assign]
        _, done = await restore_into_new(ours, log=log, incarnation=Incarnation("00000003"))
        assert done.resumed
        assert done.incarnation == NEW
        await log.campaign(Candidate("now"))

    run(test())


def test_a_log_that_is_lost_again_adopts_from_both_lives() -> None:
    """Even when the second life never came to make a snapshot of its own."""

    async def test() -> None:
        ours = await new_log()
        await ours.snapshot()
        await restore_into_new(ours)
        third = Incarnation("00000003")
        log, done = await restore_into_new(ours, incarnation=third)
        assert set(done.adopts) == {INCARNATION, NEW}
        assert (await fold_log(log, ours.store)).head.index > 3 * LIFE

    run(test())


def test_a_log_that_was_restored_already_says_so_and_its_old_life_has_ended() -> None:
    async def test() -> None:
        ours = await new_log()
        await ours.snapshot()
        log, _ = await restore_into_new(ours)
        ours.store.delete(keys.successor(INCARNATION))  # as if it had been broken off before
        with pytest.raises(Rejected, match="restored already, as 00000002"):
            await restore_into_new(ours, log=log, incarnation=Incarnation("00000003"))
        assert ours.store.read(keys.successor(INCARNATION)) == NEW.encode()

    run(test())


def test_the_old_life_learns_that_it_was_restored_elsewhere() -> None:
    async def test() -> None:
        ours = await new_log()
        await ours.snapshot()
        check_not_ended(ours.store, INCARNATION)
        await restore_into_new(ours)
        with pytest.raises(InvalidInput, match="it was restored as 00000002"):
            check_not_ended(ours.store, INCARNATION)
        check_not_ended(ours.store, NEW)

    run(test())


def test_a_backup_that_is_restored_twice_does_not_use_indexes_twice(tmp_path: Path) -> None:
    """Plans and blocks are named by them, and the second life may adopt from the first."""

    async def test() -> None:
        ours = await new_log()
        await ours.snapshot()
        await backup.write(ours.log, ours.store, tmp_path / "b", wall_ns=0)
        heads = []
        for life in ("00000002", "00000003"):
            content = await backup.read(tmp_path / "b")
            origin = Origin(content.state, content.head, "b")
            _, done = await restore_into_new(ours, origin=origin, incarnation=Incarnation(life))
            heads.append(done.head)
        assert heads[1] > heads[0] + LIFE

    run(test())


def test_the_newest_snapshot_is_the_last_one_by_time_not_by_index() -> None:
    """A rehearsed restore has high indexes, and the log itself may have gone on since."""

    async def test() -> None:
        ours = await new_log()
        await ours.snapshot()
        await restore_into_new(ours, wall=WallTime(ours.wall + 1))
        assert (await restoring.newest(ours.store)).state.incarnation == NEW
        ours.now += 10
        await ours.add()
        index = await ours.snapshot()
        found = await restoring.newest(ours.store)
        assert (found.state.incarnation, found.head.index) == (INCARNATION, index)

    run(test())


def test_an_empty_log_over_a_used_store_begins_only_on_purpose() -> None:
    async def test() -> None:
        ours = await new_log()
        index = await ours.snapshot()
        stopped = replica(ours.store)
        with pytest.raises(Rejected, match=rf"snapshots of log 0badcafe \(to entry {index}\)"):
            await stopped.start()
        status = await stopped.replica()
        assert (status.standing, status.index) == ("stopped", 0)
        for way_out in ("maar metastore restore", "--log", "metastore.begin_anew = true"):
            assert way_out in stopped.ready()
        await stopped.stop()

        anew = replica(ours.store, begin_anew=True)
        await anew.start()
        assert anew.ready() == ""
        assert (await anew.replica()).incarnation == "07070707"
        await anew.stop()

    run(test())


def test_an_empty_log_over_an_empty_store_just_begins() -> None:
    async def test() -> None:
        first = replica(MemoryStore())
        await first.start()
        assert first.ready() == ""
        await first.stop()

    run(test())


def test_the_wrong_store_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    async def test() -> None:
        ours = await new_log()
        await backup.write(ours.log, ours.store, tmp_path / "b", wall_ns=0)
        content = await backup.read(tmp_path / "b")
        other, log = MemoryStore(), MemoryLog(SharedLog())
        with pytest.raises(InvalidInput, match="is not the store of this log"):
            await restoring.restore(
                log,
                other,
                Origin(content.state, content.head, "b"),
                incarnation=NEW,
                wall=WALL,
            )
        assert not list(other.list(""))
        assert (await log.head()).index == 0

    run(test())


def test_other_logs_that_use_the_store_are_named() -> None:
    async def test() -> None:
        ours = await new_log()
        ours.store.create(keys.marker(Incarnation("feedbeef")), b"")
        assert restoring.other_incarnations(ours.store, ours.state) == ("feedbeef",)

    run(test())


def test_a_log_that_never_began_cannot_be_restored() -> None:
    ours = Logged()
    with pytest.raises(Rejected, match="never began"):
        run_virtually(
            restoring.begin_restored(
                Origin(ours.state, Head(0, bytes(32)), "nothing"), incarnation=NEW, wall=WALL
            )
        )
