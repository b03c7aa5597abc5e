"""Bulk writes: who may carry one out, what it may add, when it is undone, when it is adopted."""

from __future__ import annotations

import msgspec
import pytest

from maar.metastore.decide import wishes
from maar.metastore.decide.schedule import Wish
from maar.metastore.fold.deleting import deletion
from maar.metastore.leader.stores import committing
from maar.metastore.records.effects import Completed, Effect, Refused
from maar.metastore.records.entries import (
    BlocksLost,
    PlanCompleted,
    PlansScheduled,
    PredicateAdded,
    RegistrationFloor,
    StoresSet,
)
from maar.metastore.views import reads
from maar.metastore.views.explain import explain
from maar.model import keys
from maar.model.block import INGESTED, BlockMeta, Kind
from maar.model.errors import Corrupt
from maar.model.ids import (
    FencingToken,
    PlanId,
    Shard,
    StoreName,
    TenantId,
    block_time_ns,
    segment_id,
)
from maar.model.plan import Account, PlanResult, PlanSpec, PlanState
from maar.model.policy import HOUR_NS, KindTerms
from maar.model.predicate import Mask
from maar.model.refusal import Refusal
from maar.model.stores import StoreSet, StoreSpec
from maar.model.time import DAY_NS, SECOND_NS, LeaseTime
from maar.ports.plans.board import Outcome, PollReply, PollRequest, Report, SchedulePlan
from maar.services.compact.rules import COMPACT
from maar.services.ingest.rules import INGEST, OUTPUTS_MAX, key_of
from maar.services.kinds import KINDS
from maar.services.rules import PlanScope
from support.lake.lost_log import SIZE, Lives, manifest_key, tables
from support.metastore.fold import DAY, SMALL, TENANT, Fold, output, segment
from support.metastore.leader_term import W1, LeaderDecisions
from support.metastore.plan_steps import begin, execute, lease_held, survey, why_skipped

LEASE_S = 10
DELAY_S = 600
POLICY = msgspec.structs.replace(
    SMALL,
    kinds=(KindTerms(INGEST, LEASE_S * SECOND_NS, HOUR_NS, removable=True, delayed=False),),
    rollback_delay_ns=DELAY_S * SECOND_NS,
)


@pytest.fixture
def leader() -> LeaderDecisions:
    one = LeaderDecisions(Fold(policy=POLICY))
    one.wait(5)
    return one


def opened(leader: LeaderDecisions, request_id: str = "", tenant: str = TENANT) -> PlanId:
    request = SchedulePlan(INGEST, tenant=tenant, request_id=request_id)
    effects = leader.put(wishes.entries(leader.fold.state, request, now=leader.now))
    told = wishes.answer(effects, leader.fold.state, request, now=leader.now)
    assert told.plan is not None, told.why
    return told.plan


def block(
    plan: PlanId,
    token: FencingToken,
    at: int,
    ordinal: int = 0,
    *,
    profiles: int = 3,
    kind: Kind = Kind.BLOCK,
    attempt: str = "ingest.a1",
    tenant: TenantId = TENANT,
) -> BlockMeta:
    """A block of a bulk write that was opened at this lease time."""
    pattern = msgspec.structs.replace(
        segment(1, at=at, shard=0), id=segment_id(lease_time_ns=at, entropy=0)
    )
    made = output(
        plan, token, (pattern,), profiles=profiles, level=INGESTED, ordinal=ordinal,
        kind=kind, attempt=attempt, tenant=tenant,
    )  # fmt: skip
    return msgspec.structs.replace(made, plan=plan)


def complete(
    leader: LeaderDecisions, plan: PlanId, outputs: tuple[BlockMeta, ...], account: Account
) -> Effect:
    lease = lease_held(leader, plan)
    result = PlanResult(INGEST, outputs, account)
    (effect,) = leader.report(lease, Report(plan, lease.token, result))
    return effect


def test_what_it_wrote_shows_in_one_entry_and_is_as_old_as_the_plan(
    leader: LeaderDecisions,
) -> None:
    plan = opened(leader)
    at = leader.plan(plan).scheduled_at
    leader.wait(3)
    token = begin(leader, plan)
    leased = reads.leased_plan(leader.fold.state, plan)
    assert (leased.inputs, leased.scheduled_at) == ((), at)
    made = [block(plan, token, at, ordinal) for ordinal in range(3)]
    bad = block(plan, token, at, 3, profiles=1, kind=Kind.QUARANTINE)
    done = complete(leader, plan, (*made, bad), Account(9, 4, 1))
    assert isinstance(done, Completed), done
    live = set(leader.fold.state.blocks.where)
    assert live == {meta.id for meta in (*made, bad)}
    assert {block_time_ns(each) for each in live} == {at}
    assert not any(each in leader.fold.state.queue.places for each in live), "none waits"
    words = " ".join(explain(leader.fold.state, made[0].id, now=leader.now).sentences)
    assert "a backfill wrote it" in words


