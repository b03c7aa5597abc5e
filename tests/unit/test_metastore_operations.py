"""Backup, restore, migration, verification: what is wrong is found, what is good comes through."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Callable, Coroutine, Sequence
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from maar.app.roles.marker import check_not_ended
from maar.metastore.decide.schedule import Wish, assign
from maar.metastore.records.entries import (
    VERSION,
    BlocksAdded,
    PlansLeased,
    StateHashed,
    Stored,
    Tick,
    encode,
    encode_entry,
)
from maar.metastore.recovery import backup, copying, restoring
from maar.metastore.recovery.restoring import LIFE, Origin
from maar.metastore.recovery.verify import compare_replicas, verify
from maar.metastore.replica import snapshot
from maar.metastore.service import MetastoreService
from maar.metastore.state.digest import digest
from maar.model import keys
from maar.model.errors import (
    AlreadyExists,
    Corrupt,
    InvalidInput,
    NotFound,
    Rejected,
    Unavailable,
)
from maar.model.ids import Incarnation, WorkerId
from maar.model.time import LeaseTime, WallTime
from maar.ports.log import Candidate, Head, Record, Term
from maar.ports.metastore import ReplicaStatus
from support.clock.fake_clock import FakeClock
from support.lake.fold_and_store import objects_of
from support.metastore.fold import INCARNATION, SMALL, segment
from support.metastore.logged import Logged, folded
from support.metastore.memory_log import MemoryLog, SharedLog
from support.stores.memory_store import MemoryStore

NEW = Incarnation("00000002")
WALL = WallTime(1_800_000_000_000_000_000)

Test = Callable[..., Coroutine[Any, Any, None]]


def run(test: Coroutine[Any, Any, None]) -> None:
    asyncio.run(test)


async def logged(*, entries: int = 3, version: int = 4) -> Logged:
    found = Logged()
    await found.begin(version)
    await found.add(entries)
    return found


# ── backup ─────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("with_snapshot", [False, True])
def test_a_backup_holds_the_whole_state(tmp_path: Path, with_snapshot: bool) -> None:
    async def test() -> None:
        ours = await logged()
        if with_snapshot:
            await ours.snapshot()
        await ours.add(4)
        await ours.hash()
        path = tmp_path / "meta.backup"
        made = await backup.write(ours.log, ours.store, path, wall_ns=7)
        found = await backup.read(path)
        assert digest(found.state) == digest(ours.state) == digest(made.state)
        assert found.head == made.head == ours.replica.head
        assert found.wall_ns == 7
        assert (found.entries, found.snapshot_index) == (made.entries, made.snapshot_index)
        assert bool(found.snapshot_index) is with_snapshot
        assert list(tmp_path.iterdir()) == [path]

    run(test())


def test_a_backup_holds_entries_that_are_too_large_for_the_log(tmp_path: Path) -> None:
    async def test() -> None:
        ours = await logged()
        body = encode_entry(BlocksAdded(tuple(segment(n) for n in range(100, 110))))
        key = keys.stored_entry(
            incarnation=INCARNATION,
            index=ours.state.index + 1,
            sha256=hashlib.sha256(body).digest(),
        )
        ours.store.create(key, body)
        where = encode_entry(Stored(key, len(body), hashlib.sha256(body).digest()))
        await ours.append_bodies([encode(ours.state.version, LeaseTime(1), ours.wall, where)])
        assert len(ours.state.blocks) == 13
        await backup.write(ours.log, ours.store, tmp_path / "b", wall_ns=0)
        ours.store.delete(key)
        assert digest((await backup.read(tmp_path / "b")).state) == digest(ours.state)

    run(test())


def test_every_flipped_or_missing_byte_of_a_backup_is_found(tmp_path: Path) -> None:
    async def test() -> None:
        ours = await logged()
        await ours.snapshot()
        await ours.add()
        path = tmp_path / "b"
        await backup.write(ours.log, ours.store, path, wall_ns=0)
        good = path.read_bytes()
        for at in range(0, len(good), max(1, len(good) // 60)):
            flipped = bytearray(good)
            flipped[at] ^= 4
            for bad in (bytes(flipped), good[:at], good + b"x"):
                path.write_bytes(bad)
                with pytest.raises(Corrupt):
                    await backup.read(path)
        path.write_bytes(good)
        await backup.read(path)

    run(test())


def test_a_backup_of_a_newer_program_is_refused_with_a_sentence(tmp_path: Path) -> None:
    path = tmp_path / "b"
    with path.open("wb") as file:
        writer = backup._Writer(file)
        writer.add(backup.Opening(backup.VERSION + 1, 0))
        writer.end()
    with pytest.raises(Rejected, match="newer maar"):
        asyncio.run(backup.read(path))


def test_a_backup_never_replaces_a_file_and_leaves_no_half_of_one(tmp_path: Path) -> None:
    async def test() -> None:
        ours = await logged()
        path = tmp_path / "b"
        path.write_text("precious")
        with pytest.raises(AlreadyExists):
            await backup.write(ours.log, ours.store, path, wall_ns=0)
        assert path.read_text() == "precious"
        ours.log.cut = True
        with pytest.raises(Unavailable):
            await backup.write(ours.log, ours.store, tmp_path / "c", wall_ns=0)
        assert list(tmp_path.iterdir()) == [path]
        with pytest.raises(InvalidInput, match="cannot be written"):
            await backup.write(ours.log, ours.store, tmp_path / "none" / "c", wall_ns=0)
        with pytest.raises(InvalidInput, match="cannot be read"):
            await backup.read(tmp_path / "none")

    run(test())


def test_a_log_that_is_truncated_meanwhile_is_read_again_from_a_newer_snapshot(
    tmp_path: Path,
) -> None:
    async def test() -> None:
        ours = await logged()
        await ours.snapshot()
        await ours.add(3)
        read = ours.log.read
        done = False

        async def truncated_once(*, after: int, limit_bytes: int = 1 << 20) -> list[Record]:
            nonlocal done
            if not done and limit_bytes > 1:
                done = True
                index = await ours.snapshot()
                await ours.truncate(index + 1)
            return await read(after=after, limit_bytes=limit_bytes)

        await ours.add(1)
        ours.log.read = truncated_once  # type: ignore[method-assign]
        made = await backup.write(ours.log, ours.store, tmp_path / "b", wall_ns=0)
        assert done
        assert made.head == ours.replica.head
        assert digest((await backup.read(tmp_path / "b")).state) == digest(ours.state)

    run(test())


def test_no_backup_is_made_of_a_state_that_the_leader_did_not_share(tmp_path: Path) -> None:
    async def test() -> None:
        ours = await logged()
        wrong = StateHashed(ours.state.index, bytes(32))
        body = encode(ours.state.version, LeaseTime(ours.now), ours.wall, encode_entry(wrong))
        await ours.log.append([body], term=ours.term, head=ours.replica.head)
        with pytest.raises(Corrupt, match="in doubt"):
            await backup.write(ours.log, ours.store, tmp_path / "b", wall_ns=0)
        assert not list(tmp_path.iterdir())

    run(test())


# ── restore ────────────────────────────────────────────────────────────────────────────────────


async def restored(ours: Logged, **how: Any) -> tuple[MemoryLog, restoring.Restored]:
    origin = how.pop("origin", None) or await restoring.newest(ours.store)
    log = how.pop("log", None) or MemoryLog(SharedLog())
    done = await restoring.restore(
        log, ours.store, origin, **{"incarnation": NEW, "wall": WALL, **how}
    )
    return log, done


def test_a_restored_log_has_a_new_life_far_above_the_old_one() -> None:
    async def test() -> None:
        ours = await logged()
        for entry in assign(ours.state, [Wish(WorkerId("w"), 1)], now=LeaseTime(ours.now + 10**12)):
            await ours.append(entry)
        assert isinstance(entry, PlansLeased)
        old = ours.replica.head.index
        await ours.snapshot()
        await ours.add(5)  # these are lost
        log, done = await restored(ours)
        replica = await folded(log, ours.store)
        assert replica.state.incarnation == done.incarnation == NEW
        assert replica.state.adopting == done.adopts == (INCARNATION,)
        assert replica.head.index == done.head > old + LIFE
        assert len(replica.state.blocks) == 3
        assert not replica.state.plans
        term = await log.campaign(Candidate("next"))
        assert term > replica.state.term > ours.term

    run(test())


def test_a_log_of_an_older_version_is_restored_at_this_one() -> None:
    async def test() -> None:
        ours = await logged(version=3)
        await ours.snapshot()
        log, _ = await restored(ours)
        replica = await folded(log, ours.store)
        assert replica.state.version == VERSION
        assert replica.state.adopting

    run(test())


def test_a_backup_is_restored_with_everything_behind_its_snapshot(tmp_path: Path) -> None:
    async def test() -> None:
        ours = await logged()
        await ours.snapshot()
        await ours.add(2)
        await backup.write(ours.log, ours.store, tmp_path / "b", wall_ns=0)
        content = await backup.read(tmp_path / "b")
        origin = Origin(content.state, content.head, "b")
        log, _ = await restored(ours, origin=origin)
        assert len((await folded(log, ours.store)).state.blocks) == 5

    run(test())


def test_a_damaged_snapshot_is_passed_by_and_a_named_one_is_taken() -> None:
    async def test() -> None:
        ours = await logged()
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
        ours = await logged()
        await ours.snapshot()
        before = ours.shared.head
        with pytest.raises(Rejected, match="not empty"):
            await restored(ours, log=ours.log)
        assert ours.shared.head == before
        log, _ = await restored(ours)
        with pytest.raises(Rejected, match="not empty"):
            await restored(ours, log=log, incarnation=Incarnation("00000003"))

    run(test())


def test_a_restore_that_was_broken_off_is_finished_by_the_next() -> None:
    async def test() -> None:
        ours = await logged()
        await ours.snapshot()
        log = MemoryLog(SharedLog())

        async def broken() -> None:
            raise Unavailable("cut")

        whole, log.finish = log.finish, broken  # type: ignore[method-assign]
        with pytest.raises(Unavailable):
            await restored(ours, log=log)
        with pytest.raises(Rejected, match="copied into"):
            await log.campaign(Candidate("too early"))
        log.finish = whole  # type: ignore[method-assign]
        _, done = await restored(ours, log=log, incarnation=Incarnation("00000003"))
        assert done.resumed
        assert done.incarnation == NEW
        await log.campaign(Candidate("now"))

    run(test())


def test_a_log_that_is_lost_again_adopts_from_both_lives() -> None:
    """Even when the second life never came to make a snapshot of its own."""

    async def test() -> None:
        ours = await logged()
        await ours.snapshot()
        await restored(ours)
        third = Incarnation("00000003")
        log, done = await restored(ours, incarnation=third)
        assert set(done.adopts) == {INCARNATION, NEW}
        assert (await folded(log, ours.store)).head.index > 3 * LIFE

    run(test())


def test_a_log_that_was_restored_already_says_so_and_its_old_life_has_ended() -> None:
    async def test() -> None:
        ours = await logged()
        await ours.snapshot()
        log, _ = await restored(ours)
        ours.store.delete(keys.successor(INCARNATION))  # as if it had been broken off before
        with pytest.raises(Rejected, match="restored already, as 00000002"):
            await restored(ours, log=log, incarnation=Incarnation("00000003"))
        assert ours.store.read(keys.successor(INCARNATION)) == NEW.encode()

    run(test())


def test_the_old_life_learns_that_it_was_restored_elsewhere() -> None:
    async def test() -> None:
        ours = await logged()
        await ours.snapshot()
        check_not_ended(ours.store, INCARNATION)
        await restored(ours)
        with pytest.raises(InvalidInput, match="it was restored as 00000002"):
            check_not_ended(ours.store, INCARNATION)
        check_not_ended(ours.store, NEW)

    run(test())


def test_a_backup_that_is_restored_twice_does_not_use_indexes_twice(tmp_path: Path) -> None:
    """Plans and blocks are named by them, and the second life may adopt from the first."""

    async def test() -> None:
        ours = await logged()
        await ours.snapshot()
        await backup.write(ours.log, ours.store, tmp_path / "b", wall_ns=0)
        heads = []
        for life in ("00000002", "00000003"):
            content = await backup.read(tmp_path / "b")
            origin = Origin(content.state, content.head, "b")
            _, done = await restored(ours, origin=origin, incarnation=Incarnation(life))
            heads.append(done.head)
        assert heads[1] > heads[0] + LIFE

    run(test())


def test_the_newest_snapshot_is_the_last_one_by_time_not_by_index() -> None:
    """A rehearsed restore has high indexes, and the log itself may have gone on since."""

    async def test() -> None:
        ours = await logged()
        await ours.snapshot()
        await restored(ours, wall=WallTime(ours.wall + 1))
        assert (await restoring.newest(ours.store)).state.incarnation == NEW
        ours.now += 10
        await ours.add()
        index = await ours.snapshot()
        found = await restoring.newest(ours.store)
        assert (found.state.incarnation, found.head.index) == (INCARNATION, index)

    run(test())


# ── an empty log ───────────────────────────────────────────────────────────────────────────────


def replica(store: MemoryStore, **how: Any) -> MetastoreService:
    async def take() -> int:
        return 0

    return MetastoreService(
        MemoryLog(SharedLog()),
        store,
        FakeClock(),
        SMALL,
        entropy=lambda count: b"\7" * count,
        candidate=Candidate("one"),
        take_snapshot=take,
        registry=CollectorRegistry(),
        **how,
    )


def test_an_empty_log_over_a_used_store_begins_only_on_purpose() -> None:
    async def test() -> None:
        ours = await logged()
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


# ── what may be restored ───────────────────────────────────────────────────────────────────────


def test_the_wrong_store_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    async def test() -> None:
        ours = await logged()
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
        ours = await logged()
        ours.store.create(keys.marker(Incarnation("feedbeef")), b"")
        assert restoring.other_lives(ours.store, ours.state) == ("feedbeef",)

    run(test())


def test_a_log_that_never_began_cannot_be_restored() -> None:
    ours = Logged()
    with pytest.raises(Rejected, match="never began"):
        asyncio.run(
            restoring.reborn(
                Origin(ours.state, Head(0, bytes(32)), "nothing"), incarnation=NEW, wall=WALL
            )
        )


# ── migration ──────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("truncated", [False, True])
def test_a_moved_log_is_the_same_log_and_the_old_one_is_sealed(truncated: bool) -> None:
    async def test() -> None:
        ours = await logged(entries=20)
        if truncated:
            first = await ours.snapshot()
            await ours.add(3)
            await ours.snapshot()
            await ours.truncate(first + 1)
            await ours.add(3)
        await ours.resign()
        target = MemoryLog(SharedLog())
        done = await copying.migrate(ours.log, target, ours.store, note="it is in etcd now")
        assert done.head == ours.replica.head.index
        assert await target.head() == ours.replica.head
        replica = await folded(target, ours.store)
        assert digest(replica.state) == digest(ours.state)
        with pytest.raises(Rejected, match="it is in etcd now"):
            await ours.log.campaign(Candidate("old"))
        assert await target.campaign(Candidate("new")) > ours.term

    run(test())


def test_the_damaged_newest_snapshot_can_be_fallen_back_from_after_a_move() -> None:
    async def test() -> None:
        ours = await logged()
        first = await ours.snapshot()
        await ours.add(3)
        second = await ours.snapshot()
        await ours.truncate(first + 1)
        await ours.resign()
        target = MemoryLog(SharedLog())
        await copying.migrate(ours.log, target, ours.store, note="moved")
        ours.store.delete(keys.snapshot(incarnation=INCARNATION, index=second))
        assert digest((await folded(target, ours.store)).state) == digest(ours.state)

    run(test())


class Interrupted(MemoryLog):
    """A target whose connection is cut after some calls."""

    def __init__(self, shared: SharedLog, calls: int) -> None:
        super().__init__(shared)
        self.calls = calls

    async def add(self, records: Sequence[Record]) -> Head:
        self._count()
        return await super().add(records)

    async def finish(self) -> None:
        self._count()
        await super().finish()

    def _count(self) -> None:
        if not self.calls:
            raise Unavailable("cut")
        self.calls -= 1


@pytest.mark.parametrize("calls", range(3))
def test_a_move_that_was_broken_off_goes_on(calls: int, monkeypatch: pytest.MonkeyPatch) -> None:
    async def test() -> None:
        ours = await logged(entries=10)
        await ours.resign()
        read = ours.log.read

        async def few(*, after: int, limit_bytes: int = 0) -> list[Record]:
            return await read(after=after, limit_bytes=2_000)

        monkeypatch.setattr(ours.log, "read", few)
        shared = SharedLog()
        with pytest.raises(Unavailable):
            await copying.migrate(ours.log, Interrupted(shared, calls), ours.store, note="moved")
        with pytest.raises(Rejected, match="copied into"):
            await MemoryLog(shared).campaign(Candidate("too early"))
        await copying.migrate(ours.log, MemoryLog(shared), ours.store, note="moved")
        assert shared.head == ours.shared.head
        assert ours.shared.sealed == "moved"

    run(test())


def test_what_is_written_while_the_log_is_copied_is_copied_too() -> None:
    async def test() -> None:
        ours = await logged(entries=5)
        await ours.resign()
        seal = ours.log.seal

        async def late(note: str) -> None:
            """Somebody led for a moment, just before the seal."""
            ours.term = await ours.log.campaign(Candidate("late"))
            await ours.add()
            await ours.resign()
            await seal(note)

        ours.log.seal = late  # type: ignore[method-assign]
        target = MemoryLog(SharedLog())
        await copying.migrate(ours.log, target, ours.store, note="moved")
        assert await target.head() == ours.replica.head
        assert len((await folded(target, ours.store)).state.blocks) == 6

    run(test())


async def led(log: MemoryLog, store: MemoryStore, entries: int) -> Term:
    """Somebody leads in a log that was moved there."""
    term = await log.campaign(Candidate("new"))
    for _ in range(entries):
        state = (await folded(log, store)).state
        body = encode(state.version, state.lease_time, state.wall_time, encode_entry(Tick()))
        await log.append([body], term=term, head=await log.head())
    return term


@pytest.mark.parametrize("entries", [0, 1, 5])
def test_a_move_that_was_done_says_so(entries: int) -> None:
    async def test() -> None:
        ours = await logged()
        await ours.resign()
        target = MemoryLog(SharedLog())
        done = await copying.migrate(ours.log, target, ours.store, note="moved")
        assert not done.already
        await led(target, ours.store, entries)
        head = await target.head()
        again = await copying.migrate(ours.log, target, ours.store, note="moved")
        assert again == done._replace(already=True)
        assert await target.head() == head

    run(test())


def test_a_move_that_cannot_be_compared_any_more_or_went_elsewhere_is_refused() -> None:
    async def test() -> None:
        ours, theirs = await logged(), Logged()
        theirs.now = 77
        await theirs.begin()
        await theirs.add(9)
        await ours.resign()
        target = MemoryLog(SharedLog())
        done = await copying.migrate(ours.log, target, ours.store, note="moved")
        with pytest.raises(Rejected, match="another log is there"):
            await copying.migrate(ours.log, theirs.log, ours.store, note="moved")
        term = await led(target, ours.store, 5)
        await target.truncate(before=done.head + 2, term=term)
        with pytest.raises(Rejected, match="the move was finished already"):
            await copying.migrate(ours.log, target, ours.store, note="moved")

    run(test())


def test_a_log_that_was_moved_is_not_moved_anywhere_else() -> None:
    """Two logs would go on from one, and hand out the same tokens."""

    async def test() -> None:
        ours = await logged()
        await ours.resign()
        await copying.migrate(ours.log, MemoryLog(SharedLog()), ours.store, note="moved to A")
        other = SharedLog()
        with pytest.raises(Rejected, match="sealed: moved to A"):
            await copying.migrate(ours.log, MemoryLog(other), ours.store, note="moved to B")
        assert not other.copying

    run(test())


def test_a_log_that_somebody_leads_is_not_moved() -> None:
    async def test() -> None:
        ours = await logged()
        shared = SharedLog()
        with pytest.raises(Rejected, match="one leads in the log; stop the metastore"):
            await copying.migrate(ours.log, MemoryLog(shared), ours.store, note="moved")
        assert not ours.shared.sealed
        assert not shared.copying
        await ours.add()

    run(test())


def test_a_log_is_not_moved_over_another_and_an_empty_one_is_not_moved() -> None:
    async def test() -> None:
        ours, theirs = await logged(), await logged(entries=7)
        await ours.resign()
        await theirs.resign()
        with pytest.raises(Rejected, match="not empty"):
            await copying.migrate(ours.log, theirs.log, ours.store, note="moved")
        assert not ours.shared.sealed
        with pytest.raises(Rejected, match="nothing to move"):
            await copying.migrate(
                MemoryLog(SharedLog()), MemoryLog(SharedLog()), ours.store, note="moved"
            )

    run(test())


def test_a_truncated_log_without_its_store_is_not_moved() -> None:
    async def test() -> None:
        ours = await logged()
        await ours.truncate(await ours.snapshot() + 1)
        await ours.resign()
        with pytest.raises(Corrupt, match="no good snapshot"):
            await copying.migrate(ours.log, MemoryLog(SharedLog()), MemoryStore(), note="moved")
        assert not ours.shared.sealed

    run(test())


def test_a_restored_log_can_be_moved_before_anybody_led_in_it() -> None:
    async def test() -> None:
        ours = await logged()
        await ours.snapshot()
        log, done = await restored(ours)
        target = MemoryLog(SharedLog())
        await copying.migrate(log, target, ours.store, note="moved")
        assert (await folded(target, ours.store)).head.index == done.head

    run(test())


# ── verification ───────────────────────────────────────────────────────────────────────────────


def test_nothing_is_wrong_with_a_good_log() -> None:
    async def test() -> None:
        ours = await logged()
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
        ours = await logged()
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
        ours = await logged()
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
        ours = await logged()
        await ours.snapshot()
        await ours.add()
        ours.state.tally.profiles_added += 1
        key = keys.snapshot(incarnation=INCARNATION, index=ours.state.index)
        ours.store.create(key, snapshot.encode(ours.state, ours.replica.head))
        found = await verify(ours.log, ours.store)
        assert [key in sentence for sentence in found.wrong] == [True]
        assert found.snapshots[key] == "it is not what the log folds to"

    run(test())


def test_an_entry_that_is_not_what_was_written_is_told() -> None:
    async def test() -> None:
        ours = await logged()
        at = ours.shared.records[-2]
        ours.shared.records[-2] = Record(at.index, at.term, at.body + b"!", at.hash)
        found = await verify(ours.log, ours.store)
        assert f"entry {at.index} of the log is not what was written" in found.wrong[0]

    run(test())


@pytest.mark.parametrize("replica", ["", "two"])
def test_a_hash_that_the_log_does_not_fold_to_is_told(replica: str) -> None:
    async def test() -> None:
        ours = await logged()
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
        ours = await logged()
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
        ours = await logged()
        index = await ours.snapshot()
        await ours.add()
        await ours.truncate(index + 1)
        ours.store.delete(keys.snapshot(incarnation=INCARNATION, index=index))
        found = await verify(ours.log, ours.store)
        assert "it cannot be folded" in found.wrong[0]

    run(test())


def test_replicas_that_hold_another_state_or_stopped_are_told() -> None:
    async def test() -> None:
        ours = await logged()
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
        ours = await logged()
        await ours.snapshot()
        log, _ = await restored(ours)
        found = await verify(log, ours.store)
        assert found.adopting
        assert found.wrong == []

    run(test())
