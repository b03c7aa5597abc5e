"""Why a block is not compacted yet: where it stands, what it waits for, what can be done."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import NamedTuple, assert_never

from maar.metastore.fold import retirement
from maar.metastore.fold.lease import attempts_left, eligible
from maar.metastore.fold.plan import aged, cut
from maar.metastore.state.retired import Cause, Retired
from maar.metastore.state.state import MetaState
from maar.metastore.state.timeline import NEVER
from maar.metastore.views import reads
from maar.model.block import NO_DAY, BlockMeta, Kind
from maar.model.errors import NotFound
from maar.model.ids import BlockId
from maar.model.keys import date_text
from maar.model.lane import Item
from maar.model.plan import AttemptEnd, Plan, PlanState
from maar.model.policy import Level
from maar.model.time import SECOND_NS, LeaseTime
from maar.ports.operator import Explanation

LOOKED_AT_MAX = 1_000  # blocks of a lane; what waits behind more of them is only estimated
PINS_NAMED_MAX = 5


def explain(
    state: MetaState, block: BlockId, *, now: LeaseTime, looked_at_max: int = LOOKED_AT_MAX
) -> Explanation:
    if block in state.retired:
        sentences = _retired(state, block, now)
        meta = reads.known_block(state, block)
        return Explanation(block, "retired", tuple(sentences), meta)
    if block not in state.blocks:
        raise NotFound(_unknown(state, block))
    meta = state.blocks.get(block)
    owner = state.owners.get(block)
    if owner is not None:
        plan = state.plans.get(owner) or state.parked[owner]
        aside = plan.state in (PlanState.EXCLUDED, PlanState.PARKED)
        sentences = _held(state, plan, now) if aside else _owned(state, plan, now)
        return Explanation(block, "held" if aside else "owned", tuple(sentences), meta, plan.id)
    if meta.kind is Kind.QUARANTINE:
        return Explanation(block, "quarantined", tuple(_quarantined(meta)), meta, meta.plan)
    if block in state.queue and state.policy.level(meta.level) is not None:
        return Explanation(block, "queued", tuple(_queued(state, meta, now, looked_at_max)), meta)
    return Explanation(block, "finished", (_finished(state, meta),), meta)


def _unknown(state: MetaState, block: BlockId) -> str:
    if block in state.remembered:
        return f"block {block} was merged into another, and its objects are deleted"
    return (
        f"nothing is known of block {block}: it never was in the index, or it was merged or "
        "expired so long ago that it is forgotten; `maar blocks` lists what is live"
    )


def _finished(state: MetaState, meta: BlockMeta) -> str:
    if state.policy.level(meta.level) is None:
        return f"It is finished: nothing merges blocks of level {meta.level}, which is the top."
    target = state.policy.target_block_bytes
    return (
        f"It is finished: it has {_size(meta.size)}, and a block of {_size(target)} or more "
        "is not merged further (compaction.target_block_bytes)."
    )


def _quarantined(meta: BlockMeta) -> Iterator[str]:
    yield (
        f"It is in quarantine and is never merged: its {meta.profiles} profiles could not be "
        f"decoded by plan {meta.plan}. They are kept as they came, and `maar get` returns them."
    )
    keys = ", ".join(location.key for file in meta.files for location in file.locations[:1])
    yield f"Why, profile by profile, is in the column `cause` of {keys}."


# ── in the queue ───────────────────────────────────────────────────────────────────────────────


class LaneBatch(NamedTuple):
    """The blocks that a block will be merged with, as things stand."""

    number: int  # closed batches of the lane that come before it
    items: list[Item]
    closed: bool


def batch_of(
    state: MetaState, item: Item, level: Level, *, ahead: int, now: LeaseTime
) -> LaneBatch:
    waiting = list(islice(state.queue.items(item.key), ahead + level.count + 1))
    closed = list(cut(iter(waiting), level, span_ns=state.policy.span_ns, now=now))
    for number, batch in enumerate(closed):
        if item in batch:
            return LaneBatch(number, batch, closed=True)
    return LaneBatch(len(closed), waiting[sum(map(len, closed)) :], closed=False)


def _queued(state: MetaState, meta: BlockMeta, now: LeaseTime, looked_at_max: int) -> Iterator[str]:
    item = state.queue.places[meta.id]
    level = state.policy.level(meta.level)
    assert level is not None
    ahead = state.queue.ahead(meta.id)
    yield (
        f"It waits in the lane of {meta.tenant or 'all tenants'}, shard {meta.shard}, "
        f"level {meta.level}{_zone_and_day(item)}, store {meta.store}, since "
        f"{_span(now - item.added_at)}; "
        f"{_count(ahead, 'block')} of the lane came before it."
    )
    if ahead > looked_at_max:
        yield f"About {_count(ahead // level.count, 'plan')} of its lane come first."
        yield from _obstacles(state, meta.level)
        return
    batch = batch_of(state, item, level, ahead=ahead, now=now)
    if not batch.closed:
        yield _open(batch, level, now)
        return
    first = f", after {_count(batch.number, 'other')} of its lane" if batch.number else ""
    yield (
        f"Its batch is closed ({_closed_by(batch, level, now)}) and becomes a plan when a worker "
        f"asks for work{first}."
    )
    yield from _obstacles(state, meta.level)


def _zone_and_day(item: Item) -> str:
    zone = f", zone {item.key.zone}" if item.key.zone else ""
    return zone if item.key.day == NO_DAY else f"{zone}, day {date_text(item.key.day)}"


def _open(batch: LaneBatch, level: Level, now: LeaseTime) -> str:
    size = sum(item.size for item in batch.items)
    left = level.age_ns - (now - batch.items[0].added_at)
    return (
        f"Its batch is open: it closes at {level.count} blocks (now {len(batch.items)}), at "
        f"{_size(level.bytes)} (now {_size(size)}), or when its oldest block has waited "
        f"{_span(level.age_ns)} ({_span(left)} left), whichever comes first."
    )


def _closed_by(batch: LaneBatch, level: Level, now: LeaseTime) -> str:
    size = sum(item.size for item in batch.items)
    if len(batch.items) >= level.count:
        return f"by count: {len(batch.items)} of {level.count} blocks"
    if size >= level.bytes:
        return f"by size: {_size(size)} of {_size(level.bytes)}"
    if aged(batch.items[0], level, now):
        return f"by age: its oldest block has waited longer than {_span(level.age_ns)}"
    return "what follows in the lane is too far away in time (compaction.span_s)"


def _obstacles(state: MetaState, level: int) -> Iterator[str]:
    """What keeps closed batches from becoming plans, apart from a lack of workers."""
    lower = sum(len(state.queue.full.get(number, ())) for number in range(level))
    if lower:
        yield (
            f"Lower levels go first, save for one plan in {state.policy.least_share}; they have "
            f"{_count(lower, 'full lane')}."
        )
    if len(state.plans) >= state.policy.plans_max:
        yield (
            f"The schedule is full: it holds {len(state.plans)} plans (compaction.plans_max), "
            "and no new one fits until some complete; `maar plans --failing` shows those that fail."
        )
    if attempts_left(state) <= 0:
        yield (
            f"Nothing is handed out: {len(state.leftovers)} ended attempts wait to be cleaned up; "
            "`maar status` says what holds cleaning up."
        )


# ── in a plan ──────────────────────────────────────────────────────────────────────────────────


def _owned(state: MetaState, plan: Plan, now: LeaseTime) -> Iterator[str]:
    yield (
        f"Plan {plan.id} ({plan.service}, level {plan.key.level}) owns it, with "
        f"{_count(len(plan.inputs) - 1, 'other block')}."
    )
    if plan.lease is not None:
        yield _lease(plan, now)
    elif plan.eligible_at > now:
        yield f"The plan rests for another {_span(plan.eligible_at - now)}, since it failed."
    else:
        yield "The plan waits for a worker with a free slot."
    if plan.failures:
        limit = max(plan.failure_limit, state.raised_limit(now))
        yield (
            f"It has failed {_count(plan.failures, 'time')} of at most {limit}, and runs alone on "
            f"a worker now{_last_cause(plan)}."
        )


def _lease(plan: Plan, now: LeaseTime) -> str:
    lease = plan.lease
    assert lease is not None
    if lease.expired(now):
        return (
            f"Worker {lease.worker} held it and fell silent; its lease ended "
            f"{_span(now - lease.expires_at)} ago, and the next worker that asks gets the plan."
        )
    started = plan.attempts[-1].started_at
    since = f"began {_span(now - started)} ago" if started is not None else "has not begun yet"
    return (
        f"Worker {lease.worker} holds it under token {lease.token} and {since}; its lease lasts "
        f"another {_span(lease.expires_at - now)}, and is renewed while it works."
    )


def _held(state: MetaState, plan: Plan, now: LeaseTime) -> Iterator[str]:
    if plan.state is PlanState.PARKED:
        yield (
            f"Plan {plan.id} holds it and is parked: it had failed {_count(plan.failures, 'time')} "
            f"and had to leave a full schedule{_last_cause(plan)}."
        )
        yield (
            f"It returns by itself when the schedule is less than half full (now {len(state.plans)}"
            f" of {state.policy.plans_max}), or with `maar plans requeue {plan.id}`."
        )
        return
    by_hand = f", {plan.note!r}" if plan.note else ""
    if plan.eligible_at >= NEVER:
        yield f"Plan {plan.id} holds it and was excluded by hand{by_hand}."
        yield f"It is not tried again until somebody says `maar plans requeue {plan.id}`."
        return
    yield (
        f"Plan {plan.id} holds it and is excluded{by_hand}: it failed "
        f"{_count(plan.failures, 'time')}{_last_cause(plan)}."
    )
    if plan.eligible_at <= now:
        yield "It is tried again when its turn comes: of the excluded plans, one at a time."
    elif eligible(state, plan, now):
        yield "It is tried again when a worker asks for work, since the failure limit is raised."
    else:
        yield (
            f"It is tried again in {_span(plan.eligible_at - now)}, then after pauses that double; "
            f"`maar plans requeue {plan.id}` does it now.{_look(plan)}"
        )


def _look(plan: Plan) -> str:
    """A plan of one block that keeps failing may have met a damaged object."""
    (block, *others) = plan.inputs
    if others:
        return ""
    return f" Should its objects be damaged: `maar blocks lose {block} --dry-run` looks at them."


def _last_cause(plan: Plan) -> str:
    ended = (AttemptEnd.EXPIRED, AttemptEnd.FAILED)
    causes = [attempt.cause for attempt in plan.attempts if attempt.end in ended]
    return f"; last: {causes[-1].rstrip('.')}" if causes else ""


# ── replaced ───────────────────────────────────────────────────────────────────────────────────


def _retired(state: MetaState, block: BlockId, now: LeaseTime) -> Iterator[str]:
    retired = state.retired[block]
    ago = _span(now - retired.at)
    yield f"{_why_retired(retired)} {ago} ago (entry {retired.entry})."
    if doubt := retirement.doubt(state, block):
        yield f"Its objects cannot be deleted: {doubt}."
        return
    expired = retired.cause is Cause.EXPIRED
    setting = "retention.expired_delay_s" if expired else "compaction.retire_delay_s"
    left = retirement.delay_ns(state, retired) - (now - retired.at)
    if expired and state.hold.why:
        yield "Its objects stay while retention waits for a person."
    elif left >= 0:
        yield f"Its objects stay for another {_span(left)} ({setting})."
    else:
        yield f"Its objects may go since {_span(-left)}, unless a reader holds them."
    pins = {
        reader: pin
        for reader, pin in state.pins.items()
        if pin.entry < retired.entry and now <= pin.expires_at
    }
    for reader, pin in islice(pins.items(), PINS_NAMED_MAX):
        yield (
            f"Reader {reader} holds the index as of entry {pin.entry}, for another "
            f"{_span(pin.expires_at - now)} unless it renews."
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
            return "A person gave it up as lost"
        case _:
            assert_never(retired.cause)


# ── words ──────────────────────────────────────────────────────────────────────────────────────


def _count(number: int, what: str) -> str:
    return f"{number:,} {what}{'' if number == 1 else 's'}"


def _span(duration_ns: int) -> str:
    seconds = max(0, duration_ns) / SECOND_NS
    if seconds < 120:
        return f"{seconds:.0f} s"
    if seconds < 7200:
        return f"{seconds / 60:.0f} min"
    if seconds < 172_800:
        return f"{seconds / 3600:.1f} h"
    return f"{seconds / 86_400:.1f} days"


def _size(count: int) -> str:
    amount = float(count)
    for unit in ("bytes", "KiB", "MiB"):
        if amount < 1024:
            return f"{amount:.0f} {unit}" if unit == "bytes" else f"{amount:.1f} {unit}"
        amount /= 1024
    return f"{amount:.1f} GiB"
