"""How long profiles are kept, by a clock that two witnesses agree on (S2, S8).

The witnesses are the leader's wall clock and the data: the newest profile time that a registered
block showed, and the lease time since. The earlier of the two is the time that retention goes by,
so that neither a wrong clock nor a wrong profile alone deletes anything before its time. Whether
the leader's clock is believed at all, `trust` decides.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from maar.metastore.fold.deleting import trust
from maar.metastore.fold.deleting.trust import ALONE, NEVER, Clocks, ClockTrust
from maar.metastore.fold.plans import plan as plans
from maar.metastore.records.effects import Effect, Effects, Expired, Refused, RetentionChanged
from maar.metastore.records.entries import BlocksExpired, Entry, RetentionHeld, RetentionSet
from maar.metastore.state.index import Index, blocks_in
from maar.metastore.state.retired import Cause, Retired
from maar.metastore.state.state import NO_ANCHOR, MetaState
from maar.model.block import BlockMeta
from maar.model.errors import InvalidInput
from maar.model.ids import NO_TENANT, BlockId, TenantId, tenant_id
from maar.model.policy import HOUR_NS, PERIOD_MIN_NS
from maar.model.refusal import Refusal
from maar.model.time import DAY_NS, LeaseTime, WallTime
from maar.ports.operator.retention import Expiring, RetentionStatus

PERIOD_MAX_NS = 100 * 365 * DAY_NS
DISAGREEMENT_NS = HOUR_NS  # of the two witnesses, beyond which operators are warned
CAUSE = "retention took some of its inputs"

# ── decisions of the leader: they only read ────────────────────────────────────────────────────


def status(
    state: MetaState, *, now: LeaseTime, wall: WallTime, clocks: Clocks = ALONE
) -> RetentionStatus:
    paused = pause(trust.judge(state, now=now, wall=wall, clocks=clocks))
    return RetentionStatus(
        default_ns=state.policy.retention_ns,
        tenants={str(tenant): period for tenant, period in state.retention.items()},
        now_ns=clock(state, now=now, wall=wall),
        wall_ns=wall,
        trouble=paused or trouble(state, ahead_ns=ahead(state, now=now, wall=wall)),
        paused=paused,
        held=bool(state.hold.why),
        expired=len(state.retired.expired),
        expired_delay_ns=state.policy.expired_delay_ns,
    )


def pause(verdict: trust.TrustVerdict) -> str:
    """Why retention is paused; '' when it is not."""
    if verdict.standing in (ClockTrust.TRUSTED, ClockTrust.VOUCHED):
        return ""
    out = (
        ""
        if trust.RELEASE in verdict.why or verdict.standing is not ClockTrust.HELD
        else (f"; it waits for {trust.RELEASE}")
    )
    return f"retention paused: {verdict.why}{out}"


def clock(state: MetaState, *, now: LeaseTime, wall: WallTime) -> int:
    """The time that retention goes by: the earlier of what the two witnesses show."""
    return min(wall, state.anchor.reading(now))


def ahead(state: MetaState, *, now: LeaseTime, wall: WallTime) -> int:
    """How far the leader's clock is ahead of the data's; 0 while there is no data to ask."""
    return wall - state.anchor.reading(now) if state.anchor != NO_ANCHOR else 0


def trouble(state: MetaState, *, ahead_ns: int) -> str:
    if state.anchor == NO_ANCHOR and len(state.blocks):
        return (
            "no profile that carries a time of its own has been registered yet, so there is "
            "nothing to check the clock against; nothing expires until one is"
        )
    hours = f"{abs(ahead_ns) / HOUR_NS:,.1f} hours"
    if ahead_ns > DISAGREEMENT_NS:
        return (
            f"the metastore's clock is {hours} ahead of the newest profiles and the time since, so "
            "retention goes by the profiles. If maar was down that long, the next profiles correct "
            "this; else set the clock of the metastore's host"
        )
    if ahead_ns < -DISAGREEMENT_NS:
        return (
            f"the metastore's clock is {hours} behind the newest profiles, so retention, which "
            "goes by the earlier, deletes late; set the clock of the metastore's host"
        )
    return ""


def tenants_of(meta: BlockMeta) -> set[TenantId]:
    return {dataset.tenant for dataset in meta.datasets} or {meta.tenant}


class Boundaries(NamedTuple):
    """How old a block's newest profile must be for the block to go, tenant by tenant."""

    now_ns: int
    default_ns: int
    periods: dict[TenantId, int]

    def of(self, tenant: TenantId) -> int:
        period = self.periods.get(tenant, self.default_ns)
        return self.now_ns - period if period else NEVER

    def of_block(self, meta: BlockMeta) -> int:
        """A segment goes only when it is too old for every tenant in it."""
        return min(map(self.of, tenants_of(meta)))

    def latest(self) -> int:
        return max(map(self.of, (NO_TENANT, *self.periods)))


