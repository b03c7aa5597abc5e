"""What the fold must have done, by a model small enough to trust, checked after each step."""

from __future__ import annotations

from dataclasses import dataclass, field

import msgspec
from hypothesis.stateful import RuleBasedStateMachine, invariant

from maar.metastore.decide.workers import WorkerRegistry
from maar.metastore.fold.apply import apply
from maar.metastore.records.effects import (
    AttemptEnded,
    Bisected,
    Cancelled,
    Effects,
    Leased,
    RollbackScheduled,
    Scheduled,
    Started,
)
from maar.metastore.records.entries import AttemptKey, Entry
from maar.metastore.state.digest import digest
from maar.metastore.state.state import BOUNDS, MetaState, sizes
from maar.metastore.state.timeline import Timeline
from maar.model.block import BlockMeta
from maar.model.ids import BlockId, FencingToken, PlanId
from maar.model.plan import AttemptEnd, PlanState
from maar.model.time import SECOND_NS, LeaseTime
from maar.services.compact.rules import COMPACTION
from support.metastore.fold import SMALL, Fold

POLICY = msgspec.structs.replace(
    SMALL,
    retention_ns=1,  # time explains whatever retention takes
    finished_max=50,
    attempts_max=3,
    retire_delay_ns=20 * SECOND_NS,
    expired_delay_ns=20 * SECOND_NS,
    pin_ns=200 * SECOND_NS,
    plans_max=3,
    parked_max=2,
    leftovers_max=40,
)


@dataclass
class Job:
    """What the model knows of a plan."""

    inputs: tuple[BlockId, ...]
    token: FencingToken | None = None  # the newest that was granted and not ended
    expires_at: int = 0
    lease_ns: int = 0
    done_by: FencingToken | None = None
    done_at: int = 0


@dataclass
class Undoing(Job):
    """A rollback: which attempts it was scheduled for."""

    attempts: frozenset[AttemptKey] = frozenset()


@dataclass
class Model:
    profiles: dict[BlockId, int] = field(default_factory=dict)  # of live blocks
    acknowledged: int = 0
    removed: int = 0  # as duplicates, or too old
    seen: set[BlockId] = field(default_factory=set)
    jobs: dict[PlanId, Job] = field(default_factory=dict)
    tokens: set[tuple[PlanId, FencingToken]] = field(default_factory=set)
    leftovers: set[AttemptKey] = field(default_factory=set)
    started: set[AttemptKey] = field(default_factory=set)
    dead: set[AttemptKey] = field(default_factory=set)  # started, ended, and not undone
    rollbacks: dict[PlanId, Undoing] = field(default_factory=dict)

    def job_of(self, plan: PlanId) -> Job:
        return self.jobs[plan] if plan in self.jobs else self.rollbacks[plan]

    def owners(self) -> dict[BlockId, PlanId]:
        return {b: p for p, job in self.jobs.items() if not job.done_by for b in job.inputs}


