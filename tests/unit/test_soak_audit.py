"""The soak's audit is trusted because it catches what it is there for: one planted bug a test."""

from __future__ import annotations

from dataclasses import dataclass, field

from maar.metastore.records.entries import (
    VERSION,
    AttemptKey,
    BlocksAdded,
    BlocksForgotten,
    Entry,
    Envelope,
    Extension,
    Genesis,
    Grant,
    LeasesRenewed,
    LeftoversSwept,
    PlanBisected,
    PlanCompleted,
    PlanFailed,
    PlansLeased,
    PlansScheduled,
)
from maar.model.block import BlockMeta
from maar.model.ids import (
    MAIN_STORE,
    NO_TENANT,
    FencingToken,
    PlanId,
    Shard,
    WorkerId,
)
from maar.model.plan import Account, PlanResult, PlanSpec, QueueKey
from maar.model.time import LeaseTime, WallTime
from maar.services.compact.rules import COMPACT
from support.metastore.fold import INCARNATION, result, segment
from support.oracles.log_audit import Audit
from support.soak import checks
from support.stores.memory_store import MemoryStore

LEASE = 10
INPUTS = (segment(1, at=1), segment(2, at=2))
KEY = QueueKey(MAIN_STORE, NO_TENANT, Shard(1), 0)


@dataclass
class Story:
    """A log as somebody might have written it."""

    log: list[tuple[int, Envelope]] = field(default_factory=list)
    now: int = 3

    def __post_init__(self) -> None:
        self.put(Genesis(INCARNATION))
        self.put(BlocksAdded(INPUTS))

    def put(self, entry: Entry) -> int:
        index = len(self.log) + 1
        self.log.append((index, Envelope(VERSION, LeaseTime(self.now), WallTime(0), entry)))
        return index

    def schedule(self, *inputs: BlockMeta) -> PlanId:
        blocks = tuple(meta.id for meta in inputs)
        spec = PlanSpec(COMPACT, False, KEY, blocks, failure_limit=3)
        return PlanId(self.put(PlansScheduled((spec,))), 0)

    def grant(self, plan: PlanId, *, replaces: FencingToken | None = None) -> FencingToken:
        until = LeaseTime(self.now + LEASE)
        index = self.put(PlansLeased((Grant(plan, WorkerId("w"), until, replaces),)))
        return FencingToken(INCARNATION, index)

    def complete(self, plan: PlanId, token: FencingToken, *inputs: BlockMeta) -> PlanResult:
        made = result(plan, token, inputs)
        self.put(PlanCompleted(plan, token, made))
        return made

    def audit(self) -> Audit:
        return Audit.of(self.log)


def test_a_good_story_has_no_fault() -> None:
    story = Story()
    plan = story.schedule(*INPUTS)
    first = story.grant(plan)
    story.put(LeasesRenewed((Extension(plan, first, LeaseTime(story.now + 2 * LEASE)),)))
    story.now += 2 * LEASE + 1
    second = story.grant(plan, replaces=first)
    made = story.complete(plan, second, *INPUTS)
    story.complete(plan, second, *INPUTS)  # the same again
    story.complete(plan, first, *INPUTS)  # by a zombie
    story.put(PlanFailed(plan, first, "late", LeaseTime(0)))
    story.put(BlocksForgotten(tuple(meta.id for meta in INPUTS)))
    story.put(LeftoversSwept((AttemptKey(plan, first), AttemptKey(plan, second))))
    audit = story.audit()
    assert audit.faults == []
    assert audit.winners == {plan: second}
    assert audit.live == {made.outputs[0].id: 20}
    assert audit.late == {"result": 1, "failure": 1}
    assert audit.unfinished_plans() == []
    assert audit.ended == audit.swept == {(plan, first), (plan, second)}
    assert audit.retired == audit.forgotten


def test_a_divided_plan_lives_on_in_its_halves() -> None:
    story = Story()
    plan = story.schedule(*INPUTS)
    halves = story.put(PlanBisected(plan, None, at=1))
    first = PlanId(halves, 0)
    story.complete(first, story.grant(first), INPUTS[0])
    audit = story.audit()
    assert audit.faults == []
    assert audit.unfinished_plans() == [PlanId(halves, 1)]


def test_a_live_lease_that_is_taken_is_caught() -> None:
    story = Story()
    plan = story.schedule(*INPUTS)
    first = story.grant(plan)
    story.now += LEASE  # it is expired only when time exceeds this
    story.grant(plan, replaces=first)
    assert "from a live lease" in story.audit().faults[0]


