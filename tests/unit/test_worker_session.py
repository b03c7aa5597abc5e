"""A session: one task after the other, each committed before the next, until somebody says stop."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field

import msgspec
import pytest

from maar.model.errors import LeaseLost, Unavailable
from maar.model.ids import FencingToken, Incarnation, PlanId, StoreName
from maar.model.plan import Account, LeasedPlan, PlanResult
from maar.model.repair import LeasedRepair, RangeResult, RepairPart, RepairType
from maar.ports.plans.board import CommitPart, Kept, PartCommitted, PollRequest
from maar.ports.plans.runner import AttemptFailed
from maar.services.repair.ranges import vnode
from maar.services.repair.rules import REPAIR, key_of
from maar.worker import session
from support.clock.virtual_time import Gate, run_virtually
from support.metastore.fold import TENANT, segment
from support.worker.stand_ins import SmallMetastore, ThreadRunner, until, worker_of, working

SECOND_NS = 1_000_000_000


def plan_of(count: int, *, session_ns: int = 0, empty_last: bool = False) -> LeasedPlan:
    metas = tuple(segment(number) for number in range(count))
    parts = [RepairPart(vnode(n), n, n + 1, (vnode(100 + n),)) for n in range(count)]
    if empty_last:
        parts.append(RepairPart(None, count, count, (vnode(200),)))
    return LeasedPlan(
        PlanId(7, 0),
        REPAIR,
        FencingToken(Incarnation("0badcafe"), 8),
        key_of(TENANT, RepairType.VNODE),
        metas,
        1,
        SECOND_NS,
        repair=LeasedRepair(
            RepairType.VNODE, (), tuple(parts), ((),) * count, session_ns=session_ns
        ),
    )


@dataclass
class World:
    takes_ns: int = SECOND_NS  # of each task
    away: tuple[StoreName, ...] = ()
    now_ns: int = 0
    said: list[str] = field(default_factory=list)
    commits: list[CommitPart] = field(default_factory=list)
    replies: list[PartCommitted | Exception] = field(default_factory=list)
    holds: Callable[[], bool] = lambda: True
    why_stop: Callable[[], str] = lambda: ""

    async def run(self, task: LeasedPlan) -> PlanResult:
        assert task.repair is not None
        (part,) = task.repair.parts
        assert len(task.inputs) == 1
        self.said.append(f"run {part.first}")
        self.now_ns += self.takes_ns
        done = RangeResult(tokens=part.tokens, checked=2, away=self.away, work_ns=self.takes_ns)
        return PlanResult(REPAIR, (), Account(0, 0, 0), cpu_ms=5, repaired=done)

    async def commit(self, request: CommitPart) -> PartCommitted:
        reply = self.replies.pop(0) if self.replies else PartCommitted(True)
        if isinstance(reply, Exception):
            raise reply
        self.said.append("commit")
        self.commits.append(request)
        return reply

    def carry_out(self, plan: LeasedPlan) -> PlanResult:
        return asyncio.run(
            session.carry_out(
                plan,
                run=self.run,
                commit=self.commit,
                may_go_on=self.holds,
                why_stop=lambda: self.why_stop(),
                monotonic_ns=lambda: self.now_ns,
                again_s=0,
            )
        )


def test_each_task_is_committed_before_the_next_begins() -> None:
    world = World()
    result = world.carry_out(plan_of(3))
    assert world.said == ["run 0", "commit", "run 1", "commit", "run 2", "commit"]
    assert [each.result.tokens for each in world.commits] == [vnode(n) for n in range(3)]
    assert [each.empty for each in world.commits] == [(vnode(100 + n),) for n in range(3)]
    assert result.repaired is not None
    assert (result.repaired.ranges, result.repaired.checked, result.cpu_ms) == (3, 6, 15)


def test_ranges_without_blocks_need_no_task() -> None:
    world = World()
    world.carry_out(plan_of(1, empty_last=True))
    assert world.said == ["run 0", "commit", "commit"]
    assert world.commits[-1].empty == (vnode(200),)


def test_the_metastore_may_say_stop() -> None:
    world = World(replies=[PartCommitted(True), PartCommitted(True, stop="something is urgent")])
    result = world.carry_out(plan_of(5))
    assert world.said == ["run 0", "commit", "run 1", "commit"]
    assert result.repaired is not None
    assert result.repaired.ranges == 2


def test_a_renewal_may_say_stop_and_the_task_that_runs_is_committed() -> None:
    world = World()
    world.why_stop = lambda: "a window closed" if "run 1" in world.said else ""
    result = world.carry_out(plan_of(5))
    assert world.said == ["run 0", "commit", "run 1", "commit"]
    assert result.repaired is not None
    assert result.repaired.ranges == 2


def test_a_renewal_that_says_stop_does_not_end_the_tries_to_commit() -> None:
    world = World(replies=[Unavailable("not now"), PartCommitted(True)])
    world.why_stop = lambda: "a window closed"
    world.carry_out(plan_of(3))
    assert world.said == ["run 0", "commit"]


def test_a_store_of_which_the_metastore_knows_that_it_is_away_does_not_fail_the_session() -> None:
    eu = StoreName("eu")
    world = World(away=(eu,), replies=[PartCommitted(True, stop="store eu is away", down=(eu,))])
    result = world.carry_out(plan_of(3))
    assert world.said == ["run 0", "commit"]
    assert result.repaired is not None
    assert (result.repaired.ranges, result.repaired.away) == (0, (eu,))
    other = World(away=(eu,), replies=[PartCommitted(True, stop="a window closed")])
    with pytest.raises(AttemptFailed, match="eu is unreachable"):
        other.carry_out(plan_of(3))


def test_no_task_begins_after_the_time_of_a_session() -> None:
    world = World(takes_ns=100 * SECOND_NS)
    world.carry_out(plan_of(9, session_ns=300 * SECOND_NS))
    assert world.said.count("commit") == 3
    one = World(takes_ns=1000 * SECOND_NS)
    one.carry_out(plan_of(9, session_ns=300 * SECOND_NS))
    assert one.said == ["run 0", "commit"], "one at least, or it would never get on"


def test_a_worker_that_is_stopped_ends_after_the_task() -> None:
    world = World()
    world.holds = lambda: len(world.commits) < 2
    world.carry_out(plan_of(9))
    assert world.said.count("commit") == 2


def test_a_commit_is_repeated_while_nobody_answers() -> None:
    world = World(replies=[Unavailable("not now"), TimeoutError(), PartCommitted(True)])
    world.carry_out(plan_of(1))
    assert world.said == ["run 0", "commit"]


@pytest.mark.parametrize(
    "reply", [LeaseLost("gone"), PartCommitted(False, "stale"), Unavailable("not now")]
)
def test_what_cannot_be_committed_ends_it(reply: PartCommitted | Exception) -> None:
    world = World(replies=[PartCommitted(True), reply])
    world.holds = lambda: len(world.said) < 3
    with pytest.raises(AttemptFailed) as failed:
        world.carry_out(plan_of(5))
    assert failed.value.stopped
    assert not failed.value.plan_at_fault
    assert world.said[:3] == ["run 0", "commit", "run 1"]


def test_a_store_that_is_away_fails_it_after_all_was_done_that_could_be() -> None:
    world = World(away=(StoreName("eu"),))
    with pytest.raises(AttemptFailed, match="eu is unreachable") as failed:
        world.carry_out(plan_of(3))
    assert not failed.value.plan_at_fault
    assert world.said.count("commit") == 3


# ── in a worker ────────────────────────────────────────────────────────────────────────────────


@dataclass
class Board(SmallMetastore):
    """Grants a session, and says at its first renewals that it should stop."""

    commits: list[CommitPart] = field(default_factory=list)
    renewed: int = 0
    told: Gate = field(default_factory=Gate)  # the worker has had the answer

    def grant(self, number: int) -> LeasedPlan:
        made = super().grant(number)
        plan = plan_of(3)
        return msgspec.structs.replace(
            made, kind=REPAIR, key=plan.key, inputs=plan.inputs, repair=plan.repair
        )

    def kept_leases(self, request: PollRequest) -> tuple[Kept, ...]:
        self.renewed += any(not renewal.started for renewal in request.renewals)
        if self.renewed > 1:
            self.told.set()
        kept = super().kept_leases(request)
        return tuple(msgspec.structs.replace(each, stop="a window closed") for each in kept)

    async def commit_part(self, request: CommitPart) -> PartCommitted:
        self.commits.append(request)
        return PartCommitted(True)


def test_a_worker_that_is_told_so_with_its_lease_ends_the_session_after_its_task() -> None:
    board = Board(waiting=[1])

    def work(plan: LeasedPlan, _cancelled: Gate) -> PlanResult:
        board.told.wait()
        assert plan.repair is not None
        (part,) = plan.repair.parts
        done = RangeResult(tokens=part.tokens)
        return PlanResult(REPAIR, (), Account(0, 0, 0), repaired=done)

    async def scenario() -> None:
        async with working(worker_of(board, ThreadRunner(work))):
            await until(lambda: bool(board.done))

    run_virtually(scenario())
    assert [each.result.tokens for each in board.commits] == [vnode(0)]
    assert board.failures == []