@pytest.mark.parametrize(
    ("wrong", "account", "why"),
    [
        ({"level": 1}, Account(3, 0, 0), Refusal.OUTPUT),
        ({"shard": Shard(1)}, Account(3, 0, 0), Refusal.OUTPUT),
        ({"plan": PlanId(1, 0)}, Account(3, 0, 0), Refusal.OUTPUT),
        ({}, Account(2, 0, 0), Refusal.ACCOUNT),
        ({}, Account(3, -1, 0), Refusal.ACCOUNT),
        ({}, Account(3, 0, 1), Refusal.ACCOUNT),
    ],
)
def test_a_result_that_cannot_be_is_refused(
    leader: LeaderDecisions, wrong: dict[str, object], account: Account, why: Refusal
) -> None:
    plan = opened(leader)
    token = begin(leader, plan)
    made = block(plan, token, leader.plan(plan).scheduled_at)
    refused = complete(leader, plan, (msgspec.structs.replace(made, **wrong),), account)
    assert isinstance(refused, Refused)
    assert refused.why is why
    assert isinstance(complete(leader, plan, (made,), Account(3, 0, 0)), Completed)


@pytest.mark.parametrize("what", ["attempt", "tenant", "time"])
def test_a_block_with_keys_of_another_kind_or_owner_or_age_is_refused(
    leader: LeaderDecisions, what: str
) -> None:
    plan = opened(leader)
    token = begin(leader, plan)
    at = leader.plan(plan).scheduled_at
    made = {
        "attempt": block(plan, token, at, attempt="a1"),
        "tenant": block(plan, token, at, tenant=TenantId("other")),
        "time": block(plan, token, at + 1),
    }[what]
    refused = complete(leader, plan, (made,), Account(3, 0, 0))
    assert isinstance(refused, Refused)
    assert refused.why is Refusal.OUTPUT


def test_a_result_has_a_bound(leader: LeaderDecisions) -> None:
    plan = opened(leader)
    token = begin(leader, plan)
    at = leader.plan(plan).scheduled_at
    many = tuple(block(plan, token, at, n, profiles=1) for n in range(OUTPUTS_MAX + 1))
    refused = complete(leader, plan, many, Account(OUTPUTS_MAX + 1, 0, 0))
    assert isinstance(refused, Refused)
    assert refused.why is Refusal.OUTPUT


def test_no_other_kind_may_add_blocks_without_inputs(leader: LeaderDecisions) -> None:
    spec = PlanSpec(COMPACT, False, key_of(PlanScope(TENANT)), (), 2)
    (refused,) = leader.put([PlansScheduled((spec,))])
    assert isinstance(refused, Refused)


def test_it_owns_nothing_and_is_of_one_tenant(leader: LeaderDecisions) -> None:
    blocks = leader.add(1)
    for tenant, inputs in ((TENANT, tuple(blocks)), (TenantId(""), ())):
        spec = PlanSpec(INGEST, True, key_of(PlanScope(tenant)), inputs, 2)
        (refused,) = leader.put([PlansScheduled((spec,))])
        assert isinstance(refused, Refused), (tenant, inputs)
    request = SchedulePlan(INGEST)
    assert wishes.entries(leader.fold.state, request, now=leader.now) == []


def test_of_several_stores_it_is_written_to_the_first(leader: LeaderDecisions) -> None:
    stores = tuple(StoreSpec(StoreName(name)) for name in ("eu", "us"))
    leader.put([StoresSet(StoreSet(stores))])
    plan = opened(leader)
    assert leader.fold.state.plans[plan].key.store == "eu"


def test_no_worker_that_polls_is_given_one(leader: LeaderDecisions) -> None:
    plan = opened(leader)
    assert leader.hand_out(Wish(W1, 5)) == []
    assert INGEST not in KINDS.on_engine()
    assert execute(leader, plan).answer == "granted"


def test_the_same_files_are_the_same_plan_while_it_is_pending_and_others_are_not(
    leader: LeaderDecisions,
) -> None:
    plan = opened(leader, "files-1")
    assert opened(leader, "files-1") == plan
    assert opened(leader, "files-2") != plan
    assert opened(leader) != opened(leader), "without a request id each is its own"
    begin(leader, plan)
    assert opened(leader, "files-1") == plan
    complete(leader, plan, (), Account(0, 5, 0))
    assert opened(leader, "files-1") != plan, "its source is looked at anew"


def test_cleaning_rolls_it_back_as_soon_as_its_lease_has_expired(leader: LeaderDecisions) -> None:
    plan = opened(leader)
    begin(leader, plan)
    leader.wait(LEASE_S)
    assert why_skipped(leader, plan) == "live_lease"
    leader.fold.now += 1
    assert why_skipped(leader, plan) == "", "the delay of ten minutes is for other kinds"
    survey(leader)
    assert leader.plan(plan).state is PlanState.ROLLED_BACK
    assert execute(leader, plan).answer in ("must_be_rolled_back", "rolled_back")


