"""Sessions of repairs: the blocks that come with a lease, and parts on their way into the log."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import islice, pairwise

import msgspec

from maar.metastore.fold.plans import lease
from maar.metastore.fold.stores import copies
from maar.metastore.records.effects import Effect, Refused
from maar.metastore.records.entries import (
    Entry,
    LeasesRenewed,
    PlansScheduled,
    RepairAsked,
    SubrangeRepaired,
)
from maar.metastore.state.state import MetaState
from maar.model.block import BlockMeta
from maar.model.errors import InvalidInput
from maar.model.ids import BlockId, PlanId, StoreName, TenantId
from maar.model.plan import JobId, Plan, PlanJob
from maar.model.repair import LeasedRepair, RepairOrder, RepairPart, RepairType
from maar.model.stores import is_copied
from maar.model.time import DAY_NS, LeaseTime
from maar.model.token_range import TokenRange
from maar.ports.plans.board import CommitPart, PartCommitted
from maar.services.repair import rules
from maar.services.repair.history import NO_HISTORY, last_repair
from maar.services.repair.ranges import vnode, vnode_around

SUSPECTS_MAX = 100  # blocks of one session
TENANTS_AT_ONCE = 100
KEPT_NS = 30 * DAY_NS  # of history, or two intervals, if that is longer

Leased = tuple[LeasedRepair, tuple[BlockMeta, ...]]


# ── what a worker gets ─────────────────────────────────────────────────────────────────────────


def session_blocks(state: MetaState, plan: Plan, order: RepairOrder) -> Leased:
    """The blocks of a session as they are now, and which of them are one task."""
    if order.type is RepairType.INCREMENTAL:
        return _incremental(state, plan, order)
    left = [each for each in order.ranges if not _is_repaired(state, plan, order, each)]
    found = _blocks_in(state, plan.key.tenant, order.stores, left)
    inputs: list[BlockMeta] = []
    parts: list[RepairPart] = []
    empty: list[TokenRange] = []
    for tokens in left:
        metas = found.get(tokens, ())
        if not metas:
            empty.append(tokens)
            continue
        first = len(inputs)
        inputs += metas
        parts.append(RepairPart(tokens, first, len(inputs), tuple(empty)))
        empty = []
    if empty:
        parts.append(RepairPart(None, len(inputs), len(inputs), tuple(empty)))
    return _with(state, order, parts, inputs), tuple(inputs)


def _incremental(state: MetaState, plan: Plan, order: RepairOrder) -> Leased:
    """One group: blocks that readers complained of, then the oldest of those that are not at all
    their stores. What a few of them came to is committed before the next ones are read: blocks may
    be compacted sooner than a session ends, and then their copies would all be in vain.
    """
    live = state.blocks.find_live(order.suspects)
    waiting = islice(state.to_copy(plan.key.tenant, down=order.down), rules.INCREMENTAL_BLOCKS_MAX)
    inputs = [state.blocks.get(block) for block in dict.fromkeys((*live, *waiting))]
    ends = rules.part_ends([meta.size for meta in inputs])
    parts = [RepairPart(None, first, end) for first, end in pairwise((0, *ends))]
    return _with(state, order, parts, inputs), tuple(inputs)


def _with(
    state: MetaState, order: RepairOrder, parts: list[RepairPart], inputs: list[BlockMeta]
) -> LeasedRepair:
    down = set(order.down)
    return LeasedRepair(
        order.type,
        order.stores,
        tuple(parts),
        tuple(
            tuple(n for n in copies.wanted_stores(state, meta) if n not in down) for meta in inputs
        ),
        order.suspects,
        session_ns=state.policy.session_ns,
    )


def _is_repaired(state: MetaState, plan: Plan, order: RepairOrder, tokens: TokenRange) -> bool:
    """Whether an earlier attempt at the same session, or anybody else, has done it meanwhile."""
    number = vnode_around(tokens)
    if number is None:
        return False
    known = state.repairs.of(plan.key.tenant, order.stores).get(number, NO_HISTORY)
    at = last_repair(known, tokens, vnode(number), whole_only=False)
    return at is not None and at >= plan.scheduled_at


def _blocks_in(
    state: MetaState,
    tenant: TenantId,
    stores: tuple[StoreName, ...],
    ranges: Sequence[TokenRange],
) -> dict[TokenRange, list[BlockMeta]]:
    """The tenant's blocks of each range; those that are in none are not looked at."""
    by_vnode: dict[int, list[TokenRange]] = {}
    for tokens in ranges:
        number = vnode_around(tokens)
        assert number is not None
        by_vnode.setdefault(number, []).append(tokens)
    found: dict[TokenRange, list[BlockMeta]] = {}
    within = ranges[0] if len(ranges) == 1 else None
    for chunk, at in state.blocks.in_vnodes(tenant, by_vnode, within):
        holding = _holding(by_vnode[chunk.vnodes[at]], chunk.token(at))
        if holding is None:
            continue
        meta = chunk.meta(at)
        if is_copied(meta) and state.stores.wanted_stores(tenant, meta.store) == stores:
            found.setdefault(holding, []).append(meta)
    return found


