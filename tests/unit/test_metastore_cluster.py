"""When a day is clustered, what of it is taken, and which result the fold accepts."""

from __future__ import annotations

import msgspec
import pytest

from maar.metastore.decide import rollbacks, schedule, wishes
from maar.metastore.decide.schedule import Wish
from maar.metastore.fold.plans import rollback
from maar.metastore.records.effects import Completed, Effect, Leased, Refused, Scheduled
from maar.metastore.records.entries import PlansScheduled, PolicySet
from maar.metastore.state import audit, snapshot_parts
from maar.metastore.state.state import MetaState, SetbackScope
from maar.metastore.views import reads
from maar.metastore.views.explain import explain
from maar.model import keys
from maar.model.block import CLUSTERED, Kind
from maar.model.ids import BlockId, Shard, TenantId, WorkerId
from maar.model.plan import Account, JobId, Plan, PlanResult, PlanSpec, PlanState, QueueKey
from maar.model.policy import KindTerms, Policy
from maar.model.refusal import Refusal
from maar.model.schedule import Schedule
from maar.model.time import DAY_NS, SECOND_NS, LeaseTime
from maar.ports.plans.board import Report, SchedulePlan
from maar.services.cluster.rules import CLUSTER, CLUSTERING
from maar.services.compact.rules import COMPACT
from maar.services.rules import JobState, Setback
from support.metastore.fold import DAY, SMALL, TENANT, Fold, output
from support.metastore.leader_term import W1, W2, LeaderDecisions

HOUR_S = 3600
CLOSED_S = 25 * HOUR_S  # of the day's begin: an hour after its end
TERMS = msgspec.structs.replace(
    SMALL,
    kinds=(KindTerms(CLUSTER, 15 * SECOND_NS, 1800 * SECOND_NS, removable=True),),
    rollback_delay_ns=600 * SECOND_NS,
)
FINISHED = 200_000  # bytes: more than the target, so that no lane wants it


class Lake:
    """A leader of one tenant's blocks; the wall clock begins with the day of all profiles."""

    def __init__(self, policy: Policy = TERMS) -> None:
        self.leader = LeaderDecisions(Fold(policy=policy))
        self._numbers = iter(range(1, 10_000))

    @property
    def state(self) -> MetaState:
        return self.leader.fold.state

    def block(self, *, shard: int = 1, size: int = FINISHED) -> BlockId:
        """A block of level 1 that compaction made of one segment."""
        self.leader.add(next(self._numbers), shard=shard)
        self.leader.wait(11)
        (lease,) = self.leader.hand_out(Wish(W2, 1, (COMPACT,)))
        done = self.leader.complete(lease, size=size)
        assert isinstance(done[0], Completed), done
        return done[0].added[0]

    def until_s(self, second: float) -> None:
        """A time of the wall clock, from the begin of the day."""
        self.leader.fold.now = max(self.leader.fold.now, int(second * SECOND_NS))
        assert self.leader.fold.now == int(second * SECOND_NS), "it is later already"

    def due(self) -> list[PlanSpec]:
        return list(CLUSTERING.due(self.state, 0, now=self.leader.now))

    def ask(self, worker: WorkerId = W1, capacity: int = 1) -> list[Leased]:
        return self.leader.hand_out(Wish(worker, capacity, (CLUSTER,)))

    def cluster(self, *, size: int = 1000, duplicates: int = 0) -> tuple[BlockId, ...]:
        """A clustering that is due, from grant to completion."""
        (lease,) = self.ask()
        self.leader.renew(lease, started=True)
        (done,) = self.complete(lease, self.result(lease, size=size, duplicates=duplicates))
        assert isinstance(done, Completed), done
        return done.added

    def result(
        self,
        lease: Leased,
        *,
        size: int = 1000,
        duplicates: int = 0,
        day: int = DAY,
        **wrong: object,
    ) -> PlanResult:
        inputs = self.leader.fold.metas(self.leader.plan(lease.plan).inputs)
        kept = sum(meta.profiles for meta in inputs) - duplicates
        made = output(
            lease.plan, lease.token, inputs, profiles=kept, level=CLUSTERED, size=size, day=day
        )
        made = msgspec.structs.replace(made, shard=Shard(0))
        made = msgspec.structs.replace(made, **wrong)
        return PlanResult(CLUSTER, (made,), Account(kept, duplicates, 0))

    def complete(self, lease: Leased, result: PlanResult) -> list[Effect]:
        return self.leader.report(lease, Report(lease.plan, lease.token, result))

    def words(self, block: BlockId) -> str:
        return " ".join(explain(self.state, block, now=self.leader.now).sentences)

    def plan(self, lease: Leased) -> Plan:
        return self.leader.plan(lease.plan)