def test_one_that_was_never_leased_is_left_to_whoever_opened_it_for_the_delay(
    leader: LeaderDecisions,
) -> None:
    plan = opened(leader)
    leader.fold.now += DELAY_S * SECOND_NS - 1
    assert why_skipped(leader, plan) == "too_young"
    leader.fold.now += 1
    assert why_skipped(leader, plan) == ""


def test_a_deletion_hides_what_was_opened_before_it_whenever_that_was_granted(
    leader: LeaderDecisions,
) -> None:
    plan = opened(leader)
    mask = Mask(TENANT, "checkout", 0, 1 << 62)
    leader.put([PredicateAdded(mask)])
    leader.wait(86_400)
    leader.put([RegistrationFloor(LeaseTime(leader.now - 3600 * SECOND_NS))])
    (predicate,) = leader.fold.state.predicates.values()
    assert "was opened before it" in deletion.why_unfinished(leader.fold.state, predicate)
    token = begin(leader, plan)
    assert "was opened before it" in deletion.why_unfinished(leader.fold.state, predicate)
    made = block(plan, token, leader.plan(plan).scheduled_at)
    assert isinstance(complete(leader, plan, (made,), Account(3, 0, 0)), Completed)
    assert deletion.applying(leader.fold.state, made) == (mask,)
    later = opened(leader)
    token = begin(leader, later)
    other = block(later, token, leader.plan(later).scheduled_at)
    assert isinstance(complete(leader, later, (other,), Account(3, 0, 0)), Completed)
    assert deletion.applying(leader.fold.state, other) == ()


# ── commit objects, and a log that is lost ─────────────────────────────────────────────────────


class Bulk:
    """A bulk write of two blocks, in a lake whose log can be lost."""

    def __init__(self) -> None:
        self.lake = Lives(POLICY)
        self.saved = self.lake.save()
        self.lake.fold.put(
            PlansScheduled((PlanSpec(INGEST, True, key_of(PlanScope(TENANT)), (), 2),))
        )
        (self.plan,) = self.lake.state.plans
        self.token = self.lake.lease(self.plan)
        at = self.lake.state.plans[self.plan].scheduled_at
        self.blocks = tuple(self._written(at, ordinal) for ordinal in range(2))

    def _written(self, at: LeaseTime, ordinal: int) -> BlockMeta:
        made = block(self.plan, self.token, at, ordinal, profiles=1)
        files = tuple(msgspec.structs.replace(file, size=SIZE) for file in made.files)
        start = DAY * DAY_NS + ordinal
        made = msgspec.structs.replace(
            made, files=files, size=SIZE * len(files), min_time_ns=start, max_time_ns=start
        )
        store = self.lake.store
        intent = keys.intent(plan=self.plan, token=self.token, attempt="ingest.a1", ordinal=ordinal)
        store.create(intent, "\n".join([*tables(made), manifest_key(made)]).encode())
        for key in tables(made):
            store.create(key, b"x" * SIZE)
        store.create(manifest_key(made), msgspec.msgpack.encode(made))
        self.lake.contents[tables(made)[0]] = frozenset({ordinal})
        return made

    def complete(self) -> None:
        result = PlanResult(INGEST, self.blocks, Account(2, 0, 0))
        (done,) = self.lake.fold.put(PlanCompleted(self.plan, self.token, result))
        assert isinstance(done, Completed), done

    def commit(self) -> None:
        """As the leader does when somebody reports the result."""
        report = Report(self.plan, self.token, PlanResult(INGEST, self.blocks, Account(2, 0, 0)))
        request = PollRequest(W1, 0, reports=(report,))
        reply = PollReply((), (), (Outcome(self.plan, self.token, True),))
        for each in committing.to_write(self.lake.state, request, reply):
            committing.write(self.lake.store, each)
            committing.write(self.lake.store, each)  # a report that is repeated

    def lost_and_adopted(self) -> set[int]:
        self.lake.lose(self.saved)
        self.lake.adopt()
        return self.lake.visible_profiles()


def test_after_a_lost_log_a_bulk_write_is_adopted_with_its_commit_object() -> None:
    bulk = Bulk()
    bulk.complete()
    bulk.commit()
    assert bulk.lost_and_adopted() == {0, 1}
    assert {meta.id for meta in bulk.lake.live()} == {meta.id for meta in bulk.blocks}


def test_half_a_bulk_write_is_never_adopted_and_is_swept_as_orphans() -> None:
    bulk = Bulk()
    bulk.commit()  # nothing: it is not completed
    assert bulk.lost_and_adopted() == set()
    bulk.lake.pass_time(POLICY.leftovers_ns + HOUR_NS)
    bulk.lake.clean()
    assert not list(bulk.lake.store.list(keys.LAKE))


