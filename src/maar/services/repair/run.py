"""One task of a repair: every copy of some blocks is read, and made anew where it is not whole.

A copy is written under new keys and read back before it counts; nothing is overwritten and nothing
is deleted here. What the index then lists is decided by the fold, block by block: a block that was
replaced meanwhile is left as it is.
"""

from __future__ import annotations

import logging
import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from maar.model.block import BlockMeta, File
from maar.model.errors import Corrupt, Retryable
from maar.model.ids import BlockId, StoreName
from maar.model.plan import Account, LeasedPlan, PlanResult
from maar.model.repair import LostBlock, RangeResult, RepairType
from maar.model.stores import CopyBad, CopyMade, stores_of
from maar.ports.stores.object_store import ObjectStore
from maar.ports.stores.stores import Stores
from maar.ports.stores.stores import stores_of as opened
from maar.services.markers import MarkedStores
from maar.services.publish import Publisher, always
from maar.services.repair.checking import CopyCheck
from maar.services.repair.rules import REPAIR

log = logging.getLogger("maar.worker")


def run(
    plan: LeasedPlan,
    *,
    store: ObjectStore | Stores,
    attempt: str,
    scratch: Path,
    wall_ns: int,
    guard: Callable[[], None] = always,
) -> PlanResult:
    """The one part of a leased session that its task got; it leaves no scratch."""
    began_ns, cpu_ns = time.perf_counter_ns(), time.process_time_ns()
    assert plan.repair is not None
    (part,) = plan.repair.parts
    work = scratch / f"{plan.id}-{plan.token}-{attempt}"
    work.mkdir(parents=True)
    task = _Task(plan, opened(store), attempt=attempt, work=work, wall_ns=wall_ns, guard=guard)
    try:
        for meta, wanted in zip(plan.inputs, plan.repair.wanted, strict=True):
            task.repair(meta, wanted)
        task.look_again()
    finally:
        shutil.rmtree(work, ignore_errors=True)
    work_ns = time.perf_counter_ns() - began_ns
    return PlanResult(
        kind=REPAIR,
        outputs=(),
        account=Account(0, 0, 0),
        cpu_ms=(time.process_time_ns() - cpu_ns) // 1_000_000,
        wall_ms=work_ns // 1_000_000,
        repaired=RangeResult(
            tokens=part.tokens,
            copies=tuple(task.made),
            ended=tuple(task.ended),
            lost=tuple(task.lost),
            checked=task.check.copies,
            bytes=task.check.bytes,
            away=tuple(sorted(task.away)),
            work_ns=work_ns,
        ),
    )


def load() -> None:
    """All that it needs is imported above."""


class _WentBad(Corrupt):
    """A file was whole a moment ago."""