@pytest.fixture
def lake() -> Lake:
    return Lake()


# ── when it is due ─────────────────────────────────────────────────────────────────────────────


def test_a_day_is_due_an_hour_after_its_end_and_not_before(lake: Lake) -> None:
    blocks = [lake.block(shard=shard) for shard in (1, 2, 3)]
    lake.until_s(CLOSED_S - 0.001)
    assert lake.due() == []
    assert "closed, in 0 s" in lake.words(blocks[0])
    lake.until_s(CLOSED_S)
    (spec,) = lake.due()
    assert spec.inputs == tuple(sorted(blocks))
    assert (spec.key.tenant, spec.key.day, spec.key.shard) == (TENANT, DAY, 0)
    assert spec.removable
    assert "is due to be clustered" in lake.words(blocks[0])


def test_the_wall_clock_goes_on_between_entries(lake: Lake) -> None:
    lake.block(shard=1), lake.block(shard=2)
    state, last = lake.state, lake.leader.now
    assert state.wall_at(LeaseTime(last + 5)) == state.wall_time + 5
    assert list(CLUSTERING.due(state, 0, now=LeaseTime(CLOSED_S * SECOND_NS)))


def test_one_finished_block_is_not_worth_it(lake: Lake) -> None:
    block = lake.block()
    lake.until_s(CLOSED_S)
    assert lake.due() == []
    assert list(lake.state.windows_before(DAY + 9)) == [], "a poll does not even look at it"
    assert "no other finished block" in lake.words(block)


def test_blocks_that_a_lane_wants_are_waited_for_and_then_left_out(lake: Lake) -> None:
    finished = [lake.block(shard=shard) for shard in (1, 2)]
    lake.until_s(CLOSED_S - 20)
    queued = lake.block(shard=3, size=1000)
    assert queued in lake.state.queue
    lake.until_s(CLOSED_S)
    assert lake.due() == []
    assert "when compaction is done with its other 1 block" in lake.words(finished[0])
    lake.until_s(CLOSED_S + 6 * HOUR_S - 0.001)
    assert lake.due() == []
    lake.until_s(CLOSED_S + 6 * HOUR_S)
    (spec,) = lake.due()
    assert spec.inputs == tuple(sorted(finished))


def test_a_lane_that_is_done_ends_the_wait(lake: Lake) -> None:
    lake.block(shard=1), lake.block(shard=2)
    lake.until_s(CLOSED_S - 20)
    lake.block(shard=3, size=1000)
    lake.until_s(CLOSED_S + 60)
    assert lake.due() == []
    (lease,) = lake.leader.hand_out(Wish(W2, 1, (COMPACT,)))
    lake.leader.complete(lease, size=FINISHED)
    (spec,) = lake.due()
    assert len(spec.inputs) == 3


def test_blocks_of_a_pending_plan_are_not_offered_again(lake: Lake) -> None:
    lake.block(shard=1), lake.block(shard=2)
    lake.until_s(CLOSED_S)
    (lease,) = lake.ask()
    assert lake.due() == []
    lake.block(shard=3)
    assert lake.due() == [], "one plan for a window at a time"
    assert lake.plan(lease).kind == CLUSTER


def test_late_blocks_make_a_day_due_again_by_their_share(lake: Lake) -> None:
    lake.block(shard=1), lake.block(shard=2)
    lake.until_s(CLOSED_S)
    (made,) = lake.cluster(size=5 * FINISHED + 1)
    assert lake.due() == []
    late = lake.block(shard=1)
    assert lake.due() == [], "a little less than a fifth"
    assert "20 % of its bytes" in lake.words(late)
    other = lake.block(shard=1)
    (spec,) = lake.due()
    assert spec.inputs == tuple(sorted((made, late, other))), "what is clustered is merged again"


def test_exactly_the_share_is_enough(lake: Lake) -> None:
    lake.block(shard=1), lake.block(shard=2)
    lake.until_s(CLOSED_S)
    lake.cluster(size=5 * FINISHED)
    lake.block(shard=1)
    assert len(lake.due()) == 1


