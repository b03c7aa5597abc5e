"""Deletion by predicate: what it applies to, and when nothing is left of it (S8).

A predicate hides profiles in blocks from before it, wherever they are read or merged. A plan that
is granted after it applies it to its inputs, so that what comes of it is from after it. One that
was granted before is not disturbed: what comes of it is from before, and is hidden like the rest.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

import msgspec

from maar.metastore.fold.plans import plan as plans
from maar.metastore.records.effects import (
    Effect,
    Effects,
    PredicateGone,
    PredicateTaken,
    Refused,
)
from maar.metastore.records.entries import Entry, PredicateAdded, PredicatesDropped
from maar.metastore.state.state import MetaState
from maar.model.block import BlockMeta, Kind
from maar.model.errors import InvalidInput, Rejected
from maar.model.ids import BlockId, FencingToken, TenantId, block_time_ns, tenant_id
from maar.model.plan import PlanResult
from maar.model.predicate import (
    EVER_NS,
    STEP_NS,
    DeletionRequest,
    Mask,
    Predicate,
)
from maar.model.refusal import Refusal

SERVICE_MAX = 1_000  # characters
REQUEST_ID_MAX = 200

# ── decisions: they only read ──────────────────────────────────────────────────────────────────


def check(mask: Mask, request_id: str = "") -> None:
    """InvalidInput when it cannot be."""
    tenant_id(mask.tenant)
    if len(request_id) > REQUEST_ID_MAX:
        raise InvalidInput(f"a request id has at most {REQUEST_ID_MAX} characters")
    if len(mask.service) > SERVICE_MAX:
        raise InvalidInput(f"a service has no name of {len(mask.service)} characters")
    if not 0 <= mask.from_ns < mask.until_ns <= EVER_NS:
        raise InvalidInput("the time range is empty or begins before 1970", reason="time_range")
    if mask.from_ns % STEP_NS or (mask.until_ns % STEP_NS and mask.until_ns != EVER_NS):
        raise InvalidInput("the time range is given in whole microseconds", reason="time_range")


def order(state: MetaState, mask: Mask, request: DeletionRequest | None = None) -> list[Entry]:
    """What somebody asks for; nothing when the same request was made before. Rejected when there
    are too many, or when the request's name is that of another deletion.
    """
    if same_request(state, mask, request) is not None:
        return []
    if is_full(state):
        raise Rejected(
            f"{state.policy.predicates_max} deletions are still being carried out, which is the "
            "most there can be; wait for one to end (maar delete --list)"
        )
    return [PredicateAdded(mask, request)]


def same_request(state: MetaState, mask: Mask, request: DeletionRequest | None) -> Predicate | None:
    """The deletion that the same request made, carried out or not: to make another one would delete
    what was pushed since.
    """
    found = state.asked_deletions.get((mask.tenant, request.name)) if request else None
    if found is not None and found.mask != mask:
        raise Rejected(
            f"the request id {found.request.name if found.request else ''!r} is that of deletion "
            f"{found.id}, which is of other profiles; with a request id, say times that stay the "
            "same"
        )
    return found


def predicate_of(
    effects: Iterable[Effect], state: MetaState, mask: Mask, request: DeletionRequest | None = None
) -> Predicate:
    found = same_request(state, mask, request)
    if found is not None:
        return found
    for effect in effects:
        if isinstance(effect, PredicateTaken):
            return effect.predicate
    raise Rejected(f"nothing was deleted: {Refusal.TOO_MANY}")


def is_full(state: MetaState) -> bool:
    return len(state.predicates) >= state.policy.predicates_max


def applying(
    state: MetaState, meta: BlockMeta, *, before: FencingToken | None = None
) -> tuple[Mask, ...]:
    """What is to be hidden of a live block; for a plan, by predicates from before its grant."""
    names = which(state, meta, before=before)
    return tuple(state.predicates[name].mask for name in names)


def which(state: MetaState, meta: BlockMeta, *, before: FencingToken | None = None) -> list[int]:
    """The predicates that apply to a live block."""
    found: list[int] = []
    entry: int | None = _NOT_ASKED
    for predicate in state.predicates.values():
        if before is not None and predicate.id > before.index:
            break
        if not any(map(predicate.mask.touches, meta.datasets)):
            continue
        if entry == _NOT_ASKED:
            place = state.queue.place(meta.id) if meta.kind is Kind.SEGMENT else None
            entry = place.entry if place is not None else None
        if predicate.is_after(meta, entry=entry):
            found.append(predicate.id)
    return found


_NOT_ASKED = -1


def of_tenant(state: MetaState, tenant: TenantId) -> bool:
    """Whether any of a tenant's profiles may be hidden."""
    return any(each.mask.tenant == tenant for each in state.predicates.values())


