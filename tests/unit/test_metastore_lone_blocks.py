"""A plan of one block adopts it: the block goes on at the next level, and nothing is written."""

from __future__ import annotations

import msgspec
import pytest

from maar.metastore.records.effects import Completed, Leased, Refused, Scheduled
from maar.metastore.records.entries import (
    BlocksAdded,
    Grant,
    PlanCompleted,
    PlansLeased,
    PlansScheduled,
    PredicateAdded,
)
from maar.metastore.views import reads
from maar.model.ids import BlockId, FencingToken, PlanId, WorkerId
from maar.model.plan import Account, PlanResult, PlanSpec
from maar.model.predicate import EVER_NS, Mask
from maar.model.refusal import Refusal
from maar.model.time import SECOND_NS, LeaseTime
from maar.services import runs
from maar.services.compact.rules import COMPACT
from support.metastore.fold import Fold, result, segment


def granted(fold: Fold, blocks: tuple[BlockId, ...]) -> tuple[PlanId, FencingToken]:
    key = fold.state.queue.places[blocks[0]].key
    (scheduled,) = fold.put(PlansScheduled((PlanSpec(COMPACT, False, key, blocks, 2),)))
    assert isinstance(scheduled, Scheduled)
    expires_at = LeaseTime(fold.now + 15 * SECOND_NS)
    leased = fold.put(PlansLeased((Grant(scheduled.plan, WorkerId("w1"), expires_at, None),)))[-1]
    assert isinstance(leased, Leased)
    return scheduled.plan, leased.token


def block_of_level_1(fold: Fold, first: int = 0) -> BlockId:
    metas = tuple(segment(first + n) for n in range(2))
    fold.put(BlocksAdded(metas))
    plan, token = granted(fold, tuple(meta.id for meta in metas))
    made = result(plan, token, fold.metas(fold.state.plans[plan].inputs))
    fold.put(PlanCompleted(plan, token, made))
    return made.outputs[0].id


def adopted(fold: Fold, plan: PlanId) -> PlanResult:
    """What a worker answers that asks its kind."""
    leased = reads.leased_plan(fold.state, plan)
    assert runs.cut(leased) == ()
    return runs.join(leased, [])


def test_a_lone_block_goes_on_at_the_next_level_as_it_is() -> None:
    fold = Fold()
    block = block_of_level_1(fold)
    retired = set(fold.state.retired)
    before = fold.state.blocks.get(block)
    for level in (2, 3):
        plan, token = granted(fold, (block,))
        entry = PlanCompleted(plan, token, adopted(fold, plan))
        assert fold.put(entry) == (Completed(plan, token, (), (block,)),)
        assert fold.put(entry) == (Completed(plan, token),), "a repeated report changes nothing"
        assert fold.state.blocks.get(block) == msgspec.structs.replace(before, level=level)
        assert set(fold.state.retired) == retired
        assert fold.state.owners == {}
        if level == 2:
            assert fold.state.queue.places[block].key.level == 2
    assert block not in fold.state.queue, "it is finished at the top"


def test_what_must_be_decoded_or_merged_is_not_adopted() -> None:
    fold = Fold()
    whole = PlanResult(COMPACT, (), Account(0, 0, 0), adopted=True)
    fresh = segment(50)
    fold.put(BlocksAdded((fresh,)))
    plan, token = granted(fold, (fresh.id,))
    raw = msgspec.structs.replace(whole, account=Account(fresh.profiles, 0, 0))
    assert fold.put(PlanCompleted(plan, token, raw)) == (Refused(Refusal.OUTPUT, plan, token),)

    pair = (block_of_level_1(fold), block_of_level_1(fold, first=10))
    plan, token = granted(fold, pair)
    profiles = sum(fold.state.blocks.get(block).profiles for block in pair)
    both = msgspec.structs.replace(whole, account=Account(profiles, 0, 0))
    assert fold.put(PlanCompleted(plan, token, both)) == (Refused(Refusal.OUTPUT, plan, token),)


@pytest.mark.parametrize("lost", [Account(1, 0, 0), Account(1, 1, 0), Account(0, 0, 0)])
def test_an_adopted_block_keeps_all_its_profiles(lost: Account) -> None:
    fold = Fold()
    block = block_of_level_1(fold)
    plan, token = granted(fold, (block,))
    short = msgspec.structs.replace(adopted(fold, plan), account=lost)
    assert short.account != Account(fold.state.blocks.get(block).profiles, 0, 0)
    assert fold.put(PlanCompleted(plan, token, short)) == (Refused(Refusal.ACCOUNT, plan, token),)


def test_a_block_of_which_something_is_to_be_deleted_is_written_anew() -> None:
    fold = Fold()
    block = block_of_level_1(fold)
    dataset = fold.state.blocks.get(block).datasets[0]
    fold.put(PredicateAdded(Mask(dataset.tenant, dataset.service, 0, EVER_NS)))
    plan, token = granted(fold, (block,))
    leased = reads.leased_plan(fold.state, plan)
    assert leased.masks_of(0)
    assert runs.cut(leased) == (leased,)
    as_it_is = PlanResult(
        COMPACT, (), Account(fold.state.blocks.get(block).profiles, 0, 0), adopted=True
    )
    assert fold.put(PlanCompleted(plan, token, as_it_is)) == (Refused(Refusal.HIDDEN, plan, token),)