def test_a_renewed_lease_is_live() -> None:
    story = Story()
    plan = story.schedule(*INPUTS)
    first = story.grant(plan)
    story.put(LeasesRenewed((Extension(plan, first, LeaseTime(100)),)))
    story.now = 99
    story.grant(plan, replaces=first)
    assert "from a live lease" in story.audit().faults[0]


def test_an_old_token_completes_nothing() -> None:
    story = Story()
    plan = story.schedule(*INPUTS)
    first = story.grant(plan)
    story.now += LEASE + 1
    story.grant(plan, replaces=first)
    story.complete(plan, first, *INPUTS)
    audit = story.audit()
    assert audit.unfinished_plans() == [plan]
    assert set(audit.live) == {meta.id for meta in INPUTS}


def test_an_output_that_does_not_account_for_its_inputs_is_caught() -> None:
    story = Story()
    plan = story.schedule(*INPUTS)
    token = story.grant(plan)
    made = result(plan, token, INPUTS)
    short = PlanResult(COMPACT, made.outputs, Account(kept=19, duplicates=0, quarantined=0))
    story.put(PlanCompleted(plan, token, short))
    assert "does not account" in story.audit().faults[0]


def test_two_plans_do_not_own_one_block() -> None:
    story = Story()
    story.schedule(*INPUTS)
    second = story.schedule(INPUTS[0])
    assert second not in story.audit().plans


def test_a_sweep_under_a_living_attempt_is_caught() -> None:
    story = Story()
    plan = story.schedule(*INPUTS)
    story.put(LeftoversSwept((AttemptKey(plan, story.grant(plan)),)))
    assert "has not ended" in story.audit().faults[0]


def test_a_live_block_that_is_forgotten_is_caught() -> None:
    story = Story()
    story.put(BlocksForgotten((INPUTS[0].id,)))
    assert "was not retired" in story.audit().faults[0]


def test_lease_time_that_runs_backwards_is_caught() -> None:
    story = Story()
    story.now -= 1
    story.schedule(*INPUTS)
    assert "runs backwards" in story.audit().faults[0]


def full_store(*metas: BlockMeta) -> MemoryStore:
    store = MemoryStore()
    for meta in metas:
        store.create(meta.files[0].locations[0].key, bytes(meta.size))
    return store


def test_a_store_that_holds_what_is_listed_and_nothing_else_is_clean() -> None:
    store = full_store(*INPUTS)
    store.create("metastore/v1/0badcafe/snapshot-0000000000000001.maar", b"")
    store.create("markers/v1/0badcafe", b"")
    store.create("placement/v1/0badcafe/rules-00000000000000000001.binpb", b"")
    assert checks.leftovers(store, INPUTS, strays_max=0) == []


def test_leftovers_missing_objects_and_wrong_sizes_are_caught() -> None:
    store = full_store(INPUTS[0])
    store.create("attempts/v1/1.0/0badcafe.2/a-0", b"")
    store.create("lake/v1/samples/tenant=a/date=2026-01-01/x.parquet", b"")
    faults = checks.leftovers(store, INPUTS, strays_max=0)
    assert [fault.rpartition(" is ")[2] for fault in faults] == [
        "referenced and missing",
        "a leftover",
        "a leftover",
    ]
    store = full_store(*INPUTS)
    store.delete(INPUTS[0].files[0].locations[0].key)
    store.create(INPUTS[0].files[0].locations[0].key, b"short")
    assert "has 5 bytes, not 1000" in checks.leftovers(store, INPUTS, strays_max=0)[0]


def test_segments_of_refused_pushes_are_no_more_than_those() -> None:
    store = full_store(*INPUTS)
    assert checks.leftovers(store, INPUTS[:1], strays_max=1) == []
    assert len(checks.leftovers(store, INPUTS[:1], strays_max=0)) == 1


def test_a_crash_is_seen_and_the_complaint_of_a_killed_spark_is_none() -> None:
    ours = f'level=error trace="{checks.TRACE} File maar/metastore/fold/plans/plan.py: KeyError"\n'
    sparks = f"{checks.TRACE}\nFile site-packages/pyspark/accumulators.py\nEOFError\n"
    later = "event=quiet\n" * checks.TRACE_LINES
    assert checks.crashes(sparks + later) == []
    assert checks.crashes(sparks + later, spared=checks.COUNTING) == []
    runners = f"{checks.TRACE}\nFile site-packages/pyspark/context.py\nEOFError\n"
    assert len(checks.crashes(runners, spared=checks.COUNTING)) == 1
    assert len(checks.crashes(sparks + later + ours + later + sparks)) == 1
