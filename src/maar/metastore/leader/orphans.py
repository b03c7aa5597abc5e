"""Deletes orphans: segments that were uploaded and never registered.

A writer that dies, or is refused, between upload and registration leaves a segment that no entry
names. Once the registration floor is above its id, no entry ever can: a registration is refused
because of its age, so after a `RegistrationFloor` it is safe (S1, S4). Only a dead letter can still
need it. So letters are read first, waiting ones before held ones, since a letter moves from the one
place to the other by copy and then delete.
"""

from __future__ import annotations

import logging
from collections.abc import Container, Iterable, Iterator
from functools import partial
from itertools import islice

from maar.background import Loop, Threads
from maar.metastore.fold import registration
from maar.metastore.leader.background import Led
from maar.metastore.leader.letter_box import Box
from maar.metastore.leader.store_inventory import candidate, segment_of
from maar.metastore.replica import snapshot
from maar.metastore.replica.metrics import MetastoreMetrics
from maar.metastore.state.state import MetaState
from maar.model import keys
from maar.model.errors import Corrupt, MaarError, NotFound, NotLeading
from maar.model.ids import BlockId, Incarnation, block_time_ns
from maar.model.keys import SegmentName
from maar.model.time import LeaseTime
from maar.ports.object_store import ObjectInfo, ObjectStore

log_ = logging.getLogger("maar.metastore")

SWEEP_S = 600.0  # from the end of one scan to the next
THREADS = 4
LISTED_AT_ONCE = 1_000  # keys
LISTED_MAX = 100_000  # in one run; the next one goes on from there
SWEPT_MAX = 10_000
LEFT_MAX = 100  # sentences in a status

# ── decisions that only read ───────────────────────────────────────────────────────────────────


def lives(state: MetaState) -> tuple[Incarnation, ...]:
    """The incarnations whose segments are ours: this one, and those that it has adopted."""
    return (state.incarnation, *state.former)


def is_unregistered(state: MetaState, segment: SegmentName, *, named: Container[BlockId]) -> bool:
    """Whether it is ours, and neither the index nor a dead letter knows it."""
    return (
        segment.incarnation in lives(state)
        and not registration.is_known(state, segment.block)
        and segment.block not in named
    )


def is_fenced(state: MetaState, block: BlockId, *, registration_floor: LeaseTime) -> bool:
    """Whether nobody can register it any more, and that has been so for a while.

    `registration_floor` is from before the scan for letters: letters acknowledged with an id
    below it were in the store by then. While the log adopts, nothing is certain (S5).
    """
    return (
        not state.adopting
        and block_time_ns(block) <= registration_floor - state.policy.registration_floor_lag_ns
    )