def of_letters(
    state: MetaState, letters: Iterable[BlockId], tenant: TenantId
) -> dict[BlockId, tuple[Mask, ...]]:
    """What is to be hidden of segments that are not in the index yet: they count by the lease time
    in their ids.
    """
    found: dict[BlockId, tuple[Mask, ...]] = {}
    for block in letters:
        masks = tuple(
            each.mask
            for each in state.predicates.values()
            if each.mask.tenant == tenant
            and state.incarnation not in each.later
            and block_time_ns(block) < each.at
        )
        if masks:
            found[block] = masks
    return found


class Deletable(NamedTuple):
    """What a plan may say that it deleted."""

    profiles: dict[TenantId, int]  # at most as many
    whole: frozenset[tuple[TenantId, str]]  # services of which nothing may be left


NOTHING = Deletable({}, frozenset())


def deletable(state: MetaState, inputs: Iterable[BlockMeta], token: FencingToken) -> Deletable:
    if not state.predicates:
        return NOTHING
    profiles: dict[TenantId, int] = {}
    whole: dict[tuple[TenantId, str], bool] = {}
    for meta in inputs:
        masks = applying(state, meta, before=token)
        for each in meta.datasets:
            name = each.tenant, each.service
            covered = any(mask.covers(each) for mask in masks)
            whole[name] = covered and whole.get(name, True)
            if any(mask.touches(each) for mask in masks):
                profiles[each.tenant] = profiles.get(each.tenant, 0) + each.profiles
    return Deletable(profiles, frozenset(name for name, all_of_it in whole.items() if all_of_it))


def refusal(allowed: Deletable, result: PlanResult) -> Refusal | None:
    """Why a plan cannot have deleted what it says, or has left what it had to delete."""
    if not 0 <= result.account.deleted <= sum(allowed.profiles.values()):
        return Refusal.ACCOUNT
    left = {(each.tenant, each.service) for meta in result.outputs for each in meta.datasets}
    return None if allowed.whole.isdisjoint(left) else Refusal.HIDDEN


def why_unfinished(state: MetaState, predicate: Predicate) -> str:
    """Why a block from before a predicate may still come, in a sentence; '' when none can."""
    if state.adopting:
        return str(Refusal.ADOPTING)
    if state.registration_floor < predicate.at:
        return "segments from before it may still be registered"
    for plan in state.plans.values():
        if plan.lease is not None and plan.lease.token.index <= predicate.id:
            return f"plan {plan.id} was granted before it and is at work"
        if state.kinds[plan.kind].commits and plan.id.index <= predicate.id:
            return f"plan {plan.id} was opened before it and may still bring blocks"
    for attempt in state.leftovers:
        if attempt.token.index <= predicate.id:
            return "attempts from before it are not swept yet"
    return ""


def awaits_floor(state: MetaState) -> bool:
    """Whether a deletion waits for the registration floor, which an idle lake would not move."""
    return any(state.registration_floor < each.at for each in state.predicates.values())


def hides_retired(predicate: Predicate, meta: BlockMeta, *, lag_ns: int) -> bool:
    """Whether a block whose place is not known any more may be one that it applies to."""
    if not any(map(predicate.mask.touches, meta.datasets)):
        return False
    if predicate.is_after(meta, entry=None):
        return True
    return meta.plan is None and block_time_ns(meta.id) <= predicate.at + lag_ns


# ── the fold ───────────────────────────────────────────────────────────────────────────────────


def add(state: MetaState, entry: PredicateAdded) -> Effects:
    made = Predicate(
        state.index, state.incarnation, state.lease_time, entry.mask, request=entry.request
    )
    if made.request_key() in state.asked_deletions:
        return ()  # the same request has made one
    if is_full(state):
        return (Refused(Refusal.TOO_MANY, what=entry.mask.service),)
    state.predicates[made.id] = made
    _remember(state, made)
    return (PredicateTaken(made),)


def _remember(state: MetaState, predicate: Predicate) -> None:
    if (name := predicate.request_key()) is not None:
        state.asked_deletions[name] = predicate
        plans.trim(state.asked_deletions, state.policy.finished_max)


def drop(state: MetaState, entry: PredicatesDropped) -> Effects:
    """That no block is left was seen by the leader; that none can come is seen again here."""
    effects: list[Effect] = []
    for name in entry.predicates:
        predicate = state.predicates.get(name)
        if predicate is None or why_unfinished(state, predicate):
            effects.append(Refused(Refusal.STILL_NEEDED, what=str(name)))
            continue
        del state.predicates[name]
        effects.append(PredicateGone(predicate))
    return tuple(effects)


def restore(state: MetaState, found: Iterable[Predicate]) -> None:
    """In the entry that begins another incarnation: what the store holds and the state lacks, and
    which lease times do not count any more.
    """
    known: Mapping[int, Predicate] = {
        **{each.id: each for each in found},
        **state.predicates,
    }
    for name in sorted(known):
        each = known[name]
        state.predicates.pop(name, None)
        made = msgspec.structs.replace(each, later=(*each.later, state.incarnation))
        state.predicates[name] = made
        if made.request_key() not in state.asked_deletions:
            _remember(state, made)
