"""A deletion applies to blocks from before it, whoever copied them since (S8)."""

from __future__ import annotations

from collections.abc import Callable

import msgspec
import pytest

from maar.block.format.segment import segment_meta, write_segment
from maar.block.read.reread import reread
from maar.metastore.decide import repairs
from maar.metastore.decide import stores as decisions
from maar.metastore.fold.deleting import deletion
from maar.metastore.records.effects import Refused, Registered
from maar.metastore.records.entries import (
    BlocksAdded,
    CopiesEnded,
    PlanCompleted,
    PredicateAdded,
    StoreLeaves,
    StoresSet,
)
from maar.model import keys
from maar.model.block import BlockMeta, Kind
from maar.model.ids import MAIN_STORE, FencingToken, Incarnation, PlanId, Shard
from maar.model.plan import Account, PlanResult
from maar.model.predicate import EVER_NS, Mask, since
from maar.model.refusal import Refusal
from maar.model.repair import RangeResult
from maar.model.stores import keys_at, stores_of
from maar.ports.plans.board import CommitPart
from maar.services.compact.rules import COMPACT
from support.lake.several_stores import SeveralStores
from support.metastore.copies import EU, MAIN, Repairing, stores
from support.metastore.fold import TENANT, segment
from support.segment.writer_in_memory import raw_profile


class Deleting(SeveralStores):
    """A block, and a deletion of all that it holds; then a repair is granted."""

    def __init__(self) -> None:
        super().__init__()
        self.fold.put(StoresSet(stores(EU)))
        self.one = self.block(1)
        dataset = self.one.datasets[0]
        self.mask = Mask(dataset.tenant, dataset.service, 0, EVER_NS)
        self.fold.put(PredicateAdded(self.mask))
        self.repair = Repairing(self.fold)

    def commit(self, result: RangeResult) -> None:
        request = CommitPart(self.repair.plan, self.repair.token, result)
        for entry in repairs.commit_entries(self.state, request, now=self.now()):
            effects = self.fold.put(entry)
            assert not [each for each in effects if isinstance(each, Refused)]


def drain(lake: Deleting) -> None:
    lake.fold.put(StoreLeaves(MAIN))
    (entry,) = decisions.drain_entries(lake.state, MAIN, [lake.one.id])
    lake.fold.put(entry)


def give_up(lake: Deleting) -> None:
    lake.fold.put(CopiesEnded(MAIN, (lake.one.id,), gone=True, why="the store is lost"))


@pytest.mark.parametrize("end_home", [drain, give_up])
def test_it_applies_where_only_a_copy_from_after_it_is_left(
    end_home: Callable[[Deleting], None],
) -> None:
    lake = Deleting()
    lake.copy(lake.one.id, EU)
    end_home(lake)
    left = lake.now_of(lake.one.id)
    assert stores_of(left) == (EU,)
    assert keys.since(keys_at(left, EU)[0]) > max(lake.state.predicates)
    assert deletion.applying(lake.state, left) == (lake.mask,)


def test_it_applies_where_a_repair_made_the_home_copy_anew() -> None:
    lake = Deleting()
    lake.copy(lake.one.id, EU)
    found = lake.repair.entry((lake.one.id, MAIN), ended=((lake.one.id, MAIN),), attempt="r9")
    lake.commit(RangeResult(copies=found.copies, ended=found.ended, checked=2))
    healed = lake.now_of(lake.one.id)
    assert stores_of(healed) == (EU, MAIN)
    assert not set(keys_at(healed, MAIN)) & set(keys_at(lake.one, MAIN))
    assert deletion.applying(lake.state, healed) == (lake.mask,)


def test_it_leaves_what_was_written_after_it_alone_wherever_its_copies_are() -> None:
    lake = Deleting()
    lake.one = lake.block(4)
    lake.repair = Repairing(lake.fold)
    lake.copy(lake.one.id, EU)
    give_up(lake)
    assert deletion.applying(lake.state, lake.now_of(lake.one.id)) == ()


def test_a_block_that_says_another_entry_than_its_keys_is_refused() -> None:
    """As younger than it is, it would escape; as older, it would be taken for what is to go."""
    lake = SeveralStores()
    plan = lake.schedule(lake.add(1, 2, 3))
    token = lake.lease(plan)
    made = lake.write(plan, token)
    for wrong in (token.index - 1, token.index + 1, 1 << 60):
        forged = msgspec.structs.replace(made, since=wrong)
        result = PlanResult(COMPACT, (forged,), Account(made.profiles, 0, 0))
        (effect,) = lake.fold.put(PlanCompleted(plan, token, result))
        assert isinstance(effect, Refused)
        assert effect.why is Refusal.OUTPUT_KEY
    right = msgspec.structs.replace(made, since=token.index)
    result = PlanResult(COMPACT, (right,), Account(made.profiles, 0, 0))
    lake.fold.put(PlanCompleted(plan, token, result))
    assert made.id in lake.state.blocks


def test_a_writer_cannot_register_a_segment_as_the_work_of_a_plan() -> None:
    """It counts by its registration: a number of its own would hide it from deletions."""
    lake = SeveralStores()
    forged = msgspec.structs.replace(segment(1, at=lake.fold.now), since=1 << 60)
    (effect,) = lake.fold.put(BlocksAdded((forged,)))
    assert isinstance(effect, Registered)
    assert effect.refusal
    assert forged.id not in lake.state.blocks


def test_a_quarantine_file_says_itself_how_old_it_is() -> None:
    """It has no manifest, and a copy of it has the key of a repair."""
    plan, incarnation = PlanId(7, 0), Incarnation("abc123")
    written = write_segment([raw_profile(1, tenant=TENANT)], causes=["broken"], since=9)
    copied_by = FencingToken(incarnation, 40)
    profile = written.datasets[0]
    block = SeveralStores().block(1).id
    stem = keys.stem(block=block, plan=plan, token=copied_by, attempt="r1")
    meta: BlockMeta = segment_meta(
        reread(written.body),
        block=block,
        key=keys.quarantine(tenant=profile.tenant, stem=stem),
        shard=Shard(0),
        store=MAIN_STORE,
        created_by="adoption",
        created_at_ns=0,
        kind=Kind.QUARANTINE,
        tenant=profile.tenant,
    )
    assert since(meta) == 9
