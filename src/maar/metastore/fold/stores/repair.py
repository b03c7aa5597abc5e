"""What a repair's partial result means beside the copies: its ranges are repaired.

A range counts from the moment at which the session was granted, since the blocks that its tasks
looked at are those that were live then.
"""

from __future__ import annotations

import msgspec

from maar.metastore.fold.plans import lease
from maar.metastore.fold.plans import plan as plans
from maar.metastore.fold.stores import copies
from maar.metastore.records.effects import (
    CopiesLost,
    CopyAdded,
    CopyEnded,
    Effects,
    RangesRepaired,
    Refused,
    RepairEnded,
    RepairWanted,
)
from maar.metastore.records.entries import RepairAsked, SubrangeRepaired
from maar.metastore.state.repairs import AskedRepair, HistoryKey, LostCopies
from maar.metastore.state.state import MetaState
from maar.model.ids import BlockId, StoreName, TenantId
from maar.model.plan import JobId, Plan
from maar.model.refusal import Refusal
from maar.model.repair import RepairOrder, RepairType
from maar.model.time import LeaseTime
from maar.model.token_range import TokenRange
from maar.services.repair import rules
from maar.services.repair.history import NO_HISTORY, Repaired, extend, trim
from maar.services.repair.ranges import token_of, vnode, vnode_around

LOST_MAX = 10_000  # blocks that are named; more are only counted


def note(state: MetaState, entry: SubrangeRepaired) -> Effects:
    """The partial result of a repair: copies first, then what is known of the range."""
    plan, why = lease.plan_under_token(state, entry.plan, entry.token)
    if plan is None or plan.repair is None or plan.lease is None:
        return (Refused(why if plan is None else Refusal.RESULT_KIND, entry.plan, entry.token),)
    live = frozenset(state.blocks.find_live(entry.lost))
    told = msgspec.structs.replace(entry, lost=tuple(b for b in entry.lost if b in live))
    effects = copies.repair(state, told)
    began = plan.lease.granted_at
    tokens = _tokens(entry, plan.repair)
    for each in tokens:
        _extend(state, plan, each, began, entry)
    _forget(state, entry.forget_before)
    _list_lost(state, plan.key.tenant, entry, live, tokens)
    if state.blocks.copies.is_all_copied(plan.key.tenant):
        state.repairs.copied[plan.key.tenant] = began
    if tokens or entry.checked:
        found = RangesRepaired(plan.key.tenant, len(tokens), entry.checked, entry.bytes)
        effects = (*effects, found)
    return (*effects, *_answer(state, plan, len(tokens), entry, effects))


def ask(state: MetaState, entry: RepairAsked) -> Effects:
    """The same wish again changes nothing: it goes on from where it is."""
    asked = state.repairs.asked.get(entry.job)
    if entry.wanted:
        if asked is None:
            state.repairs.asked[entry.job] = AskedRepair(state.lease_time)
            plans.trim(state.repairs.asked, state.policy.scopes_max)
        return (RepairWanted(entry.job),)
    if asked is None:
        return (Refused(Refusal.OUTDATED, what=str(entry.job)),)
    return (_end(state, entry.job, asked, "cancelled"),)


# ── what is known of ranges ────────────────────────────────────────────────────────────────────


def _tokens(entry: SubrangeRepaired, order: RepairOrder) -> list[TokenRange]:
    """The ranges that count: of a session of ranges, and in the stores that they are of."""
    if order.type is not RepairType.VNODE or not set(order.stores) <= set(entry.stores):
        return []
    given = ([entry.subrange] if entry.subrange is not None else []) + list(entry.empty)
    return [TokenRange(*each) for each in given]