def test_late_blocks_make_a_day_due_again_by_their_age(lake: Lake) -> None:
    lake.block(shard=1), lake.block(shard=2)
    lake.until_s(CLOSED_S)
    lake.cluster(size=100 * FINISHED)
    began = lake.leader.now
    late = lake.block(shard=1)
    lake.leader.fold.now = began + DAY_NS - 1
    assert lake.due() == []
    lake.leader.fold.now = began + DAY_NS
    (spec,) = lake.due()
    assert late in spec.inputs


def test_a_day_too_large_for_one_plan_is_taken_piece_by_piece() -> None:
    terms = msgspec.structs.replace(TERMS.cluster, bytes_max=2 * FINISHED)
    lake = Lake(msgspec.structs.replace(TERMS, cluster=terms))
    blocks = sorted(lake.block(shard=shard) for shard in (1, 2, 3, 4, 5))
    lake.until_s(CLOSED_S)
    assert lake.due()[0].inputs == tuple(blocks[:2])
    lake.cluster(size=2 * FINISHED)
    (spec,) = lake.due()
    assert spec.inputs == tuple(blocks[2:4]), "what is clustered would not fit any more"
    lake.cluster(size=2 * FINISHED)
    lake.leader.wait(DAY_NS / SECOND_NS)
    (spec,) = lake.due()
    assert spec.inputs == (blocks[4],)


def test_windows_are_of_one_store_and_zone_and_tenant(lake: Lake) -> None:
    (one, other) = (lake.block(shard=shard) for shard in (1, 2))
    lake.until_s(CLOSED_S)
    (window,) = lake.state.windows_of(TENANT, DAY)
    assert (window.blocks, window.bytes, window.queued) == (2, 2 * FINISHED, 0)
    assert list(lake.state.windows_of(TenantId("other"), DAY)) == []
    assert list(lake.state.windows_of(TENANT, DAY + 1)) == []
    assert {meta.id for meta in lake.state.finished_blocks(window.key)} == {one, other}
    elsewhere = msgspec.structs.replace(window.key, zone="north")
    assert list(lake.state.finished_blocks(elsewhere)) == []


# ── by hand ────────────────────────────────────────────────────────────────────────────────────


def ask_for(lake: Lake, **more: object) -> object:
    request = SchedulePlan(**{"kind": CLUSTER, "tenant": TENANT, "day": DAY} | more)  # type: ignore[arg-type]
    entries = wishes.entries(lake.state, request, now=lake.leader.now)
    effects = lake.leader.put(entries)
    return wishes.answer(effects, lake.state, request, now=lake.leader.now)


def test_a_day_is_scheduled_by_hand_once(lake: Lake) -> None:
    lake.block(shard=1), lake.block(shard=2)
    lake.until_s(CLOSED_S - 20)
    lake.block(shard=3, size=1000)
    first = ask_for(lake)
    assert (first.plan, first.created) == (None, False)  # type: ignore[attr-defined]
    assert "open for another" in first.why  # type: ignore[attr-defined]
    lake.until_s(CLOSED_S)
    made = ask_for(lake)
    assert made.created, made  # type: ignore[attr-defined]
    again = ask_for(lake)
    assert (again.plan, again.created) == (made.plan, False)  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("scope", "why"),
    [
        ({"day": -1}, "name both"),
        ({"tenant": ""}, "name both"),
        ({"shard": 3}, "all shards"),
        ({"tenant": "nobody"}, "nothing to cluster in tenant nobody"),
    ],
)
def test_there_is_nothing_to_do_and_it_says_why(
    lake: Lake, scope: dict[str, object], why: str
) -> None:
    lake.block(shard=1), lake.block(shard=2)
    lake.until_s(CLOSED_S)
    said = ask_for(lake, **scope)
    assert said.plan is None  # type: ignore[attr-defined]
    assert why in said.why  # type: ignore[attr-defined]


# ── what the fold accepts ──────────────────────────────────────────────────────────────────────


def test_it_may_own_only_finished_blocks_of_its_window(lake: Lake) -> None:
    finished = [lake.block(shard=shard) for shard in (1, 2)]
    lake.until_s(CLOSED_S)
    (spec,) = lake.due()
    lake.leader.fold.now -= 30 * SECOND_NS
    queued = lake.block(shard=3, size=1000)
    other_day = msgspec.structs.replace(spec.key, day=DAY + 1)
    for wrong in (
        msgspec.structs.replace(spec, inputs=(*finished, queued)),
        msgspec.structs.replace(spec, key=other_day),
        msgspec.structs.replace(spec, key=msgspec.structs.replace(spec.key, shard=Shard(1))),
        msgspec.structs.replace(spec, key=msgspec.structs.replace(spec.key, tenant="other")),
    ):
        (effect,) = lake.leader.put([PlansScheduled((wrong,))])
        assert isinstance(effect, Refused)
        assert effect.why is Refusal.INPUT_KEY
    (effect,) = lake.leader.put([PlansScheduled((spec,))])
    assert isinstance(effect, Scheduled)


