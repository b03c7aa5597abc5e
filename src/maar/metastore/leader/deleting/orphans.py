"""Deletes orphans: objects that no entry names, and none ever can.

A writer that dies, or is refused, between upload and registration leaves a segment; an attempt that
was granted in a part of the log that is lost leaves intents and tables. `decide/orphans.py` says
which entries fence them, `orphan_search.py` finds them. In a store that another log has marked
too, nothing is swept: it would be the wrong store, or one whose objects nobody here can judge.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Sequence
from functools import partial
from itertools import chain

from maar.background import Loop, Threads
from maar.metastore.decide import orphans
from maar.metastore.leader.background import Deleting, deleter
from maar.metastore.leader.deleting.orphan_commits import Commits
from maar.metastore.leader.deleting.orphan_search import (
    KEPT_MAX,
    STORE,
    Attempts,
    KeptSentences,
    Orphan,
    Outputs,
    Part,
    SearchTools,
    Segments,
    Unit,
)
from maar.metastore.replica import snapshot
from maar.metastore.replica.metrics import MetastoreMetrics
from maar.model import keys
from maar.model.errors import MaarError, NotFound, NotLeading
from maar.model.ids import Incarnation, StoreName
from maar.model.time import SECOND_NS
from maar.ports.clock import Clock
from maar.ports.operator.operator import FoundOrphans, OrphanObject
from maar.ports.stores.object_store import ObjectStore

log_ = logging.getLogger("maar.metastore")

SWEEP_S = 600.0  # from the end of one scan to the next
THREADS = 4
LISTED_AT_ONCE = 1_000  # keys
LISTED_MAX = 100_000  # of each part, in one run; the next one goes on from there
SWEPT_MAX = 10_000  # objects in one run
WAIT_NS = 5 * SECOND_NS  # somebody who waits for a sweep or a dry run waits no longer than this
FOUND_AT_ONCE = 500  # keys that a dry run lists before it looks at the time
RESTORED_MAX = 64  # how often a log may have been restored


class Orphans:
    """Runs beside every leader, in the background."""

    def __init__(
        self,
        leader: Deleting,
        store: ObjectStore,
        clock: Clock,
        metrics: MetastoreMetrics,
        *,
        listed_at_once: int = LISTED_AT_ONCE,
        listed_max: int = LISTED_MAX,
        name: StoreName | None = None,  # None: there is only one store
    ) -> None:
        self._listed_max = listed_max
        self._leader = leader
        self._store = store
        self._clock = clock
        self._metrics = metrics
        self._deleter = deleter(leader, store, clock, one_of_several=name is not None)
        self._threads = Threads(THREADS, "orphans", when_closed=NotLeading)
        self._kept = KeptSentences()
        self._told: set[str] = set()
        self._tools = SearchTools(leader, store, self._threads, self._keep, listed_at_once, name)
        self._parts = _parts(self._tools)
        self._busy = asyncio.Lock()

    @property
    def blocked(self) -> tuple[str, ...]:
        """Sentences for the status: which orphans are kept, and why."""
        return self._kept.sentences()

    async def forever(self) -> None:
        """Orphans that stay a little longer harm nobody: a failed run is only repeated."""
        sweeping = Loop(
            self.sweep,
            failed="deletion of orphans postponed",
            log=log_,
            every_s=SWEEP_S,
        )
        try:
            await sweeping.run(first_after_s=SWEEP_S)
        finally:
            self.close()

    def close(self) -> None:
        self._threads.close()

    # ── sweeping ───────────────────────────────────────────────────────────────────────────────

    async def sweep(self) -> int:
        """Look at some objects and delete the orphans among them; how many were deleted. The next
        run goes on where this one ended.
        """
        async with self._busy:
            gone: list[Orphan] = []
            await self._sweep(self._parts, gone)
        return len(gone)

    async def sweep_now(self, *, limit: int) -> FoundOrphans:
        """From the beginning, for somebody who waits."""
        if self._busy.locked():
            return FoundOrphans(0, 0, (), False, ("orphans are being swept already; ask again",))
        async with self._busy:
            gone: list[Orphan] = []
            until_ns = self._clock.monotonic_ns() + WAIT_NS
            complete = await self._sweep(_parts(self._tools), gone, until_ns=until_ns)
        return _summary(gone, limit, complete=complete, kept=self._kept)

    async def _sweep(
        self, parts: Sequence[Part], gone: list[Orphan], *, until_ns: int | None = None
    ) -> bool:
        """Whether all of it was looked through."""
        if self._leader.state.adopting:
            return False
        self._kept.clear(STORE)
        complete = not await self._must_not_sweep(self._kept)
        for part in parts if complete else ():
            try:
                complete &= await self._sweep_part(part, gone, until_ns)
            except BaseException:  # raised again: what was not deleted is looked for anew
                part.begin_anew()
                raise
        self._metrics.orphans_left.set(len(self._kept))
        if gone:
            size = sum(orphan.size for orphan in gone)
            log_.info("orphans swept objects=%d bytes=%d", len(gone), size)
        return complete

    async def _sweep_part(self, part: Part, gone: list[Orphan], until_ns: int | None) -> bool:
        """Whether its end was reached."""
        if not part.begun:
            self._kept.clear(part.name)
        if not await part.prepare():
            return True
        listed = 0
        while listed < self._listed_max and len(gone) < SWEPT_MAX:
            if until_ns is not None and self._clock.monotonic_ns() >= until_ns:
                return False
            page = await part.page()
            if page is None:
                return True
            listed += page.listed
            await self._delete_all(page.units, gone)
        return False

    async def _delete_all(self, units: Sequence[Unit], gone: list[Orphan]) -> None:
        outcomes = await self._threads.each(
            partial(self._delete_unit, gone), units, catching=MaarError
        )
        for outcome in outcomes:
            if isinstance(outcome, MaarError):
                raise outcome

    # ── a dry run ──────────────────────────────────────────────────────────────────────────────

    async def find(self, *, limit: int) -> FoundOrphans:
        """What a sweep would delete, without a change; incomplete when it takes too long."""
        until_ns = self._clock.monotonic_ns() + WAIT_NS
        kept, found = KeptSentences(), _Found(limit)
        tools = self._tools._replace(keep=kept.keep, listed_at_once=FOUND_AT_ONCE)
        complete = not self._leader.state.adopting and not await self._must_not_sweep(kept)
        for part in _parts(tools) if complete else ():
            complete &= await self._find_part(part, found, until_ns)
        first = tuple(OrphanObject(*orphan) for orphan in found.first)
        return FoundOrphans(found.objects, found.bytes, first, complete, kept.sentences())

    async def _find_part(self, part: Part, found: _Found, until_ns: int) -> bool:
        """Whether it was looked through to its end."""
        if not await part.prepare():
            return True
        while (page := await part.page()) is not None:
            for orphan in chain.from_iterable(page.units):
                found.add(orphan)
            if self._clock.monotonic_ns() >= until_ns:
                return False
        return True

    # ── whether anything may go ────────────────────────────────────────────────────────────────

    async def _must_not_sweep(self, kept: KeptSentences) -> bool:
        """Whether nothing may be swept in this store; `kept` gets a sentence that says why."""
        state = self._leader.state
        look = partial(
            self._why_refused, state.incarnation, orphans.incarnations(state), index=state.index
        )
        refused = await self._threads.do(look)
        if refused is None:
            return False
        key, why = refused
        kept.keep(STORE, key, why)
        self._tell(key, why)
        return True

    def _why_refused(
        self, incarnation: Incarnation, incarnations: Iterable[Incarnation], *, index: int
    ) -> tuple[str, str] | None:
        """In a thread: the object that forbids it, and why; None when nothing does."""
        marked = {
            Incarnation(info.key.removeprefix(keys.MARKERS))
            for info in self._store.list(keys.MARKERS)
        }
        if incarnation not in marked:
            return keys.marker(incarnation), (
                f"nothing is swept: this log's marker is not in {self._store.settings().url}. It "
                "may be the store of another log"
            )
        for other in sorted(marked):
            if not self._is_ours(other, incarnations):
                return keys.marker(other), (
                    "nothing is swept: another log has marked this store. If that log is not used "
                    "any more, delete its marker"
                )
        prefix = keys.snapshot_prefix(incarnation)
        newest = next(
            (at for at, key in snapshot.list_snapshots(self._store) if key.startswith(prefix)), 0
        )
        if newest > index:
            return keys.snapshot(incarnation=incarnation, index=newest), (
                "nothing is swept: it is of a later entry than the log has. The log has lost "
                "entries; restore it (docs/runbook.md)"
            )
        return None

    def _is_ours(self, incarnation: Incarnation, incarnations: Iterable[Incarnation]) -> bool:
        """Whether this log was restored from it, perhaps over several restores."""
        for _ in range(RESTORED_MAX):
            if incarnation in incarnations:
                return True
            try:
                incarnation = Incarnation(
                    self._store.read(keys.successor(incarnation)).decode(errors="replace")
                )
            except NotFound:
                return False
        return False

    # ── threads ────────────────────────────────────────────────────────────────────────────────

    def _delete_unit(self, gone: list[Orphan], unit: Unit) -> None:
        by_key = {orphan.key: orphan for orphan in unit}
        for key in self._deleter.deleting(list(by_key)):
            orphan = by_key[key]
            gone.append(orphan)
            self._metrics.orphans.labels(orphan.kind).inc()
            self._metrics.orphans_bytes.labels(orphan.kind).inc(orphan.size)

    def _keep(self, part: str, key: str, why: str) -> None:
        self._kept.keep(part, key, why)
        self._tell(key, why)

    def _tell(self, key: str, why: str) -> None:
        if key not in self._told and len(self._told) < KEPT_MAX:
            self._told.add(key)
            log_.error("orphan not deleted key=%s cause=%s", key, why)


class _Found:
    """How much a dry run has found, and the first of it: there may be more than fits in memory."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self.objects = self.bytes = 0
        self.first: list[Orphan] = []

    def add(self, orphan: Orphan) -> None:
        self.objects += 1
        self.bytes += orphan.size
        if len(self.first) < self._limit:
            self.first.append(orphan)


def _summary(
    gone: Sequence[Orphan], limit: int, *, complete: bool, kept: KeptSentences
) -> FoundOrphans:
    first = tuple(OrphanObject(*orphan) for orphan in gone[:limit])
    size = sum(orphan.size for orphan in gone)
    return FoundOrphans(len(gone), size, first, complete, kept.sentences())


def _parts(tools: SearchTools) -> tuple[Part, ...]:
    # The largest one last; what is left without its blocks by one round goes in the next.
    return Attempts(tools), Segments(tools), Commits(tools), Outputs(tools)
