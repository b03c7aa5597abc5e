"""What the leader does beside answering and cleaning: it has snapshots made and verified."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable

from maar.metastore import snapshot
from maar.metastore.digest import digest
from maar.metastore.entries import StateHashed
from maar.metastore.inbox import Prepare
from maar.metastore.leader import Leader
from maar.metastore.metrics import Metrics
from maar.metastore.policy import Policy
from maar.model.errors import Corrupt, MaarError
from maar.ports.log import Log
from maar.ports.object_store import ObjectStore

log_ = logging.getLogger("maar.metastore")

GROWTH = 16  # the newest snapshot is no larger than so many times the log behind it
LOOK_S = 0.5
BACKOFF_S = 30.0

Append = Callable[[Prepare], Awaitable[int]]  # by the leader's loop; the index after it


def snapshot_due(policy: Policy, *, entries: int, appended: int, size: int) -> bool:
    """After enough entries or bytes; of a large state, when its log has grown by a part of it.

    Making one costs as much as the state is large, reading the log at a restart as much as it has
    grown: neither may outgrow the other.
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
        metrics: Metrics,
    ) -> None:
        self._log = log
        self._store = store
        self._take = take
        self._append = append
        self._metrics = metrics
        self._verified: list[int] = []  # newest first
        self._bytes = 0  # that the leader had appended at the newest
        self._size = 0  # of the newest

    @property
    def newest(self) -> int:
        return self._verified[0] if self._verified else 0

    def restored_from(self, index: int) -> None:
        self._verified = [index] if index else []

    async def take_forever(self, leader: Leader) -> None:
        while True:
            await asyncio.sleep(LOOK_S)
            if not self._due(leader):
                continue
            try:
                await self.take(leader)
            except (MaarError, OSError) as error:
                # the log only grows meanwhile: nothing is truncated without a good snapshot
                self._metrics.snapshot_failures.inc()
                log_.error("snapshot failed cause=%s", error)
                await asyncio.sleep(BACKOFF_S)

    def _due(self, leader: Leader) -> bool:
        return snapshot_due(
            leader.state.policy,
            entries=leader.state.index - self.newest,
            appended=leader.appended_bytes - self._bytes,
            size=self._size,
        )

    async def take(self, leader: Leader) -> int:
        """State our hash, let another process fold past it, then truncate what is safe to lose.

        The log is kept back to the snapshot before the newest: should the newest turn out to be
        damaged, the one before it and the log still give everything.
        """
        appended = leader.appended_bytes
        hashed_at = await self._append(lambda state, _: [StateHashed(state.index, digest(state))])
        index = await self._take()
        if index < hashed_at:
            raise Corrupt(f"the snapshot is at entry {index}, before the hash at {hashed_at}")
        self._size = await asyncio.to_thread(self._check, index)
        verified = {index, *self._verified}  # two who asked at once may have got the same one
        self._verified = sorted(verified, reverse=True)[: snapshot.KEPT]
        self._bytes = appended
        self._metrics.snapshot.set(self.newest)
        if len(self._verified) > 1:
            await self._log.truncate(before=self._verified[1] + 1, term=leader.term)
        return index

    def _check(self, index: int) -> int:
        """What the other process says it wrote is there and whole; its bytes."""
        for found, key in snapshot.listed(self._store):
            if found == index:
                body = self._store.read(key)
                snapshot.check(body)
                return len(body)
        raise Corrupt(f"the snapshot at entry {index} is not in the store")
