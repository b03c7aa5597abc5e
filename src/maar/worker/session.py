"""A session of a repair: its tasks one after the other, each committed before the next begins."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable

from maar.model.errors import LeaseLost, MaarError, Retryable
from maar.model.ids import StoreName
from maar.model.plan import Account, LeasedPlan, PlanResult
from maar.model.repair import RangeResult, add
from maar.ports.plans.board import CommitPart, PartCommitted
from maar.ports.plans.runner import AttemptFailed
from maar.services.repair.rules import tasks

log = logging.getLogger("maar.worker")

AGAIN_S = 0.5  # between tries to commit, while the lease is held

Run = Callable[[LeasedPlan], Awaitable[PlanResult]]
Commit = Callable[[CommitPart], Awaitable[PartCommitted]]


async def carry_out(
    plan: LeasedPlan,
    *,
    run: Run,
    commit: Commit,
    may_go_on: Callable[[], bool],  # the lease is held, and nobody stops us
    why_stop: Callable[[], str],  # what the metastore said when it last renewed the lease
    monotonic_ns: Callable[[], int],
    again_s: float = AGAIN_S,
) -> PlanResult:
    """What its tasks did, in sum. Whatever ends it, the parts that were committed are done.

    It has failed if a store was away without the metastore's knowing: if it knows, its next session
    leaves the store out, and need not wait.
    """
    assert plan.repair is not None
    began_ns, total, cpu_ms, stop = monotonic_ns(), RangeResult(), 0, ""
    unknown: set[StoreName] = set()  # stores that were away
    for number, (task, part) in enumerate(zip(tasks(plan), plan.repair.parts, strict=True)):
        late = 0 < plan.repair.session_ns <= monotonic_ns() - began_ns
        stop = stop or (why_stop() if number else "")
        if number and (late or stop or not may_go_on()):
            break
        result = RangeResult(tokens=part.tokens)
        if task.inputs:
            done = await run(task)
            assert done.repaired is not None
            result, cpu_ms = done.repaired, cpu_ms + done.cpu_ms
        request = CommitPart(plan.id, plan.token, result, part.empty)
        reply = await _commit(request, commit, may_go_on, again_s)
        total = add(total, result)
        unknown = unknown.union(result.away).difference(reply.down)
        stop = reply.stop
        if stop:
            break
    if stop:
        log.info("session stopped plan=%s token=%s why=%s", plan.id, plan.token, stop)
    if unknown:
        raise AttemptFailed(
            f"store {', '.join(sorted(unknown))} is unreachable, or its marker is not that of this "
            f"log; {total.ranges} ranges were repaired, and its ranges wait until it is back",
            stopped=True,
            plan_at_fault=False,
        )
    wall_ms = (monotonic_ns() - began_ns) // 1_000_000
    nothing = Account(0, 0, 0)
    return PlanResult(plan.kind, (), nothing, cpu_ms=cpu_ms, wall_ms=wall_ms, repaired=total)


async def _commit(
    request: CommitPart, commit: Commit, may_go_on: Callable[[], bool], again_s: float
) -> PartCommitted:
    """Ask until there is an answer: the same part again changes nothing."""
    while True:
        try:
            reply = await commit(request)
        except (Retryable, TimeoutError) as error:
            if not may_go_on():
                raise _failure(error) from error
            await asyncio.sleep(again_s)
        except (LeaseLost, MaarError) as error:
            raise _failure(error) from error
        else:
            if not reply.accepted:
                raise AttemptFailed(
                    f"part of a session was not accepted: {reply.refusal}",
                    stopped=True,
                    plan_at_fault=False,
                )
            return reply


def _failure(error: Exception) -> AttemptFailed:
    cause = f"part of a session could not be committed: {str(error) or type(error).__name__}"
    return AttemptFailed(cause, stopped=True, plan_at_fault=False)
