"""Objects that ended attempts may have left in the store, until a late listing finds none (S1).

Every task attempt says in an *intent* what it is about to write. An attempt that has ended can
never complete, so what it wrote and the index does not list is a leftover. But a task that nobody
can reach may go on writing for a while, so only a listing after the maximum lifetime of a task is
final.
"""

from __future__ import annotations

from collections.abc import Container, Mapping
from typing import NamedTuple

from maar.metastore.records.effects import Effects, Refused, Swept
from maar.metastore.records.entries import AttemptKey, LeftoversSwept
from maar.metastore.records.packs import unpack
from maar.metastore.state.state import EndedAttempt, MetaState
from maar.model import keys
from maar.model.block import BlockMeta, Kind
from maar.model.ids import BlockId, FencingToken, PlanId
from maar.model.policy import MINUTE_NS
from maar.model.refusal import Refusal
from maar.model.time import LeaseTime

EARLY_NS = MINUTE_NS  # most tasks have stopped this long after their attempt has ended

# ── decisions of the leader: they only read ────────────────────────────────────────────────────


class Sweep(NamedTuple):
    attempt_key: AttemptKey
    final: bool  # nothing can be written any more: what is found is all, and intents may go too


def due(
    leftovers: Mapping[AttemptKey, EndedAttempt],
    *,
    now: LeaseTime,
    leftovers_ns: int,
    passed: Container[AttemptKey],
    resting: Container[AttemptKey],
    limit: int,
) -> list[Sweep]:
    """Which attempts to clean up after, oldest end first.

    Each is visited twice: once early, since failed attempts can leave much (`passed` are those that
    had this visit), and once finally.
    """
    early: list[Sweep] = []
    final: list[Sweep] = []
    for attempt_key, ended_attempt in leftovers.items():
        age = now - ended_attempt.ended_at
        if len(final) >= limit or age <= min(EARLY_NS, leftovers_ns):
            break
        if attempt_key in resting:
            continue
        if age > leftovers_ns:
            final.append(Sweep(attempt_key, final=True))
        elif not ended_attempt.completed and attempt_key not in passed and len(early) < limit:
            early.append(Sweep(attempt_key, final=False))
    return [*final, *early][:limit]


def unlisted_keys(state: MetaState, written: Mapping[str, BlockId]) -> list[str]:
    """Of the objects that an ended attempt may have written, those that nobody will ever read.

    Two tasks under one token write blocks of the same id, so only the listed keys tell them apart.
    """
    listed = {key for block in set(written.values()) for key in _objects_in_index(state, block)}
    return [key for key in written if key not in listed]


def _objects_in_index(state: MetaState, block: BlockId) -> set[str]:
    if block in state.blocks:
        return _objects(state.blocks.get(block))
    if block in state.retired:
        return _objects(unpack(state.retired[block].packed))
    return set()


def _objects(meta: BlockMeta) -> set[str]:
    """The files of a block, and the manifest that belongs to them."""
    files = {location.key for file in meta.files for location in file.locations}
    return files | set(map(keys.manifest_of, files)) if meta.kind is Kind.BLOCK else files


# ── the fold ───────────────────────────────────────────────────────────────────────────────────


def remember_attempt(
    state: MetaState, plan: PlanId, token: FencingToken, *, completed: bool
) -> None:
    """An attempt has ended: its token can never complete, and what it wrote is known by it."""
    state.leftovers[AttemptKey(plan, token)] = EndedAttempt(state.lease_time, completed)


def sweep(state: MetaState, entry: LeftoversSwept) -> Effects:
    if state.adopting:
        return (Refused(Refusal.ADOPTING),)
    swept = sum(
        state.leftovers.pop(attempt_key, None) is not None for attempt_key in entry.attempts
    )
    return (Swept(swept),)
