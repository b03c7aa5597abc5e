"""Whether retention may go by the leader's clock, and when it has to wait for a person (S2).

Lease time, which the leader's monotonic clock measures, says how far wall time can have come since
the last time that it was vouched for: that is `state.clock`. A wall clock that is elsewhere needs
witnesses: profiles that carry a time of their own, the object store's clock, or most of three or
more replicas. What nobody vouches for is not believed: retention pauses, and a jump that no outage
explains is written to the log as a hold, which only a person ends.

The same clock says which blocks time alone has made too old. Others may be too old by a boundary
that is wrong, so no more than a tenth of a tenant goes in a day of lease time without a person.
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

SKEW_MAX_NS = 10 * MINUTE_NS  # clocks of one opinion differ by less
DATA_SKEW_MAX_NS = HOUR_NS  # profiles show the time in which they began, and come later
OUTAGE_MAX_NS = 7 * DAY_NS  # a longer one has people about who can vouch for the clock
HOURS_KEPT = 24  # so that any 24 hours of lease time are seen
NOTHING_SPENT = Spent(())
SHARE = 10  # one block in so many of a tenant
WHY_MAX = 1_000  # characters
NEVER = -(1 << 63)  # the boundary that nothing is older than
RELEASE = "`maar retention release`"
BY_A_PERSON = "a person said so"


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
    PAUSED = "it is not trusted now; witnesses may yet come"
    JUMPED = "it is not trusted, and only a person can say that it is right"
    HELD = "retention waits for a person"


class TrustVerdict(NamedTuple):
    standing: ClockTrust
    why: str = ""

    @property
    def takes(self) -> bool:
        return self.standing is ClockTrust.TRUSTED


def judge(state: MetaState, *, now: LeaseTime, wall: WallTime, clocks: Clocks) -> TrustVerdict:
    """What to make of the leader's wall clock."""
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
    """What the log has to know of a verdict."""
    match verdict.standing:
        case ClockTrust.VOUCHED:
            return [RetentionHeld(False, verdict.why)]
        case ClockTrust.JUMPED:
            return [RetentionHeld(True, verdict.why)]
        case _:
            return []


def hold_entries(why: str) -> list[Entry]:
    """What a person who stops retention asks for."""
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
    # of two in the middle, the one farther from ours: where half of them disagree, nobody is sure
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
    """Who says that a clock ahead of lease time is right; '' when nobody does.

    Profiles may come from this very host, so that they vouch for no more than an outage explains.
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
        "entries. If maar was down that long, the next profiles that carry a time of their own end "
        f"this, or {RELEASE}; else set the clock of the metastore's host"
    )


def _of_a_jump(gap_ns: int) -> str:
    return (
        f"clock not trusted: it is {span(gap_ns)} ahead of what the log measured since its last "
        "entries. If that is wrong, set the clock of the metastore's host; when the clock is "
        f"right, {RELEASE}"
    )


def _of_the_store(ahead_ns: int) -> str:
    return (
        f"clock not trusted: the object store's clock is {span(abs(ahead_ns))} "
        f"{'ahead of' if ahead_ns > 0 else 'behind'} that of the metastore's host; find out which "
        f"is right and set the other, then {RELEASE}"
    )


def beyond_share(state: MetaState, tenant: TenantId, blocks: int) -> str:
    """Why blocks that are too old have to wait for a person."""
    whose = f"of tenant {tenant}" if tenant else "that are not merged yet"
    return (
        f"{blocks:,} or more blocks {whose} are older than the retention that is set, but time "
        f"alone did not make them so: that would take more than one in {SHARE} of "
        f"{size(state, tenant):,} in a day. Look at `maar retention preview`; if they are to "
        f"go, {RELEASE}"
    )


def span(ns: int) -> str:
    if ns >= 2 * DAY_NS:
        return f"{ns / DAY_NS:,.1f} days"
    return f"{ns / HOUR_NS:,.1f} hours" if ns >= HOUR_NS else f"{ns / MINUTE_NS:.0f} minutes"


# ── what time alone explains: read by the leader and by the fold ───────────────────────────────


class Taking:
    """Blocks of one entry, in turn: which of them may go without a person."""

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
    """What is older than this became too old by the time that passed, or a person said so."""
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
    """The clock of a new log: there is nothing to doubt it by."""
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
    """A shorter default is not confirmed by a setting: a slip there would cost every tenant.

    Where there is nothing to lose yet, or profiles are kept longer, it needs no person.
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
    """The first reason stays: whoever comes later finds what began it."""
    if entry.held:
        if not state.hold.why:
            state.hold = RetentionHold(entry.why[:WHY_MAX] or BY_A_PERSON, state.lease_time)
        return (HoldChanged(state.hold.why),)
    state.clock = Anchor(state.wall_time, state.lease_time)
    if not entry.confirmed:
        return (HoldChanged(state.hold.why),)  # only a person ends a hold
    state.hold = NO_HOLD
    state.confirmed_ns = state.policy.retention_ns
    for tenant in list(state.spent):
        del state.spent[tenant]
    return (HoldChanged(""),)
