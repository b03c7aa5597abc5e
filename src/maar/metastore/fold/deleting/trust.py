"""Whether retention may trust the leader's clock, and when it needs an operator (S2).

Lease time, which the leader's monotonic clock measures, says how far wall time can have advanced
since it was last confirmed (`state.clock`). A wall clock that shows something else needs witnesses:
profiles that carry a time of their own, the object store's clock, or most of three or more
replicas. Without a witness the clock is not trusted: retention pauses, and a jump that no outage
explains is written to the log as a hold, which only an operator ends.

The same clock says which blocks became too old just because time passed. Others may be too old
because a period or a clock is wrong, so without an operator no more than a tenth of a tenant's
blocks is taken in a day of lease time.
"""

from __future__ import annotations

from enum import Enum
from typing import NamedTuple

from maar.metastore.records.effects import Effects, HoldChanged
from maar.metastore.records.entries import Entry, RetentionHeld
from maar.metastore.records.packs import outline
from maar.metastore.state.state import NO_HOLD, Anchor, MetaState, RetentionHold, Spent
from maar.model.block import BlockMeta
from maar.model.ids import TenantId
from maar.model.policy import HOUR_NS, MINUTE_NS
from maar.model.time import DAY_NS, LeaseTime, WallTime

SKEW_MAX_NS = 10 * MINUTE_NS  # clocks that differ by less agree
DATA_SKEW_MAX_NS = HOUR_NS  # profiles show the time in which they began, and come later
OUTAGE_MAX_NS = 7 * DAY_NS  # after a longer outage, an operator can confirm the clock
HOURS_KEPT = 24  # so that any 24 hours of lease time are seen
NOTHING_SPENT = Spent(())
SHARE = 10  # one block in so many of a tenant
WHY_MAX = 1_000  # characters
NEVER = -(1 << 63)  # the boundary that nothing is older than
RELEASE = "`maar retention release`"
BY_A_PERSON = "an operator said so"


# ── decisions of the leader: they only read ────────────────────────────────────────────────────


class Clocks(NamedTuple):
    """The wall clocks of a metastore's replicas and of its store, as the leader heard them."""

    replicas: int  # that are configured, the leader included
    ahead_ns: tuple[int, ...]  # of the leader's: those of the others that have answered lately
    store_ahead_ns: int | None = None  # of the leader's; None: it has no clock of its own


ALONE = Clocks(1, ())


class ClockTrust(Enum):
    TRUSTED = "the clock goes as lease time does"
    VOUCHED = "it does not, and witnesses say that it is right"
    PAUSED = "it is not trusted now; a witness may still confirm it"
    JUMPED = "it is not trusted, and only an operator can say that it is right"
    HELD = "retention is on hold until an operator releases it"


class TrustVerdict(NamedTuple):
    standing: ClockTrust
    why: str = ""

    @property
    def takes(self) -> bool:
        return self.standing is ClockTrust.TRUSTED


def judge(state: MetaState, *, now: LeaseTime, wall: WallTime, clocks: Clocks) -> TrustVerdict:
    """Decide whether the leader's wall clock is trusted."""
    if state.hold.why:
        return TrustVerdict(ClockTrust.HELD, state.hold.why)
    if why := refusal(clocks):
        return TrustVerdict(ClockTrust.PAUSED, why)
    store_ns = clocks.store_ahead_ns
    if store_ns is not None and abs(store_ns) > SKEW_MAX_NS:
        return TrustVerdict(ClockTrust.JUMPED, _of_the_store(store_ns))
    gap_ns = wall - state.clock.reading(now)
    if abs(gap_ns) <= SKEW_MAX_NS:
        return TrustVerdict(ClockTrust.TRUSTED)
    if gap_ns < 0:
        return TrustVerdict(ClockTrust.VOUCHED, f"the clock went back by {span(-gap_ns)}")
    if by := _witness(state, now=now, wall=wall, clocks=clocks, gap_ns=gap_ns):
        return TrustVerdict(ClockTrust.VOUCHED, f"{by}: the clock went ahead by {span(gap_ns)}")
    if gap_ns <= OUTAGE_MAX_NS:
        return TrustVerdict(ClockTrust.PAUSED, _after_an_outage(gap_ns))
    return TrustVerdict(ClockTrust.JUMPED, _of_a_jump(gap_ns))