def test_what_is_clustered_takes_the_place_of_its_inputs_and_is_never_queued(lake: Lake) -> None:
    inputs = [lake.block(shard=shard) for shard in (1, 2)]
    lake.until_s(CLOSED_S)
    outputs = lake.cluster(size=10, duplicates=3)
    assert lake.leader.fold.live() == set(outputs)
    assert all(block in lake.state.retired for block in inputs)
    (block,) = outputs
    meta = lake.state.blocks.get(block)
    assert (meta.level, meta.shard, meta.profiles) == (CLUSTERED, 0, 17)
    assert block not in lake.state.queue.places
    assert "was clustered" in lake.words(block)
    lake.leader.put([PolicySet(msgspec.structs.replace(TERMS, target_block_bytes=1 << 40))])
    assert block not in lake.state.queue.places
    (level,) = reads.levels(lake.state, lake.leader.now, {})
    assert (level.level, level.queued, level.blocks) == (CLUSTERED, 0, 1)


@pytest.mark.parametrize(
    ("wrong", "why"),
    [
        ({"level": 2}, Refusal.OUTPUT),
        ({"shard": Shard(1)}, Refusal.OUTPUT),
        ({"store": "second"}, Refusal.OUTPUT),
        ({"tenant": TenantId("other")}, Refusal.OUTPUT),
        ({"zone": "north"}, Refusal.OUTPUT),
        ({"kind": Kind.QUARANTINE}, Refusal.ACCOUNT),
        ({"profiles": 19}, Refusal.ACCOUNT),
    ],
)
def test_any_other_result_is_refused(lake: Lake, wrong: dict[str, object], why: Refusal) -> None:
    inputs = {lake.block(shard=shard) for shard in (1, 2)}
    lake.until_s(CLOSED_S)
    (lease,) = lake.ask()
    lake.leader.renew(lease, started=True)
    assert lake.complete(lease, lake.result(lease, **wrong)) == [  # type: ignore[arg-type]
        Refused(why, lease.plan, lease.token)
    ]
    assert lake.leader.fold.live() == inputs


def test_a_result_of_another_day_is_refused(lake: Lake) -> None:
    lake.block(shard=1), lake.block(shard=2)
    lake.until_s(CLOSED_S)
    (lease,) = lake.ask()
    lake.leader.renew(lease, started=True)
    made = lake.result(lease)
    other = msgspec.structs.replace(
        made.outputs[0],
        day=DAY + 1,
        min_time_ns=(DAY + 1) * DAY_NS,
        max_time_ns=(DAY + 1) * DAY_NS,
    )
    (effect,) = lake.complete(lease, msgspec.structs.replace(made, outputs=(other,)))
    assert effect == Refused(Refusal.OUTPUT, lease.plan, lease.token)


def test_no_output_at_all_is_refused(lake: Lake) -> None:
    lake.block(shard=1), lake.block(shard=2)
    lake.until_s(CLOSED_S)
    (lease,) = lake.ask()
    lake.leader.renew(lease, started=True)
    nothing = PlanResult(CLUSTER, (), Account(0, 20, 0))
    (effect,) = lake.complete(lease, nothing)
    assert effect == Refused(Refusal.SHARE, lease.plan, lease.token)


# ── how it fails ───────────────────────────────────────────────────────────────────────────────


def test_a_rolled_back_clustering_is_due_again_after_its_setback(lake: Lake) -> None:
    inputs = {lake.block(shard=shard) for shard in (1, 2)}
    lake.until_s(CLOSED_S)
    (lease,) = lake.ask()
    lake.leader.renew(lease, started=True)
    lake.leader.fail(lease)
    assert lake.plan(lease).state is PlanState.INFLIGHT
    lake.leader.wait(600)
    lake.leader.put(rollbacks.survey(lake.state, now=lake.leader.now).entries())
    assert lake.plan(lease).state is PlanState.ROLLED_BACK
    assert lake.leader.fold.live() == inputs
    assert not lake.state.owners
    setback = lake.state.setback(CLUSTER, lake.plan(lease).key)
    assert setback is not None
    assert setback.failures == 1
    lake.leader.fold.now = setback.until - 1
    assert lake.due() == []
    assert "failed 1 time in a row" in lake.words(min(inputs))
    lake.leader.fold.now = setback.until
    (spec,) = lake.due()
    assert set(spec.inputs) == inputs
    assert ask_for(lake).created  # type: ignore[attr-defined]