class ModelledFold(RuleBasedStateMachine):
    """A fold beside its model; a subclass says what happens to it."""

    def __init__(self) -> None:
        super().__init__()
        self.fold = Fold(policy=POLICY)
        self.fold.now = SECOND_NS
        self.model = Model()
        self.worker_registry = WorkerRegistry()
        self.count = 0
        self.segments: dict[BlockId, BlockMeta] = {}

    @property
    def state(self) -> MetaState:
        return self.fold.state

    def now(self) -> LeaseTime:
        return LeaseTime(self.fold.now)

    def put(self, entry: Entry) -> Effects:
        effects = self.fold.put(entry)
        again = apply(self.state, self.fold.log[-1])
        assert again == ()
        for effect in effects:
            self.learn(effect)
        return effects

    def learn(self, effect: object) -> None:
        match effect:
            case Scheduled():
                self.model.jobs[effect.plan] = Job(self.state.plans[effect.plan].inputs)
            case RollbackScheduled():
                attempts = frozenset(key for key in self.model.dead if key.plan == effect.target)
                assert attempts
                assert not any(
                    undoing.attempts & attempts
                    for undoing in self.model.rollbacks.values()
                    if not undoing.done_by
                ), "an attempt is undone by one rollback"
                self.model.rollbacks[effect.rollback] = Undoing((), attempts=attempts)
            case Started():
                self.model.started.add(AttemptKey(effect.plan, effect.token))
            case Leased():
                job = self.model.job_of(effect.plan)
                assert (effect.plan, effect.token) not in self.model.tokens
                assert job.token is None
                assert job.done_by is None
                lease = self.state.plans[effect.plan].lease
                assert lease is not None
                job.token, job.expires_at = effect.token, lease.expires_at
                job.lease_ns = lease.expires_at - self.fold.now
                self.model.tokens.add((effect.plan, effect.token))
            case AttemptEnded():
                job = self.model.job_of(effect.plan)
                assert job.token == effect.token
                assert effect.end is not AttemptEnd.EXPIRED or self.fold.now > job.expires_at
                job.token = None
                key = AttemptKey(effect.plan, effect.token)
                if not isinstance(job, Undoing):  # which writes nothing
                    self.model.leftovers.add(key)
                    self.model.dead.update({key} & self.model.started)
            case Cancelled():
                assert self.model.jobs.pop(effect.plan).token is None
            case Bisected():
                whole = self.model.jobs.pop(effect.plan)
                parts = [self.state.plans[child].inputs for child in effect.children]
                assert parts[0] + parts[1] == whole.inputs
                for child, inputs in zip(effect.children, parts, strict=True):
                    self.model.jobs[child] = Job(inputs)
            case _:
                pass

    @invariant()
    def live_blocks_hold_every_acknowledged_profile_once(self) -> None:
        assert self.fold.live() == set(self.model.profiles)
        held = sum(self.model.profiles.values())
        assert held == self.model.acknowledged - self.model.removed
        assert sum(t.profiles for t in self.state.blocks.totals.values()) == held

    @invariant()
    def every_block_is_queued_or_owned_by_one_plan_that_is_known(self) -> None:
        assert dict(self.state.owners) == self.model.owners()
        for block in self.fold.live():
            meta = self.state.blocks.get(block)
            owner, queued = self.state.owners.get(block), block in self.state.queue
            assert owner is None or not queued
            assert owner is None or owner in self.state.plans or owner in self.state.parked
            if COMPACTION.takes(meta, self.state.policy):
                assert owner is not None or queued
        assert self.state.queue.queued == sum(len(x.items) for x in self.state.queue.lanes.values())

    @invariant()
    def plans_are_where_they_belong(self) -> None:
        for plan in self.state.plans.values():
            assert plan.state in (PlanState.REQUESTED, PlanState.INFLIGHT, PlanState.EXCLUDED)
            job = self.model.job_of(plan.id)
            assert (plan.lease.token if plan.lease else None) == job.token
        for plan_id, plan in self.state.parked.items():
            assert plan_id not in self.state.plans
            assert plan.state is PlanState.PARKED
            assert plan.lease is None
        for plan in self.state.finished.values():
            assert plan.state in (PlanState.COMPLETED, PlanState.CANCELLED)

    @invariant()
    def the_timeline_is_what_its_plans_make_it(self) -> None:
        plans, anew = self.state.plans, Timeline()
        for plan_id, plan in plans.items():
            anew[plan_id] = plan
        lines = [{k: list(v) for k, v in one.lines.items()} for one in (plans, anew)]
        assert lines[0] == lines[1]
        assert (plans.held, plans.leases) == (anew.held, anew.leases)

    @invariant()
    def every_attempt_that_ended_is_looked_after(self) -> None:
        assert set(self.state.leftovers) == self.model.leftovers
        assert set(self.state.leftovers.dead) == self.model.dead
        pending = {plan for plan, undoing in self.model.rollbacks.items() if not undoing.done_by}
        assert set(self.state.plans.rollbacks.values()) == pending

    @invariant()
    def everything_is_bounded(self) -> None:
        found = sizes(self.state)
        for name, bound in BOUNDS.items():
            limit = getattr(POLICY, bound.limit, None) or found[bound.limit]
            assert found[name] <= limit, name

    def teardown(self) -> None:
        """The same log gives the same state."""
        fresh = MetaState()
        for item in self.fold.log:
            apply(fresh, item)
        assert digest(fresh) == digest(self.state)
        assert fresh.index == self.state.index
