"""What the leader does beside answering: it cleans up, and has snapshots made and verified."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable

from maar.metastore import cleaning, snapshot
from maar.metastore.digest import digest
from maar.metastore.entries import BlocksForgotten, Entry, StateHashed
from maar.metastore.leader import Leader
from maar.metastore.metrics import Metrics
from maar.metastore.state import MetaState
from maar.model.errors import Corrupt, MaarError
from maar.model.time import LeaseTime
from maar.ports.log import Log
from maar.ports.object_store import ObjectStore

log_ = logging.getLogger("maar.metastore")

CLEAN_S = 5.0
CLEANED_AT_ONCE = 64
LOOK_S = 0.5
BACKOFF_S = 30.0

Prepare = Callable[[MetaState, LeaseTime], list[Entry]]
Append = Callable[[Prepare], Awaitable[int]]  # by the leader's loop; the index after it


async def clean_forever(
    leader: Leader, store: ObjectStore, append: Append, metrics: Metrics
) -> None:
    told: set[str] = set()
    while True:
        try:
            more = await clean(leader, store, append, metrics, told)
        except (MaarError, OSError) as error:
            # objects that stay a little longer harm nobody; it is tried again
            log_.warning("clean postponed cause=%s", error)
            more = False
        if not more:
            await asyncio.sleep(CLEAN_S)


async def clean(
    leader: Leader, store: ObjectStore, append: Append, metrics: Metrics, told: set[str]
) -> bool:
    """Delete some objects that nobody can need; whether there may be more.

    What has to stay is told once, not every few seconds until somebody comes: `told` is kept.
    """
    work = cleaning.removals(leader.state, now=leader.now(), limit=CLEANED_AT_ONCE)
    if not work:
        return False
    done = await asyncio.to_thread(cleaning.carry_out, store, work)
    metrics.blocked.set(len(done.blocked))
    for sentence in done.blocked:
        if sentence not in told:
            log_.error("clean stopped cause=%s", sentence)
    told.clear()
    told.update(done.blocked)
    if done.gone:
        await append(lambda *_: [BlocksForgotten(done.gone)])
        metrics.cleaned.inc(len(done.gone))
    return len(done.gone) == CLEANED_AT_ONCE


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
        policy = leader.state.policy
        return (
            leader.state.index - self.newest >= policy.snapshot_entries
            or leader.appended_bytes - self._bytes >= policy.snapshot_bytes
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
        await asyncio.to_thread(self._check, index)
        self._verified = [index, *self._verified][: snapshot.KEPT]
        self._bytes = appended
        self._metrics.snapshot.set(index)
        if len(self._verified) > 1:
            await self._log.truncate(before=self._verified[1] + 1, term=leader.term)
        return index

    def _check(self, index: int) -> None:
        """What the other process says it wrote is there and whole."""
        for found, key in snapshot.listed(self._store):
            if found == index:
                snapshot.check(self._store.read(key))
                return
        raise Corrupt(f"the snapshot at entry {index} is not in the store")
