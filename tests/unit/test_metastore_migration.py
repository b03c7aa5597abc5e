"""A moved log is the same log, and the old one is sealed."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from maar.metastore.records.entries import (
    Tick,
    encode,
    encode_entry,
)
from maar.metastore.recovery import copying
from maar.metastore.state.digest import digest
from maar.model import keys
from maar.model.errors import (
    Corrupt,
    Rejected,
    Unavailable,
)
from maar.ports.metastore.log import Candidate, Head, Record, Term
from support.metastore.fold import INCARNATION
from support.metastore.logged import Logged, fold_log
from support.metastore.memory_log import MemoryLog, SharedLog
from support.metastore.operations import new_log, restore_into_new, run
from support.stores.memory_store import MemoryStore


@pytest.mark.parametrize("truncated", [False, True])
def test_a_moved_log_is_the_same_log_and_the_old_one_is_sealed(truncated: bool) -> None:
    async def test() -> None:
        ours = await new_log(entries=20)
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
        replica = await fold_log(target, ours.store)
        assert digest(replica.state) == digest(ours.state)
        with pytest.raises(Rejected, match="it is in etcd now"):
            await ours.log.campaign(Candidate("old"))
        assert await target.campaign(Candidate("new")) > ours.term

    run(test())


def test_the_damaged_newest_snapshot_can_be_fallen_back_from_after_a_move() -> None:
    async def test() -> None:
        ours = await new_log()
        first = await ours.snapshot()
        await ours.add(3)
        second = await ours.snapshot()
        await ours.truncate(first + 1)
        await ours.resign()
        target = MemoryLog(SharedLog())
        await copying.migrate(ours.log, target, ours.store, note="moved")
        ours.store.delete(keys.snapshot(incarnation=INCARNATION, index=second))
        assert digest((await fold_log(target, ours.store)).state) == digest(ours.state)

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
        ours = await new_log(entries=10)
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
        ours = await new_log(entries=5)
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
        assert len((await fold_log(target, ours.store)).state.blocks) == 6

    run(test())


async def led(log: MemoryLog, store: MemoryStore, entries: int) -> Term:
    """Somebody leads in a log that was moved there."""
    term = await log.campaign(Candidate("new"))
    for _ in range(entries):
        state = (await fold_log(log, store)).state
        body = encode(state.version, state.lease_time, state.wall_time, encode_entry(Tick()))
        await log.append([body], term=term, head=await log.head())
    return term


@pytest.mark.parametrize("entries", [0, 1, 5])
def test_a_move_that_was_done_says_so(entries: int) -> None:
    async def test() -> None:
        ours = await new_log()
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
        ours, theirs = await new_log(), Logged()
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
        ours = await new_log()
        await ours.resign()
        await copying.migrate(ours.log, MemoryLog(SharedLog()), ours.store, note="moved to A")
        other = SharedLog()
        with pytest.raises(Rejected, match="sealed: moved to A"):
            await copying.migrate(ours.log, MemoryLog(other), ours.store, note="moved to B")
        assert not other.copying

    run(test())


def test_a_log_that_somebody_leads_is_not_moved() -> None:
    async def test() -> None:
        ours = await new_log()
        shared = SharedLog()
        with pytest.raises(Rejected, match="one leads in the log; stop the metastore"):
            await copying.migrate(ours.log, MemoryLog(shared), ours.store, note="moved")
        assert not ours.shared.sealed
        assert not shared.copying
        await ours.add()

    run(test())


def test_a_log_is_not_moved_over_another_and_an_empty_one_is_not_moved() -> None:
    async def test() -> None:
        ours, theirs = await new_log(), await new_log(entries=7)
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
        ours = await new_log()
        await ours.truncate(await ours.snapshot() + 1)
        await ours.resign()
        with pytest.raises(Corrupt, match="no good snapshot"):
            await copying.migrate(ours.log, MemoryLog(SharedLog()), MemoryStore(), note="moved")
        assert not ours.shared.sealed

    run(test())


def test_a_restored_log_can_be_moved_before_anybody_led_in_it() -> None:
    async def test() -> None:
        ours = await new_log()
        await ours.snapshot()
        log, done = await restore_into_new(ours)
        target = MemoryLog(SharedLog())
        await copying.migrate(log, target, ours.store, note="moved")
        assert (await fold_log(target, ours.store)).head.index == done.head

    run(test())