def fails(lake: Lake, lease: Leased) -> None:
    lake.leader.renew(lease, started=True)
    lake.leader.fail(lease)


def keeps_failing(lake: Lake) -> QueueKey:
    """Until the day is at its limit."""
    key, said = lake.due()[0].key, ""
    for failure in range(1, lake.state.policy.failure_limit + 1):
        (lease,) = lake.ask()
        assert lake.plan(lease).removable
        fails(lake, lease)
        lake.leader.wait(600)
        lake.leader.put(rollbacks.survey(lake.state, now=lake.leader.now).entries())
        setback = lake.state.setback(CLUSTER, key)
        assert setback is not None
        assert setback.failures == failure
        lake.leader.fold.now = max(lake.leader.fold.now, setback.until - 1)
        assert lake.due() == []
        said = lake.words(min(lake.leader.fold.live()))
        lake.leader.fold.now += 1
    assert "divided until the block at fault is found" in said
    return key


def search(lake: Lake, bad: BlockId) -> int:
    """Whoever has the bad block fails, until nothing is due; how many plans that were."""
    plans = 0
    while leases := lake.ask():
        (lease,) = leases
        plans += 1
        assert not lake.plan(lease).removable, "it stays, so that it can be divided"
        if bad in lake.plan(lease).inputs:
            fails(lake, lease)
        else:
            lake.leader.renew(lease, started=True)
            (done,) = lake.complete(lease, lake.result(lease, size=FINISHED))
            assert isinstance(done, Completed), done
        lake.leader.wait(60)
    return plans


@pytest.mark.parametrize("at_fault", [0, 3, 6])
def test_of_a_day_that_keeps_failing_only_the_block_at_fault_is_left_out(
    lake: Lake, at_fault: int
) -> None:
    blocks = sorted(lake.block(shard=shard) for shard in range(1, 8))
    bad = blocks[at_fault]
    lake.until_s(CLOSED_S)
    key = keeps_failing(lake)
    assert search(lake, bad) < 20
    (left_out,) = lake.state.plans.of_kind(CLUSTER)
    assert (left_out.state, left_out.inputs) == (PlanState.EXCLUDED, (bad,))
    assert f"Plan {left_out.id} holds it and is excluded" in lake.words(bad)
    metas = lake.leader.fold.metas(tuple(lake.leader.fold.live() - {bad}))
    assert {meta.level for meta in metas} == {CLUSTERED}
    assert sum(meta.profiles for meta in metas) == 6 * 10
    assert lake.state.setback(CLUSTER, key) is None