def _extend(
    state: MetaState, plan: Plan, tokens: TokenRange, began: LeaseTime, entry: SubrangeRepaired
) -> None:
    number = vnode_around(tokens)
    if number is None:
        return  # within no range: it counts for none
    assert plan.repair is not None
    key = HistoryKey(plan.key.tenant, plan.repair.stores, number)
    own = entry.subrange is not None and tokens == TokenRange(*entry.subrange)
    done = Repaired(tokens, began, entry.work_ns if own else 0)
    known = state.repairs.history.pop(key, NO_HISTORY)  # the newest comes last
    known = trim(known, before=entry.forget_before)
    state.repairs.history[key] = extend(known, vnode(number), done, runs=_runs(state, plan))
    plans.trim(state.repairs.history, state.policy.ranges_max)


def _runs(state: MetaState, plan: Plan) -> tuple[LeaseTime, ...]:
    """When the runs of a plan's job began that go on: by schedule, and because somebody asked."""
    job = _job(plan)
    asked, record = state.repairs.asked.get(job), state.jobs.get(job)
    began = (asked.at if asked else None, record.run_started if record else None)
    return tuple(at for at in began if at is not None)


def _job(plan: Plan) -> JobId:
    assert plan.repair is not None
    return JobId(plan.key.tenant, plan.kind, plan.repair.type)


def _forget(state: MetaState, before: LeaseTime) -> None:
    """Ranges that nobody repaired for so long: of tenants that are gone, or of former stores."""
    history = state.repairs.history
    while (oldest := next(iter(history), None)) is not None:
        left = trim(history[oldest], before=before)
        if left != NO_HISTORY:
            return
        del history[oldest]


# ── what is lost ───────────────────────────────────────────────────────────────────────────────


def _list_lost(
    state: MetaState,
    tenant: TenantId,
    entry: SubrangeRepaired,
    live: frozenset[BlockId],
    tokens: list[TokenRange],
) -> None:
    """A block of these tokens that was found whole, or has left the index, is not lost any more."""
    for block in list(state.repairs.lost):
        seen = state.repairs.lost[block].tenant == tenant and any(
            token_of(block) in each for each in tokens
        )
        if seen or block not in state.blocks:
            del state.repairs.lost[block]
    for block, what in zip(entry.lost, entry.what, strict=False):
        if block in live and (block in state.repairs.lost or len(state.repairs.lost) < LOST_MAX):
            state.repairs.lost[block] = LostCopies(tenant, state.lease_time, what)


# ── repairs that somebody asked for ────────────────────────────────────────────────────────────


def _answer(
    state: MetaState, plan: Plan, ranges: int, entry: SubrangeRepaired, effects: Effects
) -> Effects:
    job = _job(plan)
    asked = state.repairs.asked.get(job)
    if asked is None:
        return ()
    asked = msgspec.structs.replace(
        asked,
        ranges=asked.ranges + ranges,
        checked=asked.checked + entry.checked,
        copied=asked.copied + sum(isinstance(each, CopyAdded) for each in effects),
        damaged=asked.damaged + sum(isinstance(each, CopyEnded) for each in effects),
        lost=asked.lost + sum(len(each.blocks) for each in effects if isinstance(each, CopiesLost)),
    )
    state.repairs.asked[job] = asked
    return (_end(state, job, asked, "completed"),) if _is_over(state, job, asked) else ()


def _is_over(state: MetaState, job: JobId, asked: AskedRepair) -> bool:
    if job.type == RepairType.INCREMENTAL:
        return state.blocks.copies.is_all_copied(job.tenant)
    return all(
        _all_since(state, job.tenant, stores, asked.at)
        for stores in rules.store_sets(state, job.tenant)
    )


def _all_since(
    state: MetaState, tenant: TenantId, stores: tuple[StoreName, ...], since: LeaseTime
) -> bool:
    times = state.repairs.history.times(tenant, stores, whole_only=False).times
    return all(at is not None and at >= since for at in times)


def _end(state: MetaState, job: JobId, asked: AskedRepair, outcome: str) -> RepairEnded:
    del state.repairs.asked[job]
    over = msgspec.structs.replace(asked, ended_at=state.lease_time, outcome=outcome)
    state.repairs.answered.pop(job, None)
    state.repairs.answered[job] = over
    plans.trim(state.repairs.answered, state.policy.scopes_max)
    return RepairEnded(job, outcome)