def test_a_damaged_commit_object_stops_adoption_rather_than_halve_a_bulk_write() -> None:
    bulk = Bulk()
    bulk.complete()
    bulk.commit()
    store = bulk.lake.store
    (commit,) = store.list(keys.COMMITS)
    body = store.read(commit.key)
    store.delete(commit.key)
    store.create(commit.key, b"\xff" + body[1:])
    with pytest.raises(Corrupt, match=f"the commit object {commit.key} is not text"):
        bulk.lost_and_adopted()
    assert bulk.lake.visible_profiles() == set()


def test_of_two_copies_of_a_block_only_the_one_that_the_commit_names_is_adopted() -> None:
    """A task that Spark ran twice may have cut its share otherwise."""
    bulk = Bulk()
    bulk.lake.write_late(bulk.blocks[0], "ingest.a0")
    bulk.complete()
    bulk.commit()
    assert bulk.lost_and_adopted() == {0, 1}
    adopted = {key for meta in bulk.lake.live() for key in tables(meta)}
    assert adopted == {key for meta in bulk.blocks for key in tables(meta)}


def test_only_an_accepted_report_of_a_bulk_write_leaves_a_commit_object() -> None:
    bulk = Bulk()
    bulk.complete()
    report = Report(bulk.plan, bulk.token, PlanResult(INGEST, bulk.blocks, Account(2, 0, 0)))
    request = PollRequest(W1, 0, reports=(report,))
    refused = PollReply((), (), (Outcome(bulk.plan, bulk.token, False, "no"),))
    assert committing.to_write(bulk.lake.state, request, refused) == []
    assert not list(bulk.lake.store.list(keys.COMMITS))


def gone(bulk: Bulk, meta: BlockMeta) -> None:
    """A block is out of the index, and all of its time has passed."""
    bulk.lake.fold.put(BlocksLost((meta.id,), "a test"))
    assert meta.id in bulk.lake.state.retired
    bulk.lake.clean()
    assert commits(bulk), "its objects are there, until readers have let go of them"
    bulk.lake.pass_time(POLICY.leftovers_ns + HOUR_NS)
    bulk.lake.clean()


def commits(bulk: Bulk) -> list[str]:
    return [info.key for info in bulk.lake.store.list(keys.COMMITS)]


def test_a_commit_object_goes_with_the_last_block_that_it_names() -> None:
    bulk = Bulk()
    bulk.complete()
    bulk.commit()
    bulk.lake.pass_time(POLICY.leftovers_ns + HOUR_NS)
    bulk.lake.clean()
    assert commits(bulk), "all of its blocks are live"
    gone(bulk, bulk.blocks[0])
    assert commits(bulk), "a lost log would need it for the other one"
    assert bulk.lost_and_adopted() == {1}
    bulk.lake.pass_time(POLICY.leftovers_ns + HOUR_NS)
    gone(bulk, bulk.blocks[1])
    assert not commits(bulk)
    assert not list(bulk.lake.store.list(keys.LAKE))


@pytest.mark.parametrize("wrong", ["an object is there", "damaged", "a stranger's", "unparsed"])
def test_a_commit_object_in_doubt_stays(wrong: str) -> None:
    bulk = Bulk()
    bulk.complete()
    bulk.commit()
    store, (key,) = bulk.lake.store, commits(bulk)
    body = store.read(key)
    for meta in bulk.blocks:
        bulk.lake.fold.put(BlocksLost((meta.id,), "a test"))
    bulk.lake.pass_time(POLICY.leftovers_ns + HOUR_NS)
    if wrong != "an object is there":
        store.delete(key)
    match wrong:
        case "an object is there":  # that the index does not know
            put_back = bulk.blocks[1]
            bulk.lake.clean()
            bulk.commit()
            store.create(manifest_key(put_back), b"somebody restored it")
        case "damaged":
            store.create(key, b"\xff" + body[1:])
        case "a stranger's":
            store.create(key, b"lake/v1/manifests/of/somebody")
        case _:
            store.create(key := f"{keys.COMMITS}notes.txt", body)
    bulk.lake.clean()
    assert commits(bulk) == [key]


def test_a_commit_object_stays_while_the_index_has_a_block_whose_objects_may_be_restored() -> None:
    bulk = Bulk()
    bulk.complete()
    bulk.commit()
    for meta in bulk.blocks:
        bulk.lake.store.delete(manifest_key(meta))
    bulk.lake.fold.put(BlocksLost((bulk.blocks[0].id,), "a test"))
    bulk.lake.pass_time(POLICY.leftovers_ns + HOUR_NS)
    bulk.lake.clean()
    assert commits(bulk)