def boundaries(state: MetaState, *, now: LeaseTime, wall: WallTime) -> Boundaries:
    return Boundaries(
        clock(state, now=now, wall=wall), state.policy.retention_ns, dict(state.retention)
    )


def within_reach(
    index: Index, limits: Boundaries, *, tenants: Iterable[TenantId] | None = None
) -> Iterator[BlockMeta]:
    """The blocks of days and chunks that a boundary has reached, a tenant's oldest day first.

    It may be walked in a thread while the fold goes on: each list is taken in one step, and chunks
    are never edited. What has changed meanwhile is seen when the blocks are taken.
    """
    for name in list(index.tenants) if tenants is None else tenants:
        boundary = limits.of(name) if name else limits.latest()
        shelves = index.tenants.get(name, {})
        for key in sorted(key for key in list(shelves) if key.day * DAY_NS < boundary):
            shelf = shelves.get(key)
            chunks = list(shelf.chunks) if shelf else []
            yield from blocks_in(chunk for chunk in chunks if chunk.min_time_ns < boundary)


def is_expired(meta: BlockMeta, limits: Boundaries) -> bool:
    return meta.max_time_ns < limits.of_block(meta)


def look(
    walk: Iterator[BlockMeta], limits: Boundaries, *, limit: int, looked_at_max: int
) -> tuple[list[BlockId], bool]:
    """The next blocks of a walk that are too old, and whether the walk has ended."""
    found: list[BlockId] = []
    for looked_at, meta in enumerate(walk, start=1):
        if is_expired(meta, limits):
            found.append(meta.id)
        if len(found) >= limit or looked_at >= looked_at_max:
            return found, False
    return found, True


def expiring(
    state: MetaState, *, now: LeaseTime, wall: WallTime, tenant: str = "", limit: int
) -> list[Expiring]:
    """What a run would take now, were there no cap; it may be asked in a thread.

    Of one tenant: its blocks, and the segments that it has a part in.
    """
    limits = boundaries(state, now=now, wall=wall)
    tenants = (NO_TENANT, TenantId(tenant)) if tenant else None
    found: list[Expiring] = []
    for meta in within_reach(state.blocks, limits, tenants=tenants):
        if len(found) >= limit:
            break
        if is_expired(meta, limits) and (not tenant or tenant in tenants_of(meta)):
            found.append(Expiring(meta, limits.of_block(meta), state.owners.get(meta.id)))
    return found