def verdict_entries(verdict: TrustVerdict) -> list[Entry]:
    """The entry that records a verdict in the log, if one is needed."""
    match verdict.standing:
        case ClockTrust.VOUCHED:
            return [RetentionHeld(False, verdict.why)]
        case ClockTrust.JUMPED:
            return [RetentionHeld(True, verdict.why)]
        case _:
            return []


def hold_entries(why: str) -> list[Entry]:
    """The entry with which an operator puts retention on hold."""
    return [RetentionHeld(True, why.strip()[:WHY_MAX] or BY_A_PERSON)]


def release_entries() -> list[Entry]:
    return [RetentionHeld(False, BY_A_PERSON, confirmed=True)]


def refusal(clocks: Clocks) -> str:
    """Why nothing may expire by the leader's clock; '' when most replicas share it."""
    known = sorted((0, *clocks.ahead_ns))
    if 2 * len(known) <= clocks.replicas:
        return (
            f"nothing expires: only {len(known)} of {clocks.replicas} replicas of the metastore "
            "have lately said what time it is, so this one's clock has no witnesses; retention "
            "goes on when most of them answer"
        )
    # With an even number, take the middle clock that is farther from ours: when half of the clocks
    # disagree, ours is not confirmed.
    middle = {known[(len(known) - 1) // 2], known[len(known) // 2]}
    behind_ns = max(middle, key=abs)
    if abs(behind_ns) <= SKEW_MAX_NS:
        return ""
    minutes = f"{abs(behind_ns) / MINUTE_NS:,.0f} minutes"
    return (
        f"nothing expires: this replica's clock is {minutes} "
        f"{'behind' if behind_ns > 0 else 'ahead of'} those of most replicas; set the clocks of "
        "the metastore's hosts"
    )


def _witness(
    state: MetaState, *, now: LeaseTime, wall: WallTime, clocks: Clocks, gap_ns: int
) -> str:
    """Which witness confirms a clock that is ahead of lease time; '' when none does.

    Profiles may come from this very host, so they confirm no more than an outage explains.
    """
    if clocks.store_ahead_ns is not None:
        return "the object store's clock agrees"
    if clocks.replicas > 2:
        return "the clocks of most replicas agree"
    shown_ns = wall - state.anchor.reading(now)
    if gap_ns <= OUTAGE_MAX_NS and abs(shown_ns) <= DATA_SKEW_MAX_NS:
        return "the profiles that came since agree"
    return ""


def _after_an_outage(gap_ns: int) -> str:
    return (
        f"clock not trusted: it is {span(gap_ns)} ahead of what the log measured since its last "
        "entries. If maar was down that long, the next profiles that carry their own time confirm "
        f"it, or run {RELEASE}; else set the clock of the metastore's host"
    )


def _of_a_jump(gap_ns: int) -> str:
    return (
        f"clock not trusted: it is {span(gap_ns)} ahead of what the log measured since its last "
        "entries. If that is wrong, set the clock of the metastore's host; when the clock is "
        f"right, run {RELEASE}"
    )


def _of_the_store(ahead_ns: int) -> str:
    return (
        f"clock not trusted: the object store's clock is {span(abs(ahead_ns))} "
        f"{'ahead of' if ahead_ns > 0 else 'behind'} that of the metastore's host; find out which "
        f"is right and set the other, then run {RELEASE}"
    )


def beyond_share(state: MetaState, tenant: TenantId, blocks: int) -> str:
    """Why blocks that are too old need an operator's confirmation."""
    whose = f"of tenant {tenant}" if tenant else "that are not merged yet"
    return (
        f"{blocks:,} or more blocks {whose} are older than the configured retention, but time "
        f"alone did not make them so: that would take more than one in {SHARE} of "
        f"{size(state, tenant):,} in a day. Look at `maar retention preview`; if they are to "
        f"go, run {RELEASE}"
    )


def span(ns: int) -> str:
    if ns >= 2 * DAY_NS:
        return f"{ns / DAY_NS:,.1f} days"
    return f"{ns / HOUR_NS:,.1f} hours" if ns >= HOUR_NS else f"{ns / MINUTE_NS:.0f} minutes"


# ── blocks that are old just because time passed: read by the leader and by the fold ───────────


class Taking:
    """Goes through the blocks of one entry: which of them may go without an operator."""

    def __init__(self, state: MetaState, now: LeaseTime) -> None:
        self._state = state
        self._now = now
        self.unexplained: dict[TenantId, int] = {}

    def allows(self, meta: BlockMeta, tenants: set[TenantId]) -> bool:
        state = self._state
        if meta.max_time_ns < min(too_old_before(state, t, now=self._now) for t in tenants):
            return True
        taken = self.unexplained.get(meta.tenant, 0) + 1
        if taken > self._left(meta.tenant):
            return False
        self.unexplained[meta.tenant] = taken
        return True

    def _left(self, tenant: TenantId) -> int:
        """A tenant with few blocks may lose one."""
        state = self._state
        new = [one for one in self.unexplained if one not in state.spent and one != tenant]
        full = len(state.spent) + len(new) >= state.policy.tenants_max
        if full and tenant not in state.spent:
            return 0
        spent = sum(blocks for blocks in _lately(state, tenant, now=self._now).values())
        return max(1, (size(state, tenant) + spent) // SHARE) - spent


def too_old_before(state: MetaState, tenant: TenantId, *, now: LeaseTime) -> int:
    """Blocks older than this became too old as time passed, or an operator confirmed them."""
    period_ns = state.retention.get(tenant, state.confirmed_ns)
    return state.clock.reading(now) + SKEW_MAX_NS - period_ns if period_ns else NEVER


def size(state: MetaState, tenant: TenantId) -> int:
    """How many blocks a tenant has."""
    shelves = state.blocks.tenants.get(tenant, {}).values()
    return sum(len(chunk) for shelf in shelves for chunk in shelf.chunks)


def _lately(state: MetaState, tenant: TenantId, *, now: LeaseTime) -> dict[int, int]:
    """Blocks by the hour of lease time, of the last 24 hours and the part of one before."""
    spent = state.spent.get(tenant, NOTHING_SPENT)
    return {hour: blocks for hour, blocks in spent.hours if hour >= now // HOUR_NS - HOURS_KEPT}


# ── the fold ───────────────────────────────────────────────────────────────────────────────────


def begin(state: MetaState) -> None:
    """A new log has no history that could contradict its clock, so the clock is trusted."""
    state.clock = Anchor(state.wall_time, state.lease_time)
    state.confirmed_ns = state.policy.retention_ns


def doubt(state: MetaState) -> None:
    """A log that begins over a store full of blocks has no history to check its clock against:
    what it adopted says how far the clock can have come when it began, give or take an outage.
    """
    if not len(state.blocks):
        return
    newest_ns = max(  # of the blocks themselves: bounds of chunks differ from replica to replica
        outline(packed).max_time_ns
        for partition in state.blocks.partitions()
        for chunk in partition.chunks
        for packed in chunk.packed
    )
    began = min(state.clock.data_ns, newest_ns + OUTAGE_MAX_NS)
    state.clock = Anchor(began, state.clock.at)


def follow_default(state: MetaState) -> None:
    """A shorter default period needs an operator: a typo in a setting would cost every tenant.

    Where there is no data yet, or profiles are kept longer, it needs no confirmation.
    """
    new, old = state.policy.retention_ns, state.confirmed_ns
    longer = not new or (old and new >= old)
    if longer or not len(state.blocks):
        state.confirmed_ns = new


def spend(state: MetaState, taking: Taking) -> None:
    for tenant, blocks in taking.unexplained.items():
        hours = _lately(state, tenant, now=state.lease_time)
        this = state.lease_time // HOUR_NS
        hours[this] = hours.get(this, 0) + blocks
        state.spent[tenant] = Spent(tuple(sorted(hours.items())))


def hold(state: MetaState, entry: RetentionHeld) -> Effects:
    """Hold retention; the first reason is kept, since it says what started the hold."""
    if entry.held:
        if not state.hold.why:
            state.hold = RetentionHold(entry.why[:WHY_MAX] or BY_A_PERSON, state.lease_time)
        return (HoldChanged(state.hold.why),)
    state.clock = Anchor(state.wall_time, state.lease_time)
    if not entry.confirmed:
        return (HoldChanged(state.hold.why),)  # only an operator ends a hold
    state.hold = NO_HOLD
    state.confirmed_ns = state.policy.retention_ns
    for tenant in list(state.spent):
        del state.spent[tenant]
    return (HoldChanged(""),)
