"""Has snapshots made by another process, verifies them, and truncates the log behind them."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable

from maar.background import Loop
from maar.metastore.leader.background import Append
from maar.metastore.leader.leader import Leader
from maar.metastore.records.entries import StateHashed
from maar.metastore.replica import snapshot
from maar.metastore.replica.metrics import MetastoreMetrics
from maar.metastore.replica.timing import TIMING, Timing
from maar.metastore.state.digest import digest
from maar.metastore.state.state import MetaState
from maar.model import keys
from maar.model.errors import Corrupt, MaarError, NotFound
from maar.model.policy import Policy
from maar.ports.metastore.log import Log
from maar.ports.stores.object_store import ObjectStore, exists

log_ = logging.getLogger("maar.metastore")

GROWTH = 16  # the newest snapshot is no larger than so many times the log behind it
MISSED_S = 60.0  # from one look whether the newest is still there to the next


def snapshot_due(policy: Policy, *, entries: int, appended: int, size: int) -> bool:
    """Due after enough entries or bytes, in proportion to the size of the state.

    Making a snapshot costs in proportion to the state, replaying the log at a restart in proportion
    to its growth: neither may dominate.
    """
    enough = entries >= policy.snapshot_entries or appended >= policy.snapshot_bytes
    return enough and appended * GROWTH >= size


class Snapshots:
    """When one is due, who has verified it, and how much of the log it makes unnecessary."""

    def __init__(
        self,
        log: Log,
        store: ObjectStore,
        take: Callable[[], Awaitable[int]],
        append: Append,
        metrics: MetastoreMetrics,
        *,
        timing: Timing = TIMING,
    ) -> None:
        self._log = log
        self._store = store
        self._take = take
        self._append = append
        self._metrics = metrics
        self._timing = timing
        self._verified: list[int] = []  # newest first
        self._bytes = 0  # that the leader had folded at the newest
        self._size = 0  # of the newest
        self._hurried = False
        self._began_s = 0.0
        self._seen_s = 0.0  # when the newest was last looked for
        self._spared_until_s = 0.0
        self._taken_s: list[float] = []  # when the last two were begun

    @property
    def newest(self) -> int:
        return self._verified[0] if self._verified else 0

    async def take_forever(self, leader: Leader) -> None:
        await self._begin(leader)
        self._began_s = asyncio.get_running_loop().time()
        look_s = self._timing.snapshot_look_s
        taking = Loop(
            lambda: self._take_if_due(leader),
            failed="snapshot failed",
            log=log_,
            level=logging.ERROR,  # the log grows meanwhile: without a snapshot all of it is kept
            every_s=look_s,
            retry_s=self._timing.snapshot_backoff_s + look_s,
            on_failure=lambda _: self._metrics.snapshot_failures.inc(),
        )
        await taking.run(first_after_s=look_s)

    async def _take_if_due(self, leader: Leader) -> None:
        due = self._due(leader)
        if self._verified and (due or self._look_due()):
            if await asyncio.to_thread(self._is_lost, leader):
                await self._go_on_without_newest(leader)
            self._seen_s = asyncio.get_running_loop().time()
        if due:
            await self.take(leader)

    def _look_due(self) -> bool:
        """A restart needs it, long before the next one may be due."""
        return asyncio.get_running_loop().time() - self._seen_s >= MISSED_S

    def _is_lost(self, leader: Leader) -> bool:
        """It may lie on a disk that is mounted no more. A store that is away has lost nothing."""
        key = keys.snapshot(incarnation=leader.state.incarnation, index=self.newest)
        try:
            return not exists(self._store, key)
        except MaarError:
            return False

    async def _go_on_without_newest(self, leader: Leader) -> None:
        """From an older one, if the log still begins behind it: what another process folds verifies
        the state (S13). Only where nobody could is the state written as it is.
        """
        first = await self._log.first()
        found = await asyncio.to_thread(self._newest_good, leader.state)
        if found is None or found[0] < first - 1:
            await self.replace_lost(leader)
        else:
            log_.error("snapshot lost index=%d older=%d", self.newest, found[0])
            self._go_on_from(leader, *found)

    def _go_on_from(self, leader: Leader, index: int, size: int) -> None:
        self._verified, self._size = [index], size
        self._bytes = leader.folded_bytes_at(index)
        self._metrics.snapshot.set(index)

    async def _begin(self, leader: Leader) -> None:
        """Continue from the newest good snapshot of earlier leaders."""
        try:
            found = await asyncio.to_thread(self._newest_good, leader.state)
        except (MaarError, OSError) as error:
            log_.warning("snapshots cannot be listed cause=%s", error)
            return
        if found is not None:
            self._go_on_from(leader, *found)

    def _newest_good(self, state: MetaState) -> tuple[int, int] | None:
        prefix = keys.snapshot_prefix(state.incarnation)
        for index, key in snapshot.list_snapshots(self._store):
            if index <= state.index and key.startswith(prefix):
                try:
                    return index, self._check_size(key)
                except (Corrupt, NotFound) as error:
                    log_.error("snapshot damaged, not used key=%s cause=%s", key, error)
        return None

    def hurry(self) -> None:
        """The log has no room, and only a snapshot, or the next one, makes some."""
        self._hurried = True

    def _due(self, leader: Leader) -> bool:
        return (
            self._hurry_due()
            or self._first_due()
            or snapshot_due(
                leader.state.policy,
                entries=leader.state.index - self.newest,
                appended=leader.folded_bytes - self._bytes,
                size=self._size,
            )
        )

    def _first_due(self) -> bool:
        """Make the first one early; it also records which incarnation the store belongs to."""
        waited_s = asyncio.get_running_loop().time() - self._began_s
        return not self._verified and waited_s >= self._timing.snapshot_first_s

    def _hurry_due(self) -> bool:
        """Two in a row allow truncating all that can be truncated; more would only cost."""
        now_s = asyncio.get_running_loop().time()
        lately = [
            began_s
            for began_s in self._taken_s
            if now_s - began_s < self._timing.snapshot_backoff_s
        ]
        return self._hurried and len(lately) < 2

    async def take(self, leader: Leader) -> int:
        """State our hash, let another process fold past it, then truncate what is safe to lose.

        The log is kept back to the snapshot before the newest: should the newest turn out to be
        damaged, the one before it and the log still give everything.
        """
        folded, spared = leader.folded_bytes, self._is_spared()
        self._hurried = False
        self._taken_s = [*self._taken_s[-1:], asyncio.get_running_loop().time()]
        hashed_at = await self._append(lambda state, _: [StateHashed(state.index, digest(state))])
        index = await self._take()
        if index < hashed_at:
            raise Corrupt(f"the snapshot is at entry {index}, before the hash at {hashed_at}")
        key = keys.snapshot(incarnation=leader.state.incarnation, index=index)
        self._size = await asyncio.to_thread(self._check_size, key)
        verified = {index, *self._verified}  # two concurrent requests may get the same snapshot
        self._verified = sorted(verified, reverse=True)[: snapshot.KEPT]
        self._bytes = folded
        self._metrics.snapshot.set(self.newest)
        if len(self._verified) > 1 and not spared:
            await self._log.truncate(before=self._verified[1] + 1, term=leader.term)
        return index

    def _is_spared(self) -> bool:
        """Whether the log is kept as it is: a disk that is mounted again has older snapshots only,
        and whoever starts then needs what came after them. Not when the log has no room.
        """
        return not self._hurried and asyncio.get_running_loop().time() < self._spared_until_s

    async def replace_lost(self, leader: Leader) -> None:
        """Their store was wiped, and the log behind them may be truncated: nobody else could find
        the state again, so this one is written as it is. The next one is folded from it, and so
        verified.
        """
        folded, head = leader.folded_bytes, leader.head
        await snapshot.save(leader.state, head, self._store)
        key = keys.snapshot(incarnation=leader.state.incarnation, index=head.index)
        self._size = await asyncio.to_thread(self._check_size, key)
        self._verified, self._bytes = [head.index], folded
        self._spared_until_s = asyncio.get_running_loop().time() + self._timing.lost_log_s
        self._metrics.snapshot.set(self.newest)

    def _check_size(self, key: str) -> int:
        """Check that the snapshot of the other process exists and is intact; its size in bytes."""
        try:
            body = self._store.read(key)
        except NotFound as error:
            raise Corrupt(f"the snapshot {key} is not in the store") from error
        snapshot.check(body)
        return len(body)
