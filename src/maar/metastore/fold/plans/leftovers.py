"""Objects that ended attempts may have left in the store, until a late listing finds none (S1).

Every task attempt says in an *intent* what it is about to write. An attempt that has ended can
never complete, so what it wrote and the index does not list is a leftover. A rollback deletes it
soon. But a task that nobody can reach may go on writing for a while, so only a listing after the
maximum lifetime of a task is final.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping

import msgspec

from maar.metastore.records.effects import Effects, Refused, Swept
from maar.metastore.records.entries import AttemptKey, LeftoversSwept
from maar.metastore.records.packs import unpack
from maar.metastore.state.state import ANY_STORE, EndedAttempt, MetaState
from maar.model import keys
from maar.model.block import TABLES, BlockMeta, Kind
from maar.model.ids import BlockId, FencingToken, PlanId, StoreName
from maar.model.plan import Attempt, AttemptEnd, Plan
from maar.model.refusal import Refusal
from maar.model.time import LeaseTime

# ── decisions of the leader: they only read ────────────────────────────────────────────────────


def due(
    leftovers: Mapping[AttemptKey, EndedAttempt],
    *,
    now: LeaseTime,
    leftovers_ns: int,
    resting: Container[AttemptKey],
    limit: int,
) -> list[AttemptKey]:
    """Which attempts to clean up after for the last time, oldest end first: none of their tasks can
    write any more.
    """
    found: list[AttemptKey] = []
    for attempt_key, ended_attempt in leftovers.items():
        if len(found) >= limit or now - ended_attempt.ended_at <= leftovers_ns:
            break
        if attempt_key not in resting:
            found.append(attempt_key)
    return found


def unlisted_keys(
    state: MetaState, written: Mapping[str, BlockId], store: StoreName | None = None
) -> list[str]:
    """Of the objects that an ended attempt may have written to a store, those that nobody will ever
    read; without a store, those that no store needs.

    Two tasks under one token write blocks of the same id, so only the listed keys tell them apart.
    """
    listed = {
        key for block in set(written.values()) for key in _objects_in_index(state, block, store)
    }
    return [key for key in written if key not in listed]


def _objects_in_index(state: MetaState, block: BlockId, store: StoreName | None) -> set[str]:
    """Live, retired, or waiting for a store to delete them by its own rules."""
    found: set[str] = set()
    if block in state.blocks:
        found |= _objects(state.blocks.get(block), store)
    elif block in state.retired:
        found |= _objects(unpack(state.retired[block].packed), store)
    for buried in state.tombstones.of_block(block):
        if store in (None, buried.store):
            found.update(keys.objects_beside(buried.key, TABLES))
    return found


def _objects(meta: BlockMeta, store: StoreName | None) -> set[str]:
    """The files of a block, and the manifest that belongs to them."""
    files = {at.key for file in meta.files for at in file.locations if store in (None, at.store)}
    return files | set(map(keys.manifest_of, files)) if meta.kind is Kind.BLOCK else files


# ── the fold ───────────────────────────────────────────────────────────────────────────────────


def remember_attempt(state: MetaState, plan: Plan, attempt: Attempt) -> None:
    """An attempt has ended: its token can never complete, and what it wrote is known by it."""
    completed = attempt.end is AttemptEnd.COMPLETED
    dead = attempt.started_at is not None and not completed
    home = ANY_STORE if state.kinds[plan.kind].any_store else plan.key.store
    state.leftovers[AttemptKey(plan.id, attempt.token)] = EndedAttempt(
        state.lease_time, completed, dead, home
    )


def is_dead(state: MetaState, plan: PlanId, token: FencingToken) -> bool:
    """Whether it has ended, may have written, and nobody has rolled it back."""
    return AttemptKey(plan, token) in state.leftovers.dead


def mark_rolled_back(state: MetaState, plan: PlanId, tokens: Iterable[FencingToken]) -> None:
    """These attempts were rolled back; a late listing still has the last word on them (S1)."""
    for token in tokens:
        ended = state.leftovers.get(AttemptKey(plan, token))
        if ended is not None:
            state.leftovers[AttemptKey(plan, token)] = msgspec.structs.replace(ended, dead=False)


def sweep(state: MetaState, entry: LeftoversSwept) -> Effects:
    if state.adopting:
        return (Refused(Refusal.ADOPTING),)
    swept = sum(
        state.leftovers.pop(attempt_key, None) is not None for attempt_key in entry.attempts
    )
    return (Swept(swept),)
