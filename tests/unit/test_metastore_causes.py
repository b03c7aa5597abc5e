"""Why a block left the index is recorded, and nothing goes that was replaced by nothing (S1)."""

from __future__ import annotations

import msgspec
import pytest

from maar.metastore.fold.deleting import retirement
from maar.metastore.leader.deleting import removals
from maar.metastore.records.entries import BlocksExpired, BlocksLost
from maar.metastore.state import snapshot_parts, snapshot_records
from maar.metastore.state.digest import digest
from maar.metastore.state.retired import Cause
from maar.metastore.views.explain import explain
from maar.model.block import BlockMeta
from maar.model.time import DAY_NS
from support.clock.virtual_time import run_virtually
from support.lake.fold_and_store import Lake, bare_deleter
from support.metastore.fold import DAY_START_NS, SMALL


def expire(world: Lake, meta: BlockMeta) -> None:
    world.fold.put(BlocksExpired(DAY_START_NS + DAY_NS, (meta.id,)))


def test_what_took_a_block_is_recorded_with_it() -> None:
    world = Lake()
    merged, old = world.add(1, 2)
    world.merge([merged])
    expire(world, old)
    assert world.state.retired[merged.id].cause is Cause.REPLACED
    assert world.state.retired[old.id].cause is Cause.EXPIRED


def test_states_that_differ_in_a_cause_have_different_hashes() -> None:
    world = Lake()
    (meta,) = world.add(1)
    expire(world, meta)
    before = digest(world.state)
    retired = world.state.retired[meta.id]
    world.state.retired[meta.id] = msgspec.structs.replace(retired, cause=Cause.LOST)
    assert digest(world.state) != before


def test_causes_come_back_from_a_snapshot() -> None:
    world = Lake()
    (meta,) = world.add(1)
    expire(world, meta)
    encoded = [msgspec.msgpack.encode(part) for part in snapshot_parts.parts_of(world.state)]
    decoder = msgspec.msgpack.Decoder(snapshot_records.Part)
    again = snapshot_parts.state_of(map(decoder.decode, encoded))
    assert again.retired[meta.id].cause is Cause.EXPIRED
    assert digest(again) == digest(world.state)


@pytest.mark.parametrize("cause", [Cause.EXPIRED, Cause.LOST])
def test_what_nothing_had_to_replace_goes_after_its_time(cause: Cause) -> None:
    world = Lake()
    (meta,) = world.add(1)
    expire(world, meta)
    retired = world.state.retired[meta.id]
    world.state.retired[meta.id] = msgspec.structs.replace(retired, cause=cause)
    (removal,) = due(world)
    assert removals.carry_out(bare_deleter(world.store), removal) == ""
    assert world.objects("segments/") == set()


def due(world: Lake) -> list[removals.Removal]:
    world.pass_time(SMALL.expired_delay_ns + 1)
    return removals.due(world.state, now=world.now(), limit=10)


def test_what_was_replaced_by_nothing_stays_and_says_so() -> None:
    world = Lake()
    (meta,) = world.add(1)
    expire(world, meta)
    retired = world.state.retired[meta.id]
    world.state.retired[meta.id] = msgspec.structs.replace(retired, cause=Cause.REPLACED)
    (removal,) = due(world)
    assert "wrote no output" in removals.carry_out(bare_deleter(world.store), removal)
    assert len(world.objects("segments/")) == 1
    told = explain(world.state, meta.id, now=world.now()).sentences
    assert any("cannot be deleted" in sentence for sentence in told)


def test_what_was_replaced_stays_when_its_successor_is_not_known_any_more() -> None:
    world = Lake()
    (meta,) = world.add(1)
    made = world.merge([meta])
    world.state.blocks.remove(made.id)  # no entry does this
    (removal,) = due(world)
    assert f"{made.id}, which replaces it, is not known" in removals.carry_out(
        bare_deleter(world.store), removal
    )
    assert len(world.objects("segments/")) == 1


