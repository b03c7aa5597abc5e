"""The log under programs that interleave: each state of its fold once, one request at a time."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, TypeVar, cast

import msgspec

from maar.metastore.decide import execution, prepare, rollbacks, wishes
from maar.metastore.fold.apply import FoldEntry, Indexed, apply, fold_entry
from maar.metastore.fold.plans import leftovers
from maar.metastore.records.effects import Completed, Effect, Scheduled, Started
from maar.metastore.records.entries import (
    BlocksAdded,
    Entry,
    Envelope,
    PlansScheduled,
)
from maar.metastore.state import snapshot_parts, snapshot_records
from maar.metastore.state.digest import digest
from maar.metastore.state.state import MetaState
from maar.metastore.views import reads
from maar.model.block import BlockMeta
from maar.model.errors import LeaseLost
from maar.model.ids import BlockId, FencingToken, PlanId, WorkerId
from maar.model.plan import PlanResult, PlanSpec
from maar.model.policy import Policy
from maar.model.time import SECOND_NS, LeaseTime, WallTime
from maar.ports.plans.board import (
    Answer,
    ConfirmDeletes,
    PollRequest,
    Renewal,
    Report,
    SchedulePlan,
    ScheduleRollbacks,
)
from maar.services.clean.rules import CLEAN
from maar.services.compact.rules import COMPACT
from support.metastore.fold import DAY_START_NS, SMALL, Fold, segment

JUMP_NS = 16 * SECOND_NS  # every lease that was not renewed since has expired
POLICY = msgspec.structs.replace(
    SMALL,
    lease_ns=15 * SECOND_NS,
    rollback_delay_ns=20 * SECOND_NS,  # over after the second jump
    hold_max_ns=0,
    leftovers_ns=600 * SECOND_NS,
    failure_limit=9,
)

T = TypeVar("T")
Rank = int  # an entry, counted among those that made a plan or granted one
Pid = tuple[Rank, int]


class Broken(AssertionError):
    """A promise does not hold in a state that can be reached."""


class Undo(NamedTuple):
    """A rollback that somebody holds."""

    plan: Pid
    token: Rank
    tokens: tuple[Rank, ...]


Deletable = Callable[[Sequence[Effect], MetaState, ConfirmDeletes], tuple[str, ...]]


class Planted(NamedTuple):
    """Where a test puts its mistakes; as it is, there are none."""

    fold: FoldEntry = fold_entry
    deletable: Deletable = rollbacks.deletable
    unlisted: Callable[[MetaState, Mapping[str, BlockId]], list[str]] = leftovers.unlisted_keys
    fences: bool = True  # a cleaning has an entry say what it is going to delete
    announces: bool = True  # an executor says that it starts, and waits until that is folded
    looks: bool = True  # a rollback reads the intents of the attempts that it undoes
    greedy: bool = False  # it wants to delete what any attempt of its target wrote


class Known(NamedTuple):
    """A state of the fold, and which entries its ranks are."""

    state: MetaState
    indexes: tuple[int, ...]

    def rank(self, index: int) -> Rank:
        return self.indexes.index(index)

    def pid(self, plan: PlanId) -> Pid:
        return self.rank(plan.index), plan.ordinal

    def plan(self, pid: Pid) -> PlanId:
        return PlanId(self.indexes[pid[0]], pid[1])

    def token(self, rank: Rank) -> FencingToken:
        return FencingToken(self.state.incarnation, self.indexes[rank])


@dataclass
class Log:
    """All states of the fold that were reached; a step from one to the next is folded once."""

    removable: bool
    policy: Policy
    planted: Planted
    states: list[Known] = field(default_factory=list)
    parts: list[list[snapshot_records.Part]] = field(default_factory=list)
    numbers: dict[object, int] = field(default_factory=dict)
    steps: dict[tuple[int, int, tuple[object, ...]], tuple[int, object]] = field(
        default_factory=dict
    )
    inputs: tuple[BlockMeta, ...] = ()
    target: PlanId = field(default_factory=lambda: PlanId(0, 0))

    def __post_init__(self) -> None:
        fold = Fold(policy=self.policy)
        self.inputs = (segment(1), segment(2))
        fold.put(BlocksAdded(self.inputs))
        key = fold.state.queue.places[self.inputs[0].id].key
        spec = PlanSpec(COMPACT, self.removable, key, tuple(m.id for m in self.inputs), 9)
        fold.put(PlansScheduled((spec,)))
        self.target = PlanId(fold.state.index, 0)
        self.number(fold.state)

    def number(self, state: MetaState) -> int:
        known = Known(state, _indexes(state))
        key = _key(known)
        if key not in self.numbers:
            self.numbers[key] = len(self.states)
            self.states.append(known)
            self.parts.append(snapshot(state))
        return self.numbers[key]

    def do(self, fold: int, time: int, *what: object, how: Callable[[Turn], T]) -> tuple[int, T]:
        """What a request does to the log, and its answer."""
        step = (fold, time, what)
        if step not in self.steps:
            turn = Turn(self, snapshot_parts.state_of(self.parts[fold]), time)
            answer = how(turn)
            self.steps[step] = self.number(turn.state), answer
        return cast(tuple[int, T], self.steps[step])


def snapshot(state: MetaState) -> list[snapshot_records.Part]:
    """States are made from snapshots, which change nothing (promise 4)."""
    parts = list(snapshot_parts.parts_of(state))
    if digest(snapshot_parts.state_of(parts)) != digest(state):
        raise Broken("a snapshot has changed the state")
    return parts


def _indexes(state: MetaState) -> tuple[int, ...]:
    plans = (*state.plans.values(), *state.finished.values())
    found = {plan.id.index for plan in plans}
    found.update(attempt.token.index for plan in plans for attempt in plan.attempts)
    return tuple(sorted(found))


def _key(known: Known) -> object:
    """What a state is, apart from the numbers of its entries."""
    state, rank = known.state, known.rank
    plans = tuple(
        (
            known.pid(plan.id),
            plan.kind,
            plan.state,
            plan.lease and (rank(plan.lease.token.index), plan.lease.worker, plan.lease.expires_at),
            tuple((rank(a.token.index), a.started_at is None, a.end) for a in plan.attempts),
            plan.rolls_back and known.pid(plan.rolls_back),
            tuple(rank(token.index) for token in plan.tokens),
            (plan.failures, plan.excused),
        )
        for plan in sorted((*state.plans.values(), *state.finished.values()), key=_plan_id)
    )
    ended = tuple(
        sorted(
            (known.pid(key.plan), rank(key.token.index), end.completed, end.dead)
            for key, end in state.leftovers.items()
        )
    )
    blocks = tuple(sorted(state.blocks.where)), tuple(sorted(state.retired))
    waiting = tuple(sorted(state.owners)), tuple(sorted(state.queue.places))
    return state.lease_time, plans, ended, blocks, waiting


def _plan_id(plan: object) -> PlanId:
    return cast(PlanId, getattr(plan, "id"))  # noqa: B009


@dataclass
class Turn:
    """One request at the leader: entries are prepared from the state and folded at once."""

    log: Log
    state: MetaState
    time: int

    @property
    def now(self) -> LeaseTime:
        return LeaseTime(self.time * JUMP_NS)

    def put(self, entries: Sequence[Entry]) -> list[Effect]:
        effects: list[Effect] = []
        for entry in entries:
            wall = WallTime(DAY_START_NS + self.now)
            envelope = Envelope(self.state.version, self.now, wall, entry)
            item = Indexed(self.state.index + 1, envelope)
            effects += apply(self.state, item, self.log.planted.fold)
        return effects

    def knowledge(self) -> Known:
        return Known(self.state, _indexes(self.state))

    def execute(self, plan: PlanId, worker: str) -> tuple[str, Rank, tuple[Undo, ...]]:
        asker = WorkerId(worker)
        self.put(execution.entries(self.state, plan, asker, now=self.now))
        answer = execution.answer(self.state, plan, asker, now=self.now)
        if answer.answer is not Answer.GRANTED:
            return answer.answer.value, -1, ()
        known, leased = self.knowledge(), reads.leased_plan(self.state, plan)
        undone = tuple(
            Undo(
                known.pid(each.plan),
                known.rank(each.token.index),
                tuple(known.rank(token.index) for token in each.tokens),
            )
            for each in leased.rollbacks
        )
        return answer.answer.value, known.rank(leased.token.index), undone

    def start(self, plan: PlanId, token: FencingToken) -> bool:
        poll = PollRequest(WorkerId("any"), 0, (Renewal(plan, token, started=True),))
        effects = self.put(prepare.poll_entries(self.state, [poll], now=self.now))
        return any(isinstance(effect, Started) for effect in effects)

    def report(self, plan: PlanId, token: FencingToken, made: PlanResult | None) -> bool:
        report = Report(plan, token, made, "" if made else "it broke")
        poll = PollRequest(WorkerId("any"), 0, (), (report,))
        effects = self.put(prepare.poll_entries(self.state, [poll], now=self.now))
        return any(isinstance(effect, Completed) for effect in effects)

    def clean(self, worker: str) -> tuple[str, Rank, Pid]:
        request = SchedulePlan(CLEAN)
        effects = self.put(wishes.entries(self.state, request, now=self.now))
        made = [effect.plan for effect in effects if isinstance(effect, Scheduled)]
        found = made[0] if made else wishes.find_same(self.state, request)
        assert found is not None
        plan = found if isinstance(found, PlanId) else found.id
        answer, token, _ = self.execute(plan, worker)
        return answer, token, self.knowledge().pid(plan)

    def step(self, plan: PlanId, token: FencingToken) -> tuple[Pid, ...] | None:
        """Rollbacks that are pending now; None when the cleaning is somebody else's."""
        request = ScheduleRollbacks(plan, token)
        effects = self.put(rollbacks.clean_entries(self.state, request, now=self.now))
        try:
            found = rollbacks.clean_step(effects, self.state, now=self.now)
        except LeaseLost:
            return None
        return tuple(self.knowledge().pid(ref.rollback) for ref in found.pending)

    def confirm(self, plan: PlanId, token: FencingToken, keys: tuple[str, ...]) -> set[str] | None:
        request = ConfirmDeletes(plan, token, keys)
        effects = self.put(rollbacks.confirm_entries(self.state, request, now=self.now))
        try:
            return set(self.log.planted.deletable(effects, self.state, request))
        except LeaseLost:
            return None
