"""A lost block is given up by a person: it leaves, its plan ends, and what it replaced returns."""

from __future__ import annotations

import pytest

from maar.block.read.damage import damages
from maar.metastore.fold.deleting import losing
from maar.metastore.leader.deleting import removals
from maar.metastore.records.effects import Cancelled, Lost, Refused
from maar.metastore.records.entries import BlocksLost, Reincarnated
from maar.metastore.state.retired import Cause
from maar.metastore.views.explain import explain
from maar.model.block import BlockMeta, Damage
from maar.model.errors import NotFound, Rejected
from maar.model.ids import BlockId, Incarnation
from maar.model.refusal import Refusal
from support.lake.fold_and_store import Lake, bare_deleter
from support.metastore.fold import SMALL, segment


def lose(world: Lake, meta: BlockMeta, *returning: BlockId) -> tuple[object, ...]:
    return world.fold.put(BlocksLost((meta.id,), "its object is gone", returning))


def test_a_lost_block_leaves_the_index_with_its_cause_and_is_counted() -> None:
    world = Lake()
    lost, kept = world.add(1, 2)
    assert lose(world, lost) == (Lost(lost.id, lost.profiles, "its object is gone"),)
    assert world.fold.live() == {kept.id}
    assert world.state.retired[lost.id].cause is Cause.LOST
    assert (world.state.tally.blocks_lost, world.state.tally.profiles_lost) == (1, 10)
    assert "gave it up as lost" in explain(world.state, lost.id, now=world.now()).sentences[0]


def test_its_plan_is_cancelled_and_the_other_inputs_are_free_again() -> None:
    world = Lake()
    lost, other = world.add(1, 2)
    plan = world.schedule([lost, other])
    world.lease(plan)
    assert Cancelled(plan) in lose(world, lost)
    assert world.state.owners == {}
    assert other.id in world.state.queue.places
    assert lost.id not in world.state.queue.places


def test_what_is_left_of_it_is_deleted_after_the_delay() -> None:
    world = Lake()
    (lost,) = world.add(1)
    lose(world, lost)
    world.pass_time(SMALL.retire_delay_ns + 1)
    (removal,) = removals.due(world.state, now=world.now(), limit=10)
    assert removals.carry_out(bare_deleter(world.store), removal) == ""
    assert world.objects("segments/") == set()


def test_what_it_replaced_and_is_still_there_comes_back_instead() -> None:
    world = Lake()
    sources = world.add(1, 2)
    made = world.merge(sources)
    assert [meta.id for meta in losing.sources(world.state, made.id)] == [m.id for m in sources]
    lose(world, made, *(meta.id for meta in sources))
    assert world.fold.live() == {meta.id for meta in sources}
    assert set(world.state.retired) == {made.id}
    assert all(meta.id in world.state.queue.places for meta in sources)


def test_nothing_else_can_be_brought_back_by_it() -> None:
    world = Lake()
    merged, lost = world.add(1, 2)
    made = world.merge([merged])
    lose(world, lost, merged.id)
    assert world.fold.live() == {made.id}


def test_a_block_that_is_not_live_is_refused() -> None:
    world = Lake()
    assert lose(world, segment(7)) == (Refused(Refusal.INPUT_GONE, what=segment(7).id),)
    with pytest.raises(NotFound):
        losing.order(world.state, segment(7).id, note="", returning=())


def test_nothing_is_given_up_while_the_store_is_looked_through() -> None:
    world = Lake()
    (meta,) = world.add(1)
    world.fold.put(Reincarnated(Incarnation("0badcaff"), ()))
    assert lose(world, meta) == (Refused(Refusal.ADOPTING),)
    with pytest.raises(Rejected, match="adoption"):
        losing.order(world.state, meta.id, note="", returning=())


def test_every_way_in_which_an_object_can_be_damaged_is_told() -> None:
    world = Lake()
    gone, short, other = world.add(1, 2, 3)
    keys = [meta.files[0].locations[0].key for meta in (gone, short, other)]
    world.store.delete(keys[0])
    world.store.delete(keys[1])
    world.store.create(keys[1], b"short")
    assert list(damages(world.store, gone)) == [Damage(gone.id, keys[0], "is missing")]
    (cut,) = damages(world.store, short)
    assert cut.what == "has 5 bytes, and 1,000 were written"
    (changed,) = damages(world.store, other)  # the test's objects have no true checksums
    assert "checksum differs" in changed.what
    assert list(damages(world.store, other, bytes_max=10)) == []
    assert str(changed).startswith(f"object {keys[2]} of block {other.id} has other bytes")
