"""The fold against a model small enough to trust: profiles counted, tokens compared, owners listed.

Planted by hand and seen caught here: accepting a stale token, not checking owners when a plan is
scheduled, folding an entry twice, granting over a live lease, completing with a profile missing,
forgetting the id of a merged segment, deleting under a pin, losing half of a bisected plan,
parking a plan that somebody works on, letting go of a parked plan's inputs, requeueing into a full
schedule, a line of the timeline that a plan never leaves, an ended attempt whose remains nobody
looks for, an operator's exclusion that leaves the lease alive.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import msgspec
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    MultipleResults,
    RuleBasedStateMachine,
    initialize,
    invariant,
    multiple,
    rule,
)

from maar.metastore.decide import operator_commands, prepare, schedule
from maar.metastore.decide.schedule import Wish
from maar.metastore.decide.workers import WorkerRegistry
from maar.metastore.fold import retirement
from maar.metastore.fold.apply import apply
from maar.metastore.records.effects import (
    AttemptEnded,
    Bisected,
    Cancelled,
    Compared,
    Completed,
    Effects,
    Leased,
    Parked,
    Refused,
    Registered,
    Renewed,
    Requeued,
    Scheduled,
    Unparked,
)
from maar.metastore.records.entries import (
    AttemptFenced,
    AttemptKey,
    BlocksAdded,
    BlocksExpired,
    BlocksForgotten,
    Entry,
    Extension,
    Grant,
    LeasesRenewed,
    LeftoversSwept,
    LimitRaised,
    PlanCompleted,
    PlanFailed,
    PlanRequeued,
    PlansLeased,
    PlansParked,
    PlansScheduled,
    PlansStarted,
    PlansUnparked,
    RegistrationFloor,
    Start,
    StateHashed,
    TermStarted,
)
from maar.metastore.replica.snapshot import decode, encode
from maar.metastore.state import snapshot_parts
from maar.metastore.state.digest import digest
from maar.metastore.state.state import BOUNDS, MetaState, sizes
from maar.metastore.state.timeline import Timeline
from maar.model.block import BlockMeta
from maar.model.errors import Rejected
from maar.model.ids import BlockId, FencingToken, PlanId, WorkerId, Zone
from maar.model.plan import Account, AttemptEnd, PlanResult, PlanSpec, PlanState
from maar.model.refusal import Refusal
from maar.model.time import SECOND_NS, LeaseTime
from maar.ports.log import Head
from maar.services.compact.rules import COMPACT, COMPACTION
from support.metastore.fold import DAY_START_NS, SMALL, Fold, result, segment

pytestmark = pytest.mark.timeout(1200)  # on a machine that has much else to do

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
WORKERS = st.sampled_from([WorkerId("w1"), WorkerId("w2")])


@dataclass
class Job:
    """What the model knows of a plan."""

    inputs: tuple[BlockId, ...]
    token: FencingToken | None = None  # the newest that was granted and not ended
    expires_at: int = 0
    done_by: FencingToken | None = None
    done_at: int = 0


@dataclass
class Model:
    profiles: dict[BlockId, int] = field(default_factory=dict)  # of live blocks
    acknowledged: int = 0
    removed: int = 0  # as duplicates, or too old
    seen: set[BlockId] = field(default_factory=set)
    jobs: dict[PlanId, Job] = field(default_factory=dict)
    tokens: set[tuple[PlanId, FencingToken]] = field(default_factory=set)
    leftovers: set[AttemptKey] = field(default_factory=set)

    def owners(self) -> dict[BlockId, PlanId]:
        return {b: p for p, job in self.jobs.items() if not job.done_by for b in job.inputs}


class MetastoreFold(RuleBasedStateMachine):
    """Workers say anything at any time, however late; leaders prepare from old states."""

    grants: Bundle[Leased] = Bundle("grants")
    metas: Bundle[BlockMeta] = Bundle("metas")

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
            case Leased():
                job = self.model.jobs[effect.plan]
                assert (effect.plan, effect.token) not in self.model.tokens
                assert job.token is None
                assert job.done_by is None
                lease = self.state.plans[effect.plan].lease
                assert lease is not None
                job.token, job.expires_at = effect.token, lease.expires_at
                self.model.tokens.add((effect.plan, effect.token))
            case AttemptEnded():
                job = self.model.jobs[effect.plan]
                assert job.token == effect.token
                assert effect.end is not AttemptEnd.EXPIRED or self.fold.now > job.expires_at
                job.token = None
                self.model.leftovers.add(AttemptKey(effect.plan, effect.token))
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

    @initialize(target=metas)
    def begin(self) -> MultipleResults[BlockMeta]:
        return multiple(*(self.added(shard=1, at=self.fold.now) for _ in range(6)))

    @rule(target=metas, shard=st.integers(1, 2), count=st.integers(1, 6), late=st.booleans())
    def register(self, shard: int, count: int, late: bool) -> MultipleResults[BlockMeta]:
        at = 0 if late else self.fold.now
        return multiple(*(self.added(shard=shard, at=at) for _ in range(count)))

    def added(self, *, shard: int, at: int) -> BlockMeta:
        self.count += 1
        meta = segment(self.count, at=at, shard=shard, profiles=self.count % 5 + 1)
        meta = msgspec.structs.replace(meta, zone=Zone(("", "east", "west")[shard % 3]))
        (effect,) = self.put(BlocksAdded((meta,)))
        assert isinstance(effect, Registered)
        assert (effect.refusal == "") is (at > self.state.registration_floor)
        if not effect.refusal:
            self.model.profiles[meta.id] = meta.profiles
            self.model.acknowledged += meta.profiles
            self.model.seen.add(meta.id)
            self.segments[meta.id] = meta
        return meta

    @rule(meta=metas)
    def register_again(self, meta: BlockMeta) -> None:
        live = self.fold.live()
        (effect,) = self.put(BlocksAdded((meta,)))
        assert isinstance(effect, Registered)
        if meta.id in live:
            assert effect.refusal == ""
        assert self.fold.live() == live or meta.id not in self.model.seen

    @rule(seconds=st.sampled_from([1, 5, 16, 60, 1000]))
    def wait(self, seconds: int) -> None:
        self.fold.now += seconds * SECOND_NS

    @rule(target=grants, worker=WORKERS, capacity=st.integers(1, 3))
    def poll(self, worker: WorkerId, capacity: int) -> MultipleResults[Leased]:
        return multiple(*self.polled(worker, capacity))

    def polled(self, worker: WorkerId, capacity: int) -> list[Leased]:
        for entry in schedule.set_aside(self.state, self.now()):
            self.put(entry)
        found: list[Leased] = []
        wishes = [Wish(worker, capacity)]
        for entry in schedule.assign(
            self.state, wishes, now=self.now(), worker_registry=self.worker_registry
        ):
            effects = self.put(entry)
            assert not any(isinstance(e, Refused) for e in effects)  # nobody came in between
            found += [e for e in effects if isinstance(e, Leased)]
        assert len(found) <= capacity
        self.those_that_failed_run_alone(worker, found)
        return found

    def those_that_failed_run_alone(self, worker: WorkerId, found: list[Leased]) -> None:
        work = self.state.plans.work_of(worker, self.now())
        if any(self.state.plans[lease.plan].failures for lease in found):
            assert len(work) == 1

    @rule(target=grants, grant=grants, worker=WORKERS, seen=st.booleans(), counts=st.booleans())
    def grant_from_an_old_state(
        self, grant: Leased, worker: WorkerId, seen: bool, counts: bool
    ) -> MultipleResults[Leased]:
        until = LeaseTime(self.fold.now + 9)
        item = Grant(
            grant.plan, worker, until, grant.token if seen else None, counts_as_failure=counts
        )
        found = [e for e in self.put(PlansLeased((item,))) if isinstance(e, Leased)]
        return multiple(*found)

    @rule(grant=grants)
    def renew(self, grant: Leased) -> None:
        until = LeaseTime(self.fold.now + POLICY.lease_ns)
        (effect,) = self.put(LeasesRenewed((Extension(grant.plan, grant.token, until),)))
        job = self.model.jobs.get(grant.plan)
        if job and job.token == grant.token and not job.done_by:
            assert isinstance(effect, Renewed)
            job.expires_at = max(until, job.expires_at)
        else:
            assert isinstance(effect, Refused)

    @rule(grant=grants, lose=st.sampled_from([0, 0, 1]), duplicates=st.integers(0, 1))
    def complete(self, grant: Leased, lose: int, duplicates: int) -> None:
        job = self.model.jobs.get(grant.plan)
        held = job is not None and job.token == grant.token
        inputs = job.inputs if job else ()
        made = PlanResult(COMPACT, (), Account(0, 0, 0))
        if job and not job.done_by and all(b in self.model.profiles for b in inputs):
            came = sum(self.model.profiles[block] for block in inputs)
            copies = min(duplicates, came - 1)  # the first of them is always kept
            made = result(grant.plan, grant.token, self.fold.metas(inputs), duplicates=copies)
            if lose:
                made = self.short_of_one(made)
        before = self.fold.live()
        (effect,) = self.put(PlanCompleted(grant.plan, grant.token, made))
        if job and job.done_by:
            self.check_repeated(job, grant.token, effect)
            assert self.fold.live() == before
        elif job and held and not lose:
            assert isinstance(effect, Completed)
            self.replace(job, grant.token, made)
        else:
            assert isinstance(effect, Refused)
            assert self.fold.live() == before

    def check_repeated(self, job: Job, token: FencingToken, effect: object) -> None:
        """The same answer again, for as long as finished plans are kept; never another one."""
        if isinstance(effect, Refused) and effect.why is Refusal.UNKNOWN_PLAN:
            finished = sum(1 for other in self.model.jobs.values() if other.done_by)
            kept_long_enough = self.fold.now - job.done_at > POLICY.finished_ns
            assert kept_long_enough or finished > POLICY.finished_max // 2
        else:
            assert isinstance(effect, Completed) is (job.done_by == token)

    def short_of_one(self, made: PlanResult) -> PlanResult:
        """A merge that lost a profile, and is at one with itself."""
        (meta,) = made.outputs
        meta = msgspec.structs.replace(meta, profiles=meta.profiles - 1)
        account = msgspec.structs.replace(made.account, kept=made.account.kept - 1)
        return PlanResult(COMPACT, (meta,), account)

    def replace(self, job: Job, token: FencingToken, made: PlanResult) -> None:
        for block in job.inputs:
            del self.model.profiles[block]
        for meta in made.outputs:
            self.model.profiles[meta.id] = meta.profiles
        self.model.removed += made.account.duplicates
        job.done_by, job.done_at = token, self.fold.now
        (plan,) = (plan for plan, other in self.model.jobs.items() if other is job)
        self.model.leftovers.add(AttemptKey(plan, token))

    @rule(grant=grants)
    def start(self, grant: Leased) -> None:
        self.put(PlansStarted((Start(grant.plan, grant.token),)))

    @rule(grant=grants, fenced=st.booleans(), counts=st.booleans())
    def fail(self, grant: Leased, fenced: bool, counts: bool) -> None:
        entry: Entry = PlanFailed(grant.plan, grant.token, "broken", LeaseTime(0), counts)
        if fenced:
            entry = AttemptFenced(grant.plan, grant.token, "gone")
        job = self.model.jobs.get(grant.plan)
        held = job is not None and job.token == grant.token and not job.done_by
        (effect,) = self.put(entry)
        assert isinstance(effect, AttemptEnded) is held

    @rule(target=grants, times=st.integers(1, 4), counts=st.booleans())
    def everything_fails(self, times: int, counts: bool) -> MultipleResults[Leased]:
        """A bad night: whatever is handed out fails, again and again."""
        found: list[Leased] = []
        for n in range(times):
            for plan in list(self.state.plans.values()):
                if plan.lease:
                    failed = PlanFailed(plan.id, plan.lease.token, "x", LeaseTime(0), counts)
                    self.put(failed)
            self.fold.now += 16 * SECOND_NS
            found += self.polled(WorkerId(f"w{n}"), 4)
        return multiple(*found)

    @rule(data=st.data())
    def schedule_anything(self, data: st.DataObject) -> None:
        """A leader with an old state wants blocks that may be owned or gone."""
        known = sorted(self.model.seen | set(self.model.profiles))
        if not known:
            return
        inputs = tuple(data.draw(st.lists(st.sampled_from(known), min_size=1, max_size=3)))
        owners = self.model.owners()
        free = all(b in self.model.profiles and b not in owners for b in inputs)
        free = free and len(self.state.plans) < POLICY.plans_max
        key = (
            self.state.queue.places[inputs[0]].key if inputs[0] in self.state.queue.places else None
        )
        if key is None:
            return
        places = self.state.queue.places
        alike = all(block in places and places[block].key == key for block in inputs)
        spec = PlanSpec(COMPACT, False, key, inputs, 2)
        (effect,) = self.put(PlansScheduled((spec,)))
        good = free and alike and len(set(inputs)) == len(inputs)
        assert isinstance(effect, Scheduled) is good

    @rule(data=st.data(), back=st.booleans())
    def park_or_unpark_anything(self, data: st.DataObject, back: bool) -> None:
        """A leader with an old state wants plans off the schedule, or on it again."""
        if not self.model.jobs:
            return
        known = st.sampled_from(sorted(self.model.jobs))
        wanted = tuple(data.draw(st.lists(known, min_size=1, max_size=3, unique=True)))
        before = {p.id: p for p in [*self.state.plans.values(), *self.state.parked.values()]}
        full = len(self.state.plans) >= POLICY.plans_max
        effects = self.put(PlansUnparked(wanted) if back else PlansParked(wanted))
        for plan, effect in zip(wanted, effects, strict=True):
            if isinstance(effect, Parked):
                was = before[plan]
                assert full
                assert was.lease is None
                assert was.failures > 0 or was.state is PlanState.EXCLUDED
            else:
                assert isinstance(effect, Refused | Unparked)
                assert isinstance(effect, Refused) or plan not in self.state.parked

    @rule(data=st.data())
    def requeue(self, data: st.DataObject) -> None:
        if not self.model.jobs:
            return
        plan = data.draw(st.sampled_from(sorted(self.model.jobs)))
        excluded = plan in self.state.plans and self.state.plans[plan].state is PlanState.EXCLUDED
        room = len(self.state.plans) < POLICY.plans_max
        expected = excluded or (plan in self.state.parked and room)
        (effect,) = self.put(PlanRequeued(plan))
        assert isinstance(effect, Requeued) is expected
        if expected:
            assert self.state.plans[plan].failures == 0

    @rule(data=st.data())
    def exclude_by_hand(self, data: st.DataObject) -> None:
        if not self.model.jobs:
            return
        plan = data.draw(st.sampled_from(sorted(self.model.jobs)))
        try:
            (entry,) = operator_commands.exclude(self.state, plan, note="by hand")
        except Rejected:
            assert plan not in self.state.plans
            return
        self.put(entry)
        assert self.state.plans[plan].state is PlanState.EXCLUDED
        assert self.model.jobs[plan].token is None

    @rule(limit=st.sampled_from([0, 3, 9]))
    def raise_limit(self, limit: int) -> None:
        self.put(LimitRaised(limit, LeaseTime(self.fold.now + 60 * SECOND_NS)))

    @rule(data=st.data(), old=st.booleans())
    def retention(self, data: st.DataObject, old: bool) -> None:
        """Blocks that are gone, owned or too young are among those that it wants."""
        known = sorted(self.model.seen | set(self.model.profiles))
        if not known:
            return
        blocks = tuple(data.draw(st.lists(st.sampled_from(known), max_size=3, unique=True)))
        before = DAY_START_NS + 10**12 if old else DAY_START_NS
        self.put(BlocksExpired(before, blocks))
        for block in blocks if old else ():
            self.model.removed += self.model.profiles.pop(block, 0)

    @rule(data=st.data())
    def sweep(self, data: st.DataObject) -> None:
        if self.model.leftovers:
            known = st.sampled_from(sorted(self.model.leftovers, key=lambda r: (r.plan, r.token)))
            swept = tuple(data.draw(st.lists(known, max_size=5)))
            self.put(LeftoversSwept(swept))
            self.model.leftovers.difference_update(swept)

    @rule()
    def lead_anew(self) -> None:
        self.put(TermStarted(self.state.term + 1, "next"))
        self.worker_registry = WorkerRegistry(hearing_since=self.now())
        for plan, job in self.model.jobs.items():
            if plan in self.state.plans and (lease := self.state.plans[plan].lease):
                if self.fold.now <= job.expires_at:
                    job.expires_at = max(job.expires_at, self.fold.now + POLICY.lease_ns)
                assert lease.expires_at == job.expires_at

    @rule(reader=st.sampled_from("ab"))
    def pin(self, reader: str) -> None:
        for entry in prepare.pins(self.state, [reader], now=self.now()):
            self.put(entry)

    @rule()
    def clean(self) -> None:
        due = tuple(retirement.due(self.state, now=self.now(), limit=5))
        assert not self.fold.live().intersection(due)
        for block in due:
            retired = self.state.retired[block]
            assert self.fold.now - retired.at > POLICY.retire_delay_ns
            assert all(
                pin.entry >= retired.entry or self.fold.now > pin.expires_at
                for pin in self.state.pins.values()
            )
        if due:
            self.put(BlocksForgotten(due))
            self.a_writer_registers_again(due)

    def a_writer_registers_again(self, blocks: tuple[BlockId, ...]) -> None:
        """Its answer was lost, and the merge has come and gone meanwhile (S4)."""
        live = self.fold.live()
        self.put(BlocksAdded(tuple(self.segments[b] for b in blocks if b in self.segments)))
        assert self.fold.live() == live

    @rule()
    def keep_house(self) -> None:
        for entry in prepare.housekeeping(self.state, now=self.now()):
            self.put(entry)

    @rule(back=st.sampled_from([0, 20, 2_000, 2_000, 2_000]))
    def raise_floor(self, back: int) -> None:
        self.put(RegistrationFloor(LeaseTime(max(0, self.fold.now - back * SECOND_NS))))

    @rule()
    def state_the_hash(self) -> None:
        ours = digest(self.state)
        (compared,) = self.put(StateHashed(self.state.index, ours))
        assert compared == Compared(self.state.index - 1, self.state.leader, ours, ours)

    @rule()
    def restart(self) -> None:
        """A snapshot and the log behind it give the same state."""
        state, head = decode(encode(self.state, Head(self.state.index, b"h" * 32)))
        assert head.index == self.state.index
        assert digest(state) == digest(self.state)
        snapshot_parts.audit(state)
        snapshot_parts.compare(self.state, state)
        self.fold.state = state

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
            job = self.model.jobs[plan.id]
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


MetastoreFold.TestCase.settings = settings(max_examples=150, stateful_step_count=60, deadline=None)
TestMetastoreFold = MetastoreFold.TestCase