@pytest.mark.parametrize("known", [True, False])
def test_sources_stay_where_what_replaced_them_is_lost_and_nobody_knows_what_became_of_it(
    known: bool,
) -> None:
    world = Lake()
    (meta,) = world.add(1)
    made = world.merge([meta])
    again = world.merge([made])
    world.state.blocks.remove(again.id)  # no entry does this
    if known:
        nothing = msgspec.structs.replace(world.state.retired[made.id], outputs=())
        world.state.retired[made.id] = nothing
    for file in made.files:
        world.store.delete(file.locations[0].key)
    (removal,) = due(world)
    assert "is missing" in removals.carry_out(bare_deleter(world.store), removal)
    assert len(world.objects("segments/")) == 1


@pytest.mark.parametrize("merged_before", [True, False])
def test_what_did_not_come_back_for_a_block_that_was_given_up_stays(merged_before: bool) -> None:
    """It may be all that is left: only what the lost block itself was made of comes back, and only
    when it was whole at that time.
    """
    world = Lake()
    (meta,) = world.add(1)
    made = lost = world.merge([meta])
    if merged_before:
        lost = world.merge([made])
    for file in (*made.files, *lost.files):
        world.store.delete(file.locations[0].key)
    world.fold.put(BlocksLost((lost.id,), "its objects are gone"))
    (removal,) = due(world)
    assert "is missing" in removals.carry_out(bare_deleter(world.store), removal)
    assert len(world.objects("segments/")) == 1


def test_what_nothing_is_left_of_is_forgotten_though_its_successor_is_not_known() -> None:
    """After a restore: block and successor were merged on, and are gone from the store."""
    world = Lake()
    (meta,) = world.add(1)
    made = world.merge([meta])
    world.state.blocks.remove(made.id)
    world.store.delete(meta.files[0].locations[0].key)
    (removal,) = due(world)
    assert removals.carry_out(bare_deleter(world.store), removal) == ""


def test_what_replaced_a_block_stays_while_that_block_has_to() -> None:
    """Else nobody could say any more what became of it, and it would stay for ever."""
    world = Lake()
    (meta,) = world.add(1)
    made = world.merge([meta])
    expire(world, made)
    world.pass_time(SMALL.expired_delay_ns + 1)
    resting = {meta.id}
    assert retirement.due(world.state, now=world.now(), limit=10, resting=resting) == [made.id]
    assert removals.due(world.state, now=world.now(), limit=10, resting=resting) == []


def test_what_expired_does_not_go_before_what_it_replaced_however_short_its_own_time_is() -> None:
    world = Lake(msgspec.structs.replace(SMALL, expired_delay_ns=0))
    (meta,) = world.add(1)
    made = world.merge([meta])
    expire(world, made)
    for _ in range(2):
        run_virtually(world.cleaner.remove())
        assert set(world.state.retired) == {meta.id, made.id}
        world.pass_time(SMALL.retire_delay_ns // 2)
    world.pass_time(1)
    while run_virtually(world.cleaner.remove()):
        pass
    assert world.cleaner.blocked == ()
    assert world.objects() == set()


def test_what_expired_stays_for_the_delay_of_its_own() -> None:
    world = Lake()
    (meta,) = world.add(1)
    expire(world, meta)
    assert SMALL.expired_delay_ns > SMALL.retire_delay_ns
    world.pass_time(SMALL.expired_delay_ns)
    assert retirement.due(world.state, now=world.now(), limit=10) == []
    world.pass_time(1)
    assert retirement.due(world.state, now=world.now(), limit=10) == [meta.id]


def test_an_operator_is_told_why_a_block_left() -> None:
    world = Lake()
    (meta,) = world.add(1)
    expire(world, meta)
    retired = world.state.retired[meta.id]
    sentences = {}
    for cause in (Cause.EXPIRED, Cause.LOST):
        world.state.retired[meta.id] = msgspec.structs.replace(retired, cause=cause)
        told = explain(world.state, meta.id, now=world.now())
        sentences[cause] = told.sentences[0]
    assert "Retention took it" in sentences[Cause.EXPIRED]
    assert "gave it up as lost" in sentences[Cause.LOST]