class Orphans:
    """Runs beside every leader, in the background."""

    def __init__(
        self,
        leader: Led,
        store: ObjectStore,
        metrics: MetastoreMetrics,
        *,
        listed_at_once: int = LISTED_AT_ONCE,
        listed_max: int = LISTED_MAX,
    ) -> None:
        self._listed_at_once = listed_at_once
        self._listed_max = listed_max
        self._leader = leader
        self._store = store
        self._metrics = metrics
        self._threads = Threads(THREADS, "orphans", when_closed=NotLeading)
        self._walk: Iterator[ObjectInfo] | None = None  # the next run goes on with it
        self._left: dict[str, str] = {}  # a sentence for what stays, by its key
        self._told: set[str] = set()

    @property
    def blocked(self) -> tuple[str, ...]:
        """Sentences for the status: which orphans are kept, and why."""
        return tuple(self._left.values())[:LEFT_MAX]

    async def forever(self) -> None:
        """Orphans that stay a little longer harm nobody: a failed run is only repeated."""
        sweeping = Loop(
            self.sweep,
            failed="deletion of orphans postponed",
            log=log_,
            every_s=SWEEP_S,
            on_failure=self._begin_anew,
        )
        try:
            await sweeping.run(first_after_s=SWEEP_S)
        finally:
            self.close()

    def close(self) -> None:
        self._threads.close()

    def _begin_anew(self, _: Exception) -> None:
        self._walk = None

    async def sweep(self) -> int:
        """Check some segments and delete the orphans among them; how many were deleted."""
        state, registration_floor = self._leader.state, self._leader.state.registration_floor
        if state.adopting or registration_floor < state.policy.registration_floor_lag_ns:
            return 0
        if self._walk is None:
            self._left.clear()
            self._metrics.orphans_left.set(0)
        named = await self._threads.do(partial(self._letter_blocks, lives(state)))
        if named is None or not await self._threads.do(partial(self._whole, state)):
            return 0
        swept = size = listed = 0
        while listed < self._listed_max and swept < SWEPT_MAX:
            infos = await self._threads.do(self._some)
            if not infos:
                break
            listed += len(infos)
            gone = await self._delete_all(
                _going(state, infos, registration_floor=registration_floor, named=named)
            )
            swept += len(gone)
            size += sum(info.size for info in gone)
        if swept:
            log_.info(
                "orphans swept segments=%d bytes=%d floor=%d", swept, size, registration_floor
            )
        return swept

    async def _delete_all(self, going: Iterable[ObjectInfo]) -> list[ObjectInfo]:
        infos = list(going)
        outcomes = await self._threads.each(self._go, infos, catching=MaarError)
        gone = [info for info, went in zip(infos, outcomes, strict=True) if went is True]
        self._metrics.orphans.inc(len(gone))
        self._metrics.orphans_bytes.inc(sum(info.size for info in gone))
        for outcome in outcomes:
            if isinstance(outcome, MaarError):
                raise outcome
        return gone

    # ── threads ────────────────────────────────────────────────────────────────────────────────

    def _some(self) -> list[ObjectInfo]:
        """Of each shard the oldest come first; none are left when the walk has ended."""
        self._walk = self._walk or self._store.list(keys.SEGMENTS)
        infos = list(islice(self._walk, self._listed_at_once))
        if not infos:
            self._walk = None
        return infos

    def _letter_blocks(self, ours: Iterable[Incarnation]) -> set[BlockId] | None:
        """The blocks that dead letters name; None when a letter's block cannot be told."""
        found: set[BlockId] = set()
        for life in ours:
            box = Box(self._store, life)
            for place in (box.waiting, box.list_held):
                for info in place():
                    block = keys.letter_about(keys.letter_place(info.key)[2])
                    if block is None:
                        self._leave(
                            info.key,
                            "no segment is swept: its name does not say which one it is about. "
                            "Move it elsewhere",
                        )
                        return None
                    found.add(block)
        return found

    def _whole(self, state: MetaState) -> bool:
        """Check that the log is not an old copy of itself, which would not know newer segments."""
        prefix = keys.snapshot_prefix(state.incarnation)
        newest = next(
            (i for i, key in snapshot.list_snapshots(self._store) if key.startswith(prefix)), 0
        )
        if newest > state.index:
            self._leave(
                keys.snapshot(incarnation=state.incarnation, index=newest),
                "no segment is swept: it is of a later entry than the log has. The log has lost "
                "entries; restore it (docs/runbook.md)",
            )
        return newest <= state.index

    def _go(self, info: ObjectInfo) -> bool:
        """Delete one. An orphan of an earlier incarnation is read first: if it is damaged, adoption
        skipped it, and an operator should look at it.
        """
        segment = keys.segment_name(info.key)
        state = self._leader.state
        if segment is None or (segment.incarnation != state.incarnation and not self._sound(info)):
            return False
        self._leader.confirm()
        self._store.delete(info.key)
        return True

    def _sound(self, info: ObjectInfo) -> bool:
        one = candidate(info.key)
        assert one is not None
        try:
            meta = segment_of(self._store, one, self._store.read(info.key))
        except NotFound:
            return False
        except Corrupt as error:
            self._leave(info.key, f"it is not swept: {error}")
            return False
        if wrong := registration.why_malformed(meta):
            self._leave(info.key, f"it is not swept: {wrong}")
        return not wrong

    def _leave(self, key: str, why: str) -> None:
        if len(self._left) < LEFT_MAX:
            self._left[key] = f"{key}: {why}"
            self._metrics.orphans_left.set(len(self._left))
        if key not in self._told and len(self._told) < LEFT_MAX:
            self._told.add(key)
            log_.error("orphan not deleted key=%s cause=%s", key, why)


def _going(
    state: MetaState,
    infos: Iterable[ObjectInfo],
    *,
    registration_floor: LeaseTime,
    named: Container[BlockId],
) -> Iterator[ObjectInfo]:
    for info in infos:
        segment = keys.segment_name(info.key)
        if (
            segment is not None
            and is_fenced(state, segment.block, registration_floor=registration_floor)
            and is_unregistered(state, segment, named=named)
        ):
            yield info