def expiry_entries(
    state: MetaState, blocks: Iterable[BlockId], limits: Boundaries, *, now: LeaseTime
) -> list[Entry]:
    """Entries that take those of the blocks that are still live and still too old.

    Where a tenant would lose more than passing time explains, the entry is a hold instead.
    """
    by_boundary: dict[int, list[BlockId]] = {}
    waiting: dict[TenantId, int] = {}
    taking = trust.Taking(state, now)
    for block in blocks:
        if block not in state.blocks or not is_expired(meta := state.blocks.get(block), limits):
            continue
        if taking.allows(meta, tenants_of(meta)):
            by_boundary.setdefault(limits.of_block(meta), []).append(block)
        else:
            waiting[meta.tenant] = waiting.get(meta.tenant, 0) + 1
    entries: list[Entry] = [
        BlocksExpired(before, tuple(some)) for before, some in sorted(by_boundary.items())
    ]
    for tenant, count in list(waiting.items())[:1]:
        entries.append(RetentionHeld(True, trust.beyond_share(state, tenant, count)))
    return entries


def order(state: MetaState, tenant: TenantId, *, period_ns: int | None) -> list[Entry]:
    """What an operator asks for; InvalidInput when it cannot be."""
    tenant_id(tenant)
    if period_ns:
        check_period(period_ns)
    full = len(state.retention) >= state.policy.tenants_max
    if period_ns is not None and tenant not in state.retention and full:
        raise InvalidInput(
            f"{state.policy.tenants_max} tenants have a retention of their own, which is the most "
            "there can be; reset one that needs none, or change the default"
        )
    return [RetentionSet(tenant, period_ns)]


def check_period(period_ns: int) -> int:
    if PERIOD_MIN_NS <= period_ns <= PERIOD_MAX_NS:
        return period_ns
    raise InvalidInput(
        f"a retention of {period_ns / HOUR_NS:g} hours is not possible: profiles are kept for at "
        f"least 1 hour and at most {PERIOD_MAX_NS // DAY_NS:,} days, or for ever, which is 0",
        reason="retention",
    )


# ── the fold ───────────────────────────────────────────────────────────────────────────────────


def set_period(state: MetaState, entry: RetentionSet) -> Effects:
    if entry.period_ns is None:
        state.retention.pop(entry.tenant, None)
    elif entry.tenant not in state.retention and len(state.retention) >= state.policy.tenants_max:
        return (Refused(Refusal.TOO_MANY, what=entry.tenant),)
    else:
        state.retention[entry.tenant] = entry.period_ns
    return (RetentionChanged(entry.tenant),)


def expire(state: MetaState, entry: BlocksExpired) -> Effects:
    """Blocks leave the index as if replaced by nothing: queries that read them may finish (S10)."""
    if state.adopting:
        return (Refused(Refusal.ADOPTING),)
    if state.hold.why:
        return (Refused(Refusal.RETENTION_HELD),)
    refused: list[Effect] = []
    going: dict[BlockId, BlockMeta] = {}
    taking = trust.Taking(state, state.lease_time)
    for block in entry.blocks:
        if block not in state.blocks:
            refused.append(Refused(Refusal.INPUT_GONE, what=block))
            continue
        meta = state.blocks.get(block)
        if meta.max_time_ns >= entry.before_ns:
            refused.append(Refused(Refusal.TOO_YOUNG, what=block))
        elif block not in going and not taking.allows(meta, tenants_of(meta)):
            refused.append(Refused(Refusal.UNEXPLAINED, what=block))
        else:
            going[block] = meta
    trust.spend(state, taking)
    cancelled = _cancel_owners(state, frozenset(going))
    live = state.blocks.find_live(going)
    state.blocks.drop(live)
    for block in going:
        state.queue.leave(block, state.policy)
        packed = live[block].packed
        state.retired[block] = Retired(state.index, state.lease_time, (), packed, Cause.EXPIRED)
    profiles = sum(meta.profiles for meta in going.values())
    state.tally.profiles_expired += profiles
    return (*refused, *cancelled, Expired(len(going), profiles))


def _cancel_owners(state: MetaState, going: frozenset[BlockId]) -> Effects:
    """In the same entry, so that no plan ever owns a block that is gone (S7, S8)."""
    owners = sorted({state.owners[block] for block in going if block in state.owners})
    return tuple(
        effect for owner in owners for effect in plans.cancel(state, owner, gone=going, cause=CAUSE)
    )