class _Task:
    """The blocks of one part, one after the other."""

    def __init__(
        self,
        plan: LeasedPlan,
        stores: Stores,
        *,
        attempt: str,
        work: Path,
        wall_ns: int,
        guard: Callable[[], None],
    ) -> None:
        assert plan.repair is not None
        self.made: list[CopyMade] = []
        self.ended: list[CopyBad] = []
        self.lost: list[LostBlock] = []
        self.away: set[StoreName] = set()
        self.check = CopyCheck()
        self._plan = plan
        self._stores = MarkedStores(stores, plan.token.incarnation)
        self._attempt = attempt
        self._work = work
        self._wall_ns = wall_ns
        self._guard = guard
        self._publishers: dict[StoreName, Publisher] = {}
        self._thorough = plan.repair.type is RepairType.VNODE
        self._suspects = frozenset(plan.repair.suspects)

    def repair(self, meta: BlockMeta, wanted: tuple[StoreName, ...]) -> None:
        """Read its copies, and make those that are missing or damaged where they are wanted.

        A source that went bad since it was read, most likely because the block was replaced and
        deleted meanwhile, must not cost the other blocks of the session: its copies are read again.
        """
        try:
            self._repair(meta, wanted)
        except _WentBad:
            self._repair(meta, wanted)

    def _repair(self, meta: BlockMeta, wanted: tuple[StoreName, ...]) -> None:
        self._guard()
        held = stores_of(meta)
        every = self._thorough or meta.id in self._suspects
        lacking = [name for name in wanted if name not in held]
        if not every and not lacking:
            return  # it was repaired since this session was made
        tables = [file.table for file in meta.files]
        bad: dict[StoreName, str] = {}
        sources: dict[str, StoreName] = {}  # of each table: the first copy in which it is whole
        for name in self._in_order(held, wanted):
            if len(sources) == len(tables) and not (every and name in wanted):
                continue  # one source is enough
            wrong = self._look(meta, name)
            if wrong is None:
                continue
            if wrong:
                bad[name] = "; ".join(wrong.values())
            for table in tables:
                if table not in wrong:
                    sources.setdefault(table, name)
        if len(sources) < len(tables):
            if not self._copies_made(meta.id):
                self._note_lost(meta.id, held, bad)
            return
        whole = any(name not in bad for name in sources.values())
        wrong_here = {at: bad[at] for at in bad if at in wanted}
        self._heal(meta, sources, lacking, wrong_here, whole=whole)

    def _in_order(
        self, held: tuple[StoreName, ...], wanted: tuple[StoreName, ...]
    ) -> Iterator[StoreName]:
        """Those that are to be whole first; others serve as sources only."""
        yield from sorted(held, key=lambda name: (name not in wanted, name in self.away, name))

    def _look(self, meta: BlockMeta, name: StoreName) -> dict[str, str] | None:
        """What is wrong with the files of a copy; None when its store is away."""
        try:
            wrong = self.check.copy(self._stores.open(name), meta, name)
            if wrong:
                self._stores.look(name)  # what an empty directory lacks is not missing
            return wrong
        except Retryable as error:
            self._miss(name, error)
            return None

    def _miss(self, name: StoreName, error: Retryable) -> None:
        if name not in self.away:
            log.warning(
                "store is unreachable, repair goes on without it store=%s cause=%s", name, error
            )
        self.away.add(name)

    def look_again(self) -> None:
        """The last word before the task ends: a store that is not the log's own any more was
        perhaps none while the task looked at it and wrote to it. What is said of it does not count
        then, and a bad copy ends only where a new one was made in a store that is there.
        """
        for name in self._stores.stores_used():
            try:
                self._stores.look(name)
            except Retryable as error:
                self._miss(name, error)
                self._discard_results_of(name)

    def _discard_results_of(self, name: StoreName) -> None:
        self.made = [each for each in self.made if each.store != name]
        healed = {each.block for each in self.made}
        self.ended = [e for e in self.ended if e.store != name and e.block in healed]
        self.lost.clear()  # if they are, the next repair finds it again

    def _note_lost(
        self, block: BlockId, held: tuple[StoreName, ...], bad: dict[StoreName, str]
    ) -> None:
        """A file is whole nowhere: its block is lost, unless a store that is away may have it."""
        if len(bad) == len(held):
            told = "; ".join(f"in {name}: {what}" for name, what in sorted(bad.items()))
            self.lost.append(LostBlock(block, told))

    def _heal(
        self,
        meta: BlockMeta,
        sources: dict[str, StoreName],
        lacking: list[StoreName],
        bad: dict[StoreName, str],
        *,
        whole: bool,
    ) -> None:
        """A copy that is bad ends in the same step in which another one takes its place. Copies may
        be bad in different files, so that only together they are whole: none of them ends then
        before a new one is there, whatever a store that is away may hold.
        """
        made = self._copies_made(meta.id)
        for name in (*lacking, *bad):
            if name in made:
                continue
            try:
                self._copy(meta, sources, name)
                whole = True
            except Retryable as error:
                self._miss(name, error)
        if whole or made:
            self.ended += (CopyBad(meta.id, name, what) for name, what in bad.items())

    def _copies_made(self, block: BlockId) -> set[StoreName]:
        """Where this task has made a copy already."""
        return {each.store for each in self.made if each.block == block}

    def _copy(self, meta: BlockMeta, sources: dict[str, StoreName], to: StoreName) -> None:
        target = self._stores.open(to)
        files = self._fetch(meta, sources)

        def check(file: File, key: str) -> None:
            if what := self.check.file(target, file, key):
                raise Corrupt(f"A copy that was just written to store {to} is bad: {key} {what}.")

        made = self._publisher(to, target).copy(meta, files, to=to, check=check)
        self.made.append(made)
        for path in files.values():
            if path.is_relative_to(self._work):
                path.unlink(missing_ok=True)

    def _fetch(self, meta: BlockMeta, sources: dict[str, StoreName]) -> dict[str, Path]:
        """Whole files on this host: as they lie there, or fetched and checked. They may come from
        several copies, none of which is whole.
        """
        found = {}
        for file in meta.files:
            name = sources[file.table]
            store = self._stores.open(name)
            at = next(each for each in file.locations if each.store == name)
            path = store.local_path(at.key)
            if path is None:
                path = self._work / f"{meta.id}-{file.table}"
                if what := self.check.file(store, file, at.key, into=path):
                    raise _WentBad(f"A copy in store {name} went bad: {at.key} {what}.")
            elif not path.exists():
                raise _WentBad(f"A copy in store {name} has vanished: {at.key}.")
            found[file.table] = path
        return found

    def _publisher(self, name: StoreName, store: ObjectStore) -> Publisher:
        """One for each store: intents lie in the store that is written to."""
        if name not in self._publishers:
            self._publishers[name] = Publisher(
                self._plan,
                level=0,
                store=store,
                attempt=self._attempt,
                wall_ns=self._wall_ns,
                guard=self._guard,
            )
        return self._publishers[name]