def test_what_comes_late_is_clustered_beside_a_block_that_is_left_out(
    lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    bad = lake.block(shard=1)
    lake.block(shard=2)
    lake.until_s(CLOSED_S)
    keeps_failing(lake)
    search(lake, bad)
    with monkeypatch.context() as patch:  # workers ask every second
        patch.setattr(
            MetaState, "finished_blocks", lambda *_: pytest.fail("it looks at all blocks")
        )
        assert lake.due() == []
    (excluded,) = lake.state.plans.of_kind(CLUSTER)
    asked = ask_for(lake)
    assert asked.plan is None, "the excluded plan does not answer for its day"  # type: ignore[attr-defined]
    late = lake.block(shard=3)
    (spec,) = lake.due()
    assert late in spec.inputs
    assert bad not in spec.inputs
    assert spec.removable
    made = ask_for(lake)
    assert made.created  # type: ignore[attr-defined]
    assert made.plan != excluded.id  # type: ignore[attr-defined]


def test_set_so_it_is_not_removable() -> None:
    terms = (KindTerms(CLUSTER, 15 * SECOND_NS, 1800 * SECOND_NS, removable=False),)
    lake = Lake(msgspec.structs.replace(TERMS, kinds=terms))
    lake.block(shard=1), lake.block(shard=2)
    lake.until_s(CLOSED_S)
    (lease,) = lake.ask()
    lake.leader.renew(lease, started=True)
    lake.leader.fail(lease)
    assert lake.plan(lease).state is PlanState.REQUESTED
    assert rollback.dead_tokens(lake.state, lake.plan(lease)) == (lease.token,)


# ── slots ──────────────────────────────────────────────────────────────────────────────────────


def test_a_grant_says_how_many_slots_and_how_much_memory(lake: Lake) -> None:
    lake.block(shard=1), lake.block(shard=2)
    lake.until_s(CLOSED_S)
    (lease,) = lake.ask()
    granted = reads.leased_plan(lake.state, lease.plan)
    assert (granted.slots, granted.memory_bytes) == (2, 1 << 30)
    assert granted.title.startswith(f"cluster {lease.plan} day 2024-10-04")


@pytest.mark.parametrize(("capacity", "got"), [(1, 1), (2, 1), (3, 2), (4, 2), (5, 3)])
def test_plans_are_handed_out_until_their_slots_are_taken(capacity: int, got: int) -> None:
    lake = Lake()
    lake.block(shard=1), lake.block(shard=2)
    lake.until_s(CLOSED_S)
    (spec,) = lake.due()
    state = lake.state
    for _ in range(3):  # plans of three windows are on the schedule
        lake.leader.put([PlansScheduled((spec,))])
        state.owners.clear()
    assert len(list(state.plans.of_kind(CLUSTER))) == 3
    entries = schedule.assign(state, [Wish(W1, capacity, (CLUSTER,))], now=lake.leader.now)
    (leased,) = entries
    assert len(leased.grants) == got  # type: ignore[union-attr]


# ── derived data ───────────────────────────────────────────────────────────────────────────────


def test_a_snapshot_brings_the_sums_of_windows_back(lake: Lake) -> None:
    lake.block(shard=1), lake.block(shard=2)
    lake.until_s(CLOSED_S)
    lake.cluster()
    lake.block(shard=1), lake.block(shard=3, size=1000)
    state = lake.state
    parts = list(snapshot_parts.parts_of(state))
    again = snapshot_parts.state_of(parts)
    audit.check_sums(state)
    audit.check_derived(state, again)
    (window,) = again.windows_of(TENANT, DAY)
    assert (window.blocks, window.queued, window.clustered) == (1, 1, 1)


def test_an_audit_notices_sums_that_are_wrong(lake: Lake) -> None:
    lake.block(shard=1)
    (window,) = lake.state.blocks.windows.by_key.values()
    window.fresh.bytes += 1
    with pytest.raises(Exception, match="sums of days"):
        audit.check_sums(lake.state)


def test_windows_are_gone_with_their_last_block(lake: Lake) -> None:
    lake.block(shard=1, size=1000)
    windows, placed = lake.state.blocks.windows, lake.state.queue.placed
    assert (len(windows), len(placed)) == (1, 1)
    (meta,) = lake.leader.fold.metas(tuple(lake.leader.fold.live()))
    lake.state.blocks.drop(lake.state.blocks.find_live((meta.id,)))
    lake.state.queue.leave(meta.id, lake.state.policy)
    assert (len(windows), len(windows.mixed), len(placed)) == (0, 0, 0)
    assert keys.date_text(meta.day) == "2024-10-04"


# ── its jobs ───────────────────────────────────────────────────────────────────────────────────


def job_of(lake: Lake) -> JobState:
    (tenant,) = CLUSTERING.job_tenants(lake.state)
    (job,) = CLUSTERING.job_ids(lake.state, tenant)
    assert job == JobId(TENANT, CLUSTER)
    weekly = Schedule(interval_ns=7 * DAY_NS)
    found = CLUSTERING.job(lake.state, job, weekly, now=lake.leader.now)
    assert found is not None
    return found


def test_a_tenants_job_has_waited_as_long_as_its_oldest_day(lake: Lake) -> None:
    assert list(CLUSTERING.job_tenants(lake.state)) == [], (
        "one block of a day is nothing to cluster"
    )
    lake.block()
    lake.block(shard=2)
    assert job_of(lake).nothing
    lake.until_s(CLOSED_S + 90)
    found = job_of(lake)
    assert not found.nothing
    assert lake.leader.now - found.last_success == 7 * DAY_NS + 90 * SECOND_NS  # type: ignore[operator]


def test_a_day_that_rests_after_failures_is_not_forgotten(lake: Lake) -> None:
    lake.block()
    lake.block(shard=2)
    lake.until_s(CLOSED_S)
    assert not job_of(lake).why_not
    window = next(lake.state.windows_to_cluster(TENANT)).key
    lake.state.setbacks[SetbackScope(CLUSTER, window)] = Setback(1, LeaseTime(1 << 62))
    found = job_of(lake)
    assert "rest after failures" in found.why_not
    assert not found.nothing, "a day waits, and one day an alarm says so"
