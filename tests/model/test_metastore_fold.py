"""The fold against a model small enough to trust: profiles counted, tokens compared, owners listed.

Planted by hand and seen caught here: accepting a stale token, not checking owners when a plan is
scheduled, folding an entry twice, granting over a live lease, completing with a profile missing,
forgetting the id of a merged segment, deleting under a pin, losing half of a bisected plan, parking
a plan that somebody works on, letting go of a parked plan's inputs, requeueing into a full
schedule, a line of the timeline that a plan never leaves, an ended attempt whose leftovers nobody
looks for, an operator's exclusion that leaves the lease alive.
"""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, MultipleResults, initialize, multiple, rule

from maar.metastore.decide import operator_commands, prepare, rollbacks, schedule
from maar.metastore.decide.schedule import Wish
from maar.metastore.decide.workers import WorkerRegistry
from maar.metastore.fold.deleting import retirement
from maar.metastore.records.effects import (
    AttemptEnded,
    Compared,
    Completed,
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
from maar.metastore.state import audit
from maar.metastore.state.digest import digest
from maar.model.block import BlockMeta
from maar.model.errors import Rejected
from maar.model.ids import BlockId, FencingToken, WorkerId, Zone
from maar.model.plan import ROLLBACK, Account, PlanResult, PlanSpec, PlanState
from maar.model.refusal import Refusal
from maar.model.time import SECOND_NS, LeaseTime
from maar.ports.metastore.log import Head
from maar.services.compact.rules import COMPACT
from support.metastore.fold import DAY_START_NS, result, segment
from support.oracles.fold_model import POLICY, Job, ModelledFold

pytestmark = pytest.mark.timeout(1200)  # on a machine that has much else to do

WORKERS = st.sampled_from([WorkerId("w1"), WorkerId("w2")])


class MetastoreFold(ModelledFold):
    """Workers say anything at any time, however late; leaders prepare from old states."""

    grants: Bundle[Leased] = Bundle("grants")
    metas: Bundle[BlockMeta] = Bundle("metas")

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
            found += [e for e in effects if isinstance(e, Leased) and not e.before]
        assert len(found) <= capacity
        self.those_that_failed_run_alone(worker, found)
        return found

    def those_that_failed_run_alone(self, worker: WorkerId, found: list[Leased]) -> None:
        held = self.state.plans.work_of(worker, self.now())
        work = [plan for plan in held if plan.rolls_back is None]
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
        effects = self.put(PlansLeased((item,)))
        return multiple(*(e for e in effects if isinstance(e, Leased) and not e.before))

    @rule()
    def clean_up(self) -> None:
        """The first step of a cleaning, decided at the head."""
        for entry in rollbacks.survey(self.state, now=self.now()).entries():
            for effect in self.put(entry):
                assert not isinstance(effect, Refused) or effect.why is Refusal.TOO_MANY

    @rule(data=st.data(), stale=st.booleans())
    def finish_a_rollback(self, data: st.DataObject, stale: bool) -> None:
        pending = [plan for plan, u in self.model.rollbacks.items() if not u.done_by]
        if not pending:
            return
        plan = data.draw(st.sampled_from(sorted(pending)))
        undoing = self.model.rollbacks[plan]
        token = undoing.token
        if token is None or stale:
            token = FencingToken(self.state.incarnation, 1)
        undone = PlanResult(ROLLBACK, (), Account(0, 0, 0))
        (effect,) = self.put(PlanCompleted(plan, token, undone))
        assert isinstance(effect, Completed) is (token == undoing.token)
        if isinstance(effect, Completed):
            undoing.done_by, undoing.token = token, None
            self.model.dead -= undoing.attempts

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
            ended = [*self.model.jobs.values(), *self.model.rollbacks.values()]
            finished = sum(1 for other in ended if other.done_by)
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
            self.model.dead.difference_update(swept)

    @rule()
    def lead_anew(self) -> None:
        self.put(TermStarted(self.state.term + 1, "next"))
        self.worker_registry = WorkerRegistry(hearing_since=self.now())
        for plan, job in (*self.model.jobs.items(), *self.model.rollbacks.items()):
            if plan in self.state.plans and (lease := self.state.plans[plan].lease):
                if self.fold.now <= job.expires_at:
                    job.expires_at = max(job.expires_at, self.fold.now + job.lease_ns)
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
        audit.check_sums(state)
        audit.check_derived(self.state, state)
        self.fold.state = state


MetastoreFold.TestCase.settings = settings(max_examples=100, stateful_step_count=60, deadline=None)
TestMetastoreFold = MetastoreFold.TestCase
