"""Why a block is not compacted yet: where it stands, what it waits for, what can be done."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import assert_never

import msgspec

from maar.metastore.fold.deleting import retirement
from maar.metastore.fold.plans.lease import attempts_left, eligible
from maar.metastore.state.retired import Cause, Retired
from maar.metastore.state.state import MetaState
from maar.metastore.state.timeline import NEVER
from maar.metastore.views import reads
from maar.model.block import BlockMeta, Kind
from maar.model.errors import NotFound
from maar.model.ids import BlockId
from maar.model.plan import AttemptEnd, Plan, PlanState
from maar.model.stores import lacking, stores_of
from maar.model.time import LeaseTime
from maar.model.words import count_text, span_text
from maar.ports.operator.operator import Explanation

LOOKED_AT_MAX = 1_000  # blocks of a lane; what waits behind more of them is only estimated
PINS_NAMED_MAX = 5


def explain(
    state: MetaState, block: BlockId, *, now: LeaseTime, looked_at_max: int = LOOKED_AT_MAX
) -> Explanation:
    found = _explain(state, block, now=now, looked_at_max=looked_at_max)
    return msgspec.structs.replace(found, sentences=(*found.sentences, *_copies(state, block)))


def _copies(state: MetaState, block: BlockId) -> Iterator[str]:
    """Where it is, and where it should be; nothing while there is a single store (S14)."""
    if len(state.stores.stores) > 1 and block in state.blocks:
        meta = state.blocks.get(block)
        yield f"It is in {', '.join(stores_of(meta)) or 'no store'}; its home is {meta.store}."
        if absent := lacking(meta, state.stores):
            yield f"It is not yet in {', '.join(absent)}, where repair will copy it."
    for buried in state.tombstones.of_block(block):
        yield f"A copy in {buried.store} is still to be deleted there: {buried.key}."


def _explain(
    state: MetaState, block: BlockId, *, now: LeaseTime, looked_at_max: int
) -> Explanation:
    if block in state.retired:
        sentences = _explain_retired(state, block, now)
        meta = reads.known_block(state, block)
        return Explanation(block, "retired", tuple(sentences), meta)
    if block not in state.blocks:
        raise NotFound(_unknown(state, block))
    meta = state.blocks.get(block)
    owner = state.owners.get(block)
    if owner is not None:
        plan = state.plans.get(owner) or state.parked[owner]
        aside = plan.state in (PlanState.EXCLUDED, PlanState.PARKED)
        sentences = _explain_held(state, plan, now) if aside else _explain_owned(state, plan, now)
        return Explanation(block, "held" if aside else "owned", tuple(sentences), meta, plan.id)
    if meta.kind is Kind.QUARANTINE:
        return Explanation(block, "quarantined", tuple(_explain_quarantined(meta)), meta, meta.plan)
    if block in state.queue and _lane_closes(state, block):
        return Explanation(
            block, "queued", tuple(_explain_queued(state, meta, now, looked_at_max)), meta
        )
    why = state.kinds.queue.why_finished(meta, state.policy)
    prospects = state.kinds.prospects(state, meta, now=now)
    return Explanation(block, "finished", (why, *prospects), meta)


def _lane_closes(state: MetaState, block: BlockId) -> bool:
    """Whether it will ever be merged: not if the policy has no rule for its lane any more."""
    rules, place = state.kinds.queue, state.queue.places[block]
    return rules.closes_after_ns(rules.line(place.key), state.policy) is not None


def _unknown(state: MetaState, block: BlockId) -> str:
    if block in state.remembered:
        return f"block {block} was merged into another, and its objects are deleted"
    return (
        f"nothing is known of block {block}: it never was in the index, or it was merged or "
        "expired so long ago that it is forgotten; `maar blocks` lists what is live"
    )


def _explain_quarantined(meta: BlockMeta) -> Iterator[str]:
    yield (
        f"It is in quarantine and is never merged: its {meta.profiles} profiles could not be "
        f"decoded by plan {meta.plan}. They are kept as they came, and `maar get` returns them."
    )
    keys = ", ".join(location.key for file in meta.files for location in file.locations[:1])
    yield f"Why, profile by profile, is in the column `cause` of {keys}."


# ── in the queue ───────────────────────────────────────────────────────────────────────────────


def _explain_queued(
    state: MetaState, meta: BlockMeta, now: LeaseTime, looked_at_max: int
) -> Iterator[str]:
    rules = state.kinds.queue
    waits = rules.why_queued(state, meta, now=now, looked_at_max=looked_at_max)
    yield from waits.sentences
    yield from _setbacks(state, meta, now)
    if waits.due:
        yield from _obstacles(state)


def _setbacks(state: MetaState, meta: BlockMeta, now: LeaseTime) -> Iterator[str]:
    """Which plans that it could be part of were rolled back, so that it waits for others."""
    key = state.queue.places[meta.id].key
    for kind in state.kinds:
        setback = state.setback(kind, key)
        if setback is not None:
            rests = setback.until - now
            next_one = f"; none is due for another {span_text(rests)}" if rests > 0 else ""
            times = count_text(setback.failures, "time")
            yield f"Plans of the kind {kind} failed {times} in a row in this lane{next_one}."


def _obstacles(state: MetaState) -> Iterator[str]:
    """Why work that is due does not become plans, apart from a lack of workers."""
    if len(state.plans) >= state.policy.plans_max:
        yield (
            f"The schedule is full: it holds {len(state.plans)} plans (compaction.plans_max), "
            "and no new one fits until some complete; `maar plans --failing` shows those that fail."
        )
    if attempts_left(state) <= 0:
        yield (
            f"Nothing is handed out: {len(state.leftovers)} ended attempts wait to be cleaned up; "
            "`maar status` says what blocks the cleanup."
        )


# ── in a plan ──────────────────────────────────────────────────────────────────────────────────


def _explain_owned(state: MetaState, plan: Plan, now: LeaseTime) -> Iterator[str]:
    yield (
        f"Plan {plan.id} ({plan.kind}, {state.kinds[plan.kind].scope(plan.key)}) owns it, with "
        f"{count_text(len(plan.inputs) - 1, 'other block')}."
    )
    if _awaits_rollback(plan, now):
        yield (
            f"The plan had begun, and nobody works on it any more{_last_cause(plan)}. It is not "
            "tried again: a cleaning rolls it back, or the planner after services.hold_max_s, or "
            f"`maar plans rollback {plan.id}` now. Then its blocks wait in their lanes again."
        )
        return
    if plan.lease is not None:
        yield _lease(plan, now)
    elif plan.eligible_at > now:
        yield f"The plan failed and is tried again in {span_text(plan.eligible_at - now)}."
    else:
        yield "The plan waits for a worker with a free slot."
    if plan.failures:
        limit = max(plan.failure_limit, state.raised_limit(now))
        yield (
            f"It has failed {count_text(plan.failures, 'time')} of at most {limit}, and runs alone "
            f"on a worker now{_last_cause(plan)}."
        )


def _awaits_rollback(plan: Plan, now: LeaseTime) -> bool:
    held = plan.lease is not None and not plan.lease.is_expired(now)
    return plan.removable and plan.state is PlanState.INFLIGHT and not held


def _lease(plan: Plan, now: LeaseTime) -> str:
    lease = plan.lease
    assert lease is not None
    if lease.is_expired(now):
        return (
            f"Worker {lease.worker} held it and stopped renewing; its lease expired "
            f"{span_text(now - lease.expires_at)} ago, and the next worker that asks gets the plan."
        )
    started = plan.attempts[-1].started_at
    since = f"began {span_text(now - started)} ago" if started is not None else "has not begun yet"
    return (
        f"Worker {lease.worker} holds it under token {lease.token} and {since}; its lease lasts "
        f"another {span_text(lease.expires_at - now)}, and is renewed while it works."
    )


def _explain_held(state: MetaState, plan: Plan, now: LeaseTime) -> Iterator[str]:
    if plan.state is PlanState.PARKED:
        yield (
            f"Plan {plan.id} holds it and is parked: it had failed "
            f"{count_text(plan.failures, 'time')} and had to leave a full schedule"
            f"{_last_cause(plan)}."
        )
        yield (
            f"It returns by itself when the schedule is less than half full (now {len(state.plans)}"
            f" of {state.policy.plans_max}), or with `maar plans requeue {plan.id}`."
        )
        return
    by_hand = f", {plan.note!r}" if plan.note else ""
    if plan.eligible_at >= NEVER:
        yield f"Plan {plan.id} holds it and was excluded by hand{by_hand}."
        yield f"It is not tried again until somebody runs `maar plans requeue {plan.id}`."
        return
    yield (
        f"Plan {plan.id} holds it and is excluded{by_hand}: it failed "
        f"{count_text(plan.failures, 'time')}{_last_cause(plan)}."
    )
    if plan.eligible_at <= now:
        yield "It is tried again when its turn comes: of the excluded plans, one at a time."
    elif eligible(state, plan, now):
        yield "It is tried again when a worker asks for work, since the failure limit is raised."
    else:
        yield (
            f"It is tried again in {span_text(plan.eligible_at - now)}, then after pauses that "
            f"double; `maar plans requeue {plan.id}` does it now.{_look(plan)}"
        )


def _look(plan: Plan) -> str:
    """A plan of one block that keeps failing may have met a damaged object."""
    if len(plan.inputs) != 1:
        return ""
    (block,) = plan.inputs
    return f" Should its objects be damaged: `maar blocks lose {block} --dry-run` looks at them."


def _last_cause(plan: Plan) -> str:
    ended = (AttemptEnd.EXPIRED, AttemptEnd.FAILED)
    causes = [attempt.cause for attempt in plan.attempts if attempt.end in ended]
    return f"; last: {causes[-1].rstrip('.')}" if causes else ""


# ── replaced ───────────────────────────────────────────────────────────────────────────────────


def _explain_retired(state: MetaState, block: BlockId, now: LeaseTime) -> Iterator[str]:
    retired = state.retired[block]
    ago = span_text(now - retired.at)
    yield f"{_why_retired(retired)} {ago} ago (entry {retired.entry})."
    if doubt := retirement.doubt(state, block):
        yield f"Its objects cannot be deleted: {doubt}."
        return
    expired = retired.cause is Cause.EXPIRED
    setting = "retention.expired_delay_s" if expired else "compaction.retire_delay_s"
    left = retirement.delay_ns(state, retired) - (now - retired.at)
    if expired and state.hold.why:
        yield "Its objects stay while retention is on hold (`maar retention release` ends that)."
    elif left >= 0:
        yield f"Its objects stay for another {span_text(left)} ({setting})."
    else:
        yield f"Its objects could be deleted {span_text(-left)} ago, unless a reader holds them."
    pins = {
        reader: pin
        for reader, pin in state.pins.items()
        if pin.entry < retired.entry and now <= pin.expires_at
    }
    for reader, pin in islice(pins.items(), PINS_NAMED_MAX):
        yield (
            f"Reader {reader} holds the index as of entry {pin.entry}, for another "
            f"{span_text(pin.expires_at - now)} unless it renews."
        )
    if len(pins) > PINS_NAMED_MAX:
        yield f"So do {len(pins) - PINS_NAMED_MAX} more readers."


def _why_retired(retired: Retired) -> str:
    match retired.cause:
        case Cause.REPLACED if retired.outputs:
            return f"It was replaced by {', '.join(retired.outputs)}"
        case Cause.REPLACED:
            return "It was replaced by nothing"
        case Cause.EXPIRED:
            return "Retention took it"
        case Cause.LOST:
            return "An operator gave it up as lost"
        case Cause.DELETED:
            return "All of its profiles were deleted"
        case Cause.COPY:
            return "A copy of it ended"  # of copies only: a retired block has another cause
        case _:
            assert_never(retired.cause)