def _holding(ranges: Sequence[TokenRange], token: int) -> TokenRange | None:
    for each in ranges:
        if token in each:
            return each
    return None


# ── a part on its way into the log ─────────────────────────────────────────────────────────────


def commit_entries(
    state: MetaState, request: CommitPart, *, now: LeaseTime, interval_ns: int = 0
) -> list[Entry]:
    """The lease is renewed with it: a worker that delivers lives. History is kept for two intervals
    of the job, or for a month.
    """
    plan = state.plans.get(request.plan)
    renewal = LeasesRenewed((lease.extension(state, request.plan, request.token, now=now),))
    if plan is None or plan.repair is None or plan.lease is None:
        return [renewal]
    result = request.result
    seen = set(plan.repair.stores) - set(result.away)
    return [
        renewal,
        SubrangeRepaired(
            request.plan,
            request.token,
            (result.tokens.start, result.tokens.end) if result.tokens else None,
            plan.lease.granted_at,
            tuple(sorted(seen)),
            result.copies,
            result.ended,
            tuple(each.block for each in result.lost),
            result.checked,
            result.bytes,
            tuple((each.start, each.end) for each in request.empty),
            result.work_ns,
            LeaseTime(max(0, now - max(KEPT_NS, 2 * interval_ns))),
            tuple(each.what for each in result.lost),
        ),
    ]


def commit_reply(
    effects: Sequence[Effect],
    state: MetaState,
    request: CommitPart,
    *,
    stop: str = "",
    down: Iterable[StoreName] = (),
) -> PartCommitted:
    """`stop` is what the schedule says against going on."""
    refused = [each for each in effects if isinstance(each, Refused)]
    whole = [each for each in refused if not each.what]  # not of a single block
    if whole or request.plan not in state.plans:
        return PartCommitted(False, str(whole[0].why) if whole else "it has ended")
    told = tuple(f"{each.what}: {each.why}" for each in refused)
    stop = stop or _why_stop(state, request)
    return PartCommitted(True, refused=told, stop=stop, down=tuple(sorted(down)))


def _why_stop(state: MetaState, request: CommitPart) -> str:
    """Why a session should go no further, although it could."""
    plan = state.plans[request.plan]
    assert plan.repair is not None
    sets = set(rules.store_sets(state, plan.key.tenant))
    if plan.repair.type is RepairType.VNODE and plan.repair.stores not in sets:
        return "other stores should hold these blocks now"
    return ""


# ── what readers complain of ───────────────────────────────────────────────────────────────────


def healing(state: MetaState, bad: Iterable[tuple[TenantId, BlockId]]) -> list[PlansScheduled]:
    """A session for each tenant with copies that readers found bad, before everything that is only
    due; none while one is pending, and none for a block of which no copy is whole.
    """
    if state.adopting:
        return []
    by_tenant: dict[TenantId, list[BlockId]] = {}
    for tenant, block in bad:
        if tenant and block not in state.repairs.lost:
            by_tenant.setdefault(tenant, []).append(block)
    specs = []
    for tenant, blocks in by_tenant.items():
        job = JobId(tenant, rules.REPAIR, RepairType.INCREMENTAL)
        if state.plans.pending_of(job) is None:
            some = tuple(dict.fromkeys(blocks))[:SUSPECTS_MAX]
            order = RepairOrder(RepairType.INCREMENTAL, suspects=some)
            made = rules.spec(state.policy, tenant, order)
            specs.append(msgspec.structs.replace(made, job=PlanJob(job, on_demand=True)))
    return [PlansScheduled(tuple(specs[:TENANTS_AT_ONCE]))] if specs else []


def suspects(state: MetaState, session: PlanId) -> tuple[BlockId, ...]:
    """The blocks that readers complained of, and that a session looks at for this reason."""
    plan = state.plans.get(session)
    return plan.repair.suspects if plan is not None and plan.repair is not None else ()


# ── repairs that somebody asks for ─────────────────────────────────────────────────────────────


def check(job: JobId) -> None:
    """InvalidInput when there can be no such repair."""
    if job.type not in rules.TYPES:
        known = ", ".join(rules.TYPES)
        raise InvalidInput(f"{job.type[:60]!r} is not a type of repair; there are {known}")
    if not job.tenant:
        raise InvalidInput("a repair is of one tenant; name it")


def ask_entries(state: MetaState, job: JobId, *, wanted: bool) -> list[Entry]:
    """None where there is nothing to do, or the same was asked for already."""
    check(job)
    asked = job in state.repairs.asked
    if not wanted:
        return [RepairAsked(job, wanted=False)] if asked else []
    has_work = (
        next(iter(state.to_copy(job.tenant)), None) is not None
        if job.type == RepairType.INCREMENTAL
        else next(rules.store_sets(state, job.tenant), None) is not None
    )
    return [RepairAsked(job)] if has_work and not asked else []
