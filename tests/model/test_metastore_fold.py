"""The fold against a model small enough to trust: profiles counted, tokens compared, owners listed.

Planted by hand and seen caught here: accepting a stale token, not checking owners when a plan is
scheduled, folding an entry twice, granting over a live lease, completing with a profile missing,
forgetting the id of a merged segment, deleting under a pin, losing half of a bisected plan.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import msgspec
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

from maar.metastore import prepare, retirement, schedule
from maar.metastore.apply import apply
from maar.metastore.digest import digest
from maar.metastore.effects import (
    AttemptEnded,
    Bisected,
    Completed,
    Effects,
    Leased,
    Refusal,
    Refused,
    Registered,
    Renewed,
    Scheduled,
)
from maar.metastore.entries import (
    AttemptFenced,
    BlocksAdded,
    BlocksForgotten,
    Entry,
    Extension,
    Floor,
    Grant,
    LeasesRenewed,
    PlanCompleted,
    PlanFailed,
    PlansLeased,
    PlanSpec,
    PlansScheduled,
    StateHashed,
    TermStarted,
)
from maar.metastore.queue import mergeable
from maar.metastore.schedule import Wish
from maar.metastore.snapshot import decode, encode
from maar.metastore.state import MetaState
from maar.model.block import BlockMeta
from maar.model.ids import BlockId, FencingToken, PlanId, WorkerId
from maar.model.plan import Account, AttemptEnd, PlanResult, PlanState, Service
from maar.model.time import SECOND_NS, LeaseTime
from maar.ports.log import Head
from support.metastore import SMALL, Fold, result, segment

POLICY = msgspec.structs.replace(
    SMALL,
    finished_max=50,
    attempts_max=3,
    retire_delay_ns=20 * SECOND_NS,
    pin_ns=200 * SECOND_NS,
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
    removed: int = 0
    seen: set[BlockId] = field(default_factory=set)
    jobs: dict[PlanId, Job] = field(default_factory=dict)
    tokens: set[tuple[PlanId, FencingToken]] = field(default_factory=set)

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

    @rule(target=metas, shard=st.integers(1, 2), count=st.integers(1, 3), late=st.booleans())
    def register(self, shard: int, count: int, late: bool) -> MultipleResults[BlockMeta]:
        at = 0 if late else self.fold.now
        return multiple(*(self.added(shard=shard, at=at) for _ in range(count)))

    def added(self, *, shard: int, at: int) -> BlockMeta:
        self.count += 1
        meta = segment(self.count, at=at, shard=shard, profiles=self.count % 5 + 1)
        (effect,) = self.put(BlocksAdded((meta,)))
        assert isinstance(effect, Registered)
        assert (effect.refusal == "") is (at > self.state.floor)
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
        for entry in schedule.set_aside(self.state, self.now()):
            self.put(entry)
        found = []
        for entry in schedule.assign(self.state, [Wish(worker, capacity)], now=self.now()):
            found += [e for e in self.put(entry) if isinstance(e, Leased)]
        return multiple(*found)

    @rule(target=grants, grant=grants, worker=WORKERS, seen=st.booleans())
    def grant_from_an_old_state(
        self, grant: Leased, worker: WorkerId, seen: bool
    ) -> MultipleResults[Leased]:
        item = Grant(
            grant.plan, worker, LeaseTime(self.fold.now + 9), grant.token if seen else None
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
        made = PlanResult((), Account(0, 0, 0))
        if job and not job.done_by and all(b in self.model.profiles for b in inputs):
            made = result(grant.plan, grant.token, self.fold.metas(inputs), duplicates=duplicates)
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
        return PlanResult((meta,), account)

    def replace(self, job: Job, token: FencingToken, made: PlanResult) -> None:
        for block in job.inputs:
            del self.model.profiles[block]
        for meta in made.outputs:
            self.model.profiles[meta.id] = meta.profiles
        self.model.removed += made.account.duplicates
        job.done_by, job.done_at = token, self.fold.now

    @rule(grant=grants, fenced=st.booleans())
    def fail(self, grant: Leased, fenced: bool) -> None:
        entry: Entry = PlanFailed(grant.plan, grant.token, "broken", LeaseTime(0))
        if fenced:
            entry = AttemptFenced(grant.plan, grant.token, "gone")
        job = self.model.jobs.get(grant.plan)
        held = job is not None and job.token == grant.token and not job.done_by
        (effect,) = self.put(entry)
        assert isinstance(effect, AttemptEnded) is held

    @rule(data=st.data())
    def schedule_anything(self, data: st.DataObject) -> None:
        """A leader with an old state wants blocks that may be owned or gone."""
        known = sorted(self.model.seen | set(self.model.profiles))
        if not known:
            return
        inputs = tuple(data.draw(st.lists(st.sampled_from(known), min_size=1, max_size=3)))
        owners = self.model.owners()
        free = all(b in self.model.profiles and b not in owners for b in inputs)
        key = (
            self.state.queue.places[inputs[0]].key if inputs[0] in self.state.queue.places else None
        )
        if key is None:
            return
        spec = PlanSpec(Service.COMPACT, False, key, inputs, 2)
        (effect,) = self.put(PlansScheduled((spec,)))
        assert isinstance(effect, Scheduled) is (free and len(set(inputs)) == len(inputs))

    @rule()
    def lead_anew(self) -> None:
        self.put(TermStarted(self.state.term + 1, "next"))
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
        self.put(Floor(LeaseTime(max(0, self.fold.now - back * SECOND_NS))))

    @rule()
    def state_the_hash(self) -> None:
        assert self.put(StateHashed(self.state.index, digest(self.state))) == ()

    @rule()
    def restart(self) -> None:
        """A snapshot and the log behind it give the same state."""
        state, head = decode(encode(self.state, Head(self.state.index, b"h" * 32)))
        assert head.index == self.state.index
        assert digest(state) == digest(self.state)
        self.fold.state = state

    @invariant()
    def live_blocks_hold_every_acknowledged_profile_once(self) -> None:
        assert self.fold.live() == set(self.model.profiles)
        held = sum(self.model.profiles.values())
        assert held == self.model.acknowledged - self.model.removed
        assert sum(t.profiles for t in self.state.blocks.totals.values()) == held

    @invariant()
    def every_block_has_at_most_one_owner_and_is_queued_or_owned(self) -> None:
        assert self.state.owners == self.model.owners()
        for block in self.fold.live():
            meta = self.state.blocks.get(block)
            owned, queued = block in self.state.owners, block in self.state.queue
            assert not (owned and queued)
            if mergeable(meta, self.state.policy):
                assert owned or queued
        assert self.state.queue.queued == sum(len(x.items) for x in self.state.queue.lanes.values())

    @invariant()
    def plans_are_where_they_belong(self) -> None:
        for plan in self.state.plans.values():
            assert plan.state in (PlanState.REQUESTED, PlanState.INFLIGHT, PlanState.EXCLUDED)
            job = self.model.jobs[plan.id]
            assert (plan.lease.token if plan.lease else None) == job.token
        for plan in self.state.finished.values():
            assert plan.state in (PlanState.COMPLETED, PlanState.CANCELLED)

    def teardown(self) -> None:
        """The same log gives the same state."""
        fresh = MetaState()
        for item in self.fold.log:
            apply(fresh, item)
        assert digest(fresh) == digest(self.state)
        assert fresh.index == self.state.index


MetastoreFold.TestCase.settings = settings(max_examples=200, stateful_step_count=60, deadline=None)
TestMetastoreFold = MetastoreFold.TestCase
