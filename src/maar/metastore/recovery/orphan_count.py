"""Counts the orphans of the stores that no leader sweeps just now; deletes nothing.

The leader's own search is asked, as of the head of the log, so that both judge alike.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from maar.background import Threads
from maar.metastore.decide import orphans
from maar.metastore.leader.deleting.orphan_commits import Commits
from maar.metastore.leader.deleting.orphan_search import (
    Attempts,
    KeptSentences,
    OrphanKind,
    Outputs,
    SearchTools,
)
from maar.metastore.leader.letters.letter_box import Box
from maar.metastore.state.state import MetaState
from maar.model import keys
from maar.model.errors import Unavailable
from maar.model.ids import BlockId
from maar.model.time import LeaseTime
from maar.ports.stores.object_store import ObjectInfo, ObjectStore

THREADS = 4
LISTED_AT_ONCE = 1_000  # keys
IN_THE_END = LeaseTime(1 << 62)  # every grace is over by then


@dataclass(slots=True)
class OrphanCount:
    """How many there are, and how many of them the leader's next sweep takes, by kind."""

    by_kind: dict[str, int] = field(default_factory=lambda: dict.fromkeys(map(str, OrphanKind), 0))
    due: int = 0
    kept: tuple[str, ...] = ()  # sentences: what nothing names, and is left alone all the same

    @property
    def total(self) -> int:
        return sum(self.by_kind.values())

    def add(self, kind: OrphanKind, *, due: bool) -> None:
        self.by_kind[kind] += 1
        self.due += due


class _AsOf:
    """What the search asks of a leader: the state, at a time when no grace protects anything."""

    def __init__(self, state: MetaState) -> None:
        self.state = state

    def now(self) -> LeaseTime:
        return IN_THE_END

    def confirm(self) -> None:
        """Nothing is deleted."""


async def count(stores: Iterable[ObjectStore], state: MetaState) -> OrphanCount:
    """While the log adopts, what a store holds may still become known: none is an orphan then."""
    found = OrphanCount()
    if state.adopting:
        return found
    threads, kept = Threads(THREADS, "orphans", when_closed=Unavailable), KeptSentences()
    try:
        for store in stores:
            await threads.do(_count_segments, store, state, found)
            tools = SearchTools(_AsOf(state), store, threads, kept.keep, LISTED_AT_ONCE)
            for part in (Attempts(tools), Commits(tools), Outputs(tools)):
                while (page := await part.page()) is not None:
                    for orphan in (each for unit in page.units for each in unit):
                        found.add(orphan.kind, due=_is_due(state, orphan.key))
    finally:
        threads.close()
    found.kept = kept.sentences()
    return found


def _count_segments(store: ObjectStore, state: MetaState, found: OrphanCount) -> None:
    letters = set(_letter_blocks(store, state))
    for info in store.list(keys.SEGMENTS):
        segment = keys.segment_name(info.key)
        if segment and orphans.is_unregistered(state, segment, named=letters):
            floor = state.registration_floor
            due = orphans.is_fenced(state, segment.block, registration_floor=floor)
            found.add(OrphanKind.SEGMENT, due=due)


def _letter_blocks(store: ObjectStore, state: MetaState) -> Iterator[BlockId]:
    """What dead letters name, held ones included."""
    for incarnation in orphans.incarnations(state):
        box = Box(store, incarnation)
        for infos in (box.waiting(), box.list_held()):
            yield from _blocks_named(list(infos))


def _blocks_named(letters: Sequence[ObjectInfo]) -> Iterator[BlockId]:
    for info in letters:
        block = keys.letter_about(keys.letter_place(info.key)[2])
        if block is not None:
            yield block


def _is_due(state: MetaState, key: str) -> bool:
    """Whether the grace of its attempt is over by the time of the log's last entry."""
    name = keys.output_name(key) or keys.intent_name(key) or keys.commit_name(key)
    if name is None:
        return False
    return orphans.is_unknown_attempt(state, name.plan, name.token, now=state.lease_time)
