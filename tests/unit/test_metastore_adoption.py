"""What the leader of a restored log finds in the store is adopted, told or left alone."""

from __future__ import annotations

from typing import cast

import msgspec
import pytest

from maar.block.format.segment import write_segment
from maar.block.read.reread import reread
from maar.metastore.leader.stores.adoption import Adoption
from maar.metastore.records.effects import Completed, Refused
from maar.metastore.records.entries import PlanCompleted, RegistrationFloor
from maar.model import keys
from maar.model.block import TABLES, Kind
from maar.model.errors import NotFound
from maar.model.ids import BlockId, Incarnation, PlanId, Zone
from maar.model.plan import Account, PlanResult
from maar.model.policy import HOUR_NS, MINUTE_NS
from maar.model.time import LeaseTime
from maar.ports.stores.object_store import ObjectStore
from maar.services.compact.rules import COMPACT
from support.lake.lost_log import Lives, manifest_key, tables
from support.metastore.fold import INCARNATION, SMALL
from support.segment.writer_in_memory import raw_profile
from support.stores.memory_store import MemoryStore

OTHER = Incarnation("feedbeef")


def test_a_segment_is_read_back_as_it_was_written() -> None:
    profiles = [
        raw_profile(n, tenant=tenant, service=service, size=n)
        for n, (tenant, service) in enumerate(
            [("b", "x"), ("a", "x"), ("a", "y"), ("a", "x"), ("b", "x")]
        )
    ]
    written = write_segment(profiles)
    assert written.zone == ""  # as segments were before they knew it
    for again in (written, write_segment(profiles, zone=Zone("eu-west-1a"))):
        assert reread(again.body) == again


def test_a_segment_of_many_row_groups_is_read_back_as_it_was_written() -> None:
    profiles = [raw_profile(n, size=60) for n in range(9)]
    kinds = [msgspec.structs.replace(each, types=(f"type{n}",)) for n, each in enumerate(profiles)]
    written = write_segment(kinds, row_group_bytes=100)
    assert written.datasets[0].row_group_count > 1
    assert reread(written.body) == written


def test_segments_that_came_after_the_snapshot_are_adopted_as_they_were_registered() -> None:
    lake = Lives()
    lake.push(1)
    saved = lake.save()
    later = lake.push(2, 3)
    lake.lose(saved)
    assert lake.visible_profiles() == {1}
    lake.adopt()
    assert lake.visible_profiles() == {1, 2, 3}
    assert not lake.state.adopting
    found = lake.state.blocks.get(later.id)
    same = msgspec.structs.replace(
        found, created_by=later.created_by, created_at_ns=later.created_at_ns
    )
    assert same == later


def test_a_plan_that_was_completed_after_the_snapshot_loses_nothing() -> None:
    """Its inputs are live in the snapshot and deleted in the store."""
    lake = Lives()
    inputs = [lake.push(1), lake.push(2)]
    plan = lake.schedule(inputs)
    token = lake.lease(plan)
    saved = lake.save()
    made = lake.write(plan, token)
    lake.complete(plan, token, made)
    lake.pass_time(HOUR_NS)
    lake.clean()
    with pytest.raises(NotFound):
        lake.store.size(tables(inputs[0])[0])
    lake.lose(saved)
    lake.adopt()
    assert {meta.id for meta in lake.live()} == {made.id}
    assert lake.visible_profiles() == {1, 2}
    assert lake.state.tally.blocks_missed == 2
    (answer,) = lake.complete_as(plan, token, made)
    assert isinstance(answer, Refused)


def test_a_lone_block_that_had_risen_is_adopted_as_it_was_written_and_rises_again() -> None:
    """Its manifest knows nothing of its rise, which wrote nothing. No profile depends on a level:
    it costs a plan of no work once more.
    """
    lake = Lives()
    saved = lake.save()
    made = lake.merge([lake.push(1), lake.push(2)])
    lake.pass_time(HOUR_NS)
    lake.clean()

    def rise() -> None:
        plan = lake.schedule(lake.live())
        token = lake.lease(plan)
        done = PlanResult(COMPACT, (), Account(made.profiles, 0, 0), adopted=True)
        (effect,) = lake.fold.put(PlanCompleted(plan, token, done))
        assert isinstance(effect, Completed)
        (block,) = lake.live()
        assert (block.id, block.level) == (made.id, 2)

    rise()
    lake.lose(saved)
    lake.adopt()
    (found,) = lake.live()
    assert (found.id, found.level) == (made.id, 1)
    assert lake.visible_profiles() == {1, 2}
    rise()
    assert lake.visible_profiles() == {1, 2}


def test_inputs_that_are_still_there_and_their_output_are_both_adopted() -> None:
    lake = Lives()
    saved = lake.save()
    inputs = [lake.push(1), lake.push(2)]
    made = lake.merge(inputs)
    lake.lose(saved)
    lake.adopt()
    assert {meta.id for meta in lake.live()} == {made.id, *(meta.id for meta in inputs)}
    assert lake.visible_profiles() == {1, 2}


def test_an_output_without_all_its_files_is_not_adopted() -> None:
    lake = Lives()
    saved = lake.save()
    inputs = [lake.push(1), lake.push(2)]
    plan = lake.schedule(inputs)
    made = lake.write(plan, lake.lease(plan))
    lake.store.delete(tables(made)[3])
    lake.lose(saved)
    lake.adopt()
    assert {meta.id for meta in lake.live()} == {meta.id for meta in inputs}


def test_an_output_with_a_file_of_another_size_is_not_adopted() -> None:
    lake = Lives()
    saved = lake.save()
    inputs = [lake.push(1)]
    made = lake.merge(inputs)
    key = tables(made)[0]
    lake.store.delete(key)
    lake.store.create(key, b"short")
    lake.lose(saved)
    lake.adopt()
    assert {meta.id for meta in lake.live()} == {inputs[0].id}


@pytest.mark.parametrize("first_token", [8, 9])
def test_of_two_attempts_at_a_block_the_last_one_is_adopted(first_token: int) -> None:
    """The first one was fenced, and may have made other blocks of the same ids."""
    lake = Lives()
    saved = lake.save()
    while lake.state.index < first_token - 2:
        lake.push(lake.state.index)
    inputs = lake.live()
    plan = lake.schedule(inputs)
    first = lake.lease(plan)
    lake.write(plan, first, "a1")
    lake.pass_time(HOUR_NS)
    second = lake.lease(plan, replaces=first)
    assert (first.index, second.index) == (first_token, first_token + 1)  # 9 and 10 by number
    made = lake.write(plan, second, "a2")
    lake.lose(saved)
    lake.adopt()
    (found,) = (meta for meta in lake.live() if meta.id == made.id)
    assert found == made


def test_a_damaged_later_attempt_does_not_hide_a_whole_one() -> None:
    lake = Lives()
    saved = lake.save()
    inputs = [lake.push(1)]
    plan = lake.schedule(inputs)
    first = lake.lease(plan)
    made = lake.write(plan, first, "a1")
    lake.pass_time(HOUR_NS)
    late = lake.make_output(plan, lake.lease(plan, replaces=first), "a2")
    lake.store.create(manifest_key(late), b"\xc1 not a manifest")
    lake.lose(saved)
    lake.adopt()
    assert made in lake.live()


def test_objects_of_another_log_in_the_same_store_are_left_alone() -> None:
    store = MemoryStore()
    ours, theirs = Lives(store=store), Lives(store=store)
    theirs.fold.state.incarnation = OTHER
    saved = ours.save()
    theirs.entropy = 1000
    theirs.merge([theirs.push(7)])
    ours.push(1)
    ours.lose(saved)
    ours.adopt()
    assert ours.visible_profiles() == {1}
    ours.lose(saved, adopts=[OTHER])
    ours.contents |= theirs.contents
    ours.adopt()
    assert ours.visible_profiles() == {1, 7}


def test_what_is_no_segment_and_no_manifest_is_told_and_stays() -> None:
    lake = Lives()
    saved = lake.save()
    good = lake.push(1)
    bad = BlockId(f"{good.id[:-2]}ff")
    key = keys.segment(shard=good.shard, block=bad, incarnation=INCARNATION)
    lake.store.create(key, b"no parquet")
    made = lake.merge([good])
    forged = msgspec.structs.replace(made, files=good.files)  # it names the files of another block
    lake.store.delete(manifest_key(made))
    lake.store.create(manifest_key(made), msgspec.msgpack.encode(forged))
    lake.lose(saved)
    lake.adopt()
    assert {meta.id for meta in lake.live()} == {good.id}
    assert [key in sentence for sentence in lake.adoption.blocked] == [True, False]
    assert "does not name the files of its own block" in lake.adoption.blocked[1]
    assert lake.store.size(key)
    assert not lake.state.adopting


@pytest.mark.parametrize("table", TABLES)
def test_a_manifest_that_names_files_of_others_is_not_adopted(table: str) -> None:
    lake = Lives()
    saved = lake.save()
    one, two = lake.merge([lake.push(1)]), lake.merge([lake.push(2)])
    files = tuple(two.file(table) if file.table == table else file for file in one.files)
    lake.store.delete(manifest_key(one))
    forged = msgspec.structs.replace(one, files=files)
    lake.store.create(manifest_key(one), msgspec.msgpack.encode(forged))
    lake.lose(saved)
    lake.adopt()
    assert one.id not in lake.state.blocks
    assert two.id in lake.state.blocks


def test_profiles_in_quarantine_are_adopted_with_the_place_that_their_siblings_have() -> None:
    lake = Lives()
    saved = lake.save()
    plan = lake.schedule([lake.push(1), lake.push(2)])
    token = lake.lease(plan)
    lake.write(plan, token)
    held = write_segment([raw_profile(2, tenant="acme")], causes=["cannot be decoded"])
    other = PlanId(77, 0)
    stems = {
        place: keys.stem(block=block, plan=place, token=token, attempt="a1")
        for place, block in ((plan, BlockId("0" * 31 + "a")), (other, BlockId("0" * 31 + "b")))
    }
    for place in stems.values():
        lake.store.create(keys.quarantine(tenant=raw_profile().tenant, stem=place), held.body)
    lake.lose(saved)
    lake.adopt()
    found = {m.plan: m for m in lake.live() if m.kind is Kind.QUARANTINE}
    assert (found[plan].shard, found[plan].level, found[plan].profiles) == (1, 1, 1)
    assert (found[other].shard, found[other].tenant) == (0, "acme")
    assert found[plan].files[0].checksum == held.checksum


def test_a_block_that_was_replaced_before_comes_back_when_the_replacement_is_lost() -> None:
    """The store lost an output, and its inputs wait for the end of their delay: they are all."""
    lake = Lives()
    inputs = [lake.push(1), lake.push(2)]
    made = lake.merge(inputs)
    saved = lake.save()
    lake.store.delete(tables(made)[0])
    lake.lose(saved)
    lake.adopt()
    assert {meta.id for meta in lake.live()} == {meta.id for meta in inputs}
    lake.pass_time(10 * HOUR_NS)
    lake.clean()
    assert lake.visible_profiles() == {1, 2}


def test_a_damaged_object_of_a_live_block_is_not_taken_for_a_lost_one() -> None:
    lake = Lives()
    made = lake.merge([lake.push(1)])
    saved = lake.save()
    lake.store.delete(tables(made)[0])
    lake.store.create(tables(made)[0], b"short")
    lake.lose(saved)
    lake.adopt()
    assert made.id in lake.state.blocks


def test_a_block_registered_while_the_store_is_listed_is_not_missed() -> None:
    lake = Lives()
    saved = lake.save()
    lake.push(1)
    lake.lose(saved)
    store = lake.store

    class Late:
        """Its listing is over before the last object is written."""

        def __getattr__(self, name: str) -> object:
            return getattr(store, name)

        def list(self, prefix: str) -> object:
            found = list(store.list(prefix))
            if prefix == keys.QUARANTINES:
                lake.push(2)
            return iter(found)

    late = cast(ObjectStore, Late())
    lake.adoption = Adoption(lake, late, lake.clock, lake.append, lake.metrics)
    lake.adopt()
    assert lake.visible_profiles() == {1, 2}


def test_tables_stay_whose_manifest_is_damaged_when_their_inputs_are_gone() -> None:
    """They are all that is left of the profiles, and a person may mend the manifest."""
    policy = msgspec.structs.replace(SMALL, retire_delay_ns=15 * MINUTE_NS, leftovers_ns=HOUR_NS)
    lake = Lives(policy)
    one, two = lake.push(1), lake.push(2)
    plan = lake.schedule([one, two])
    token = lake.lease(plan)
    unused = lake.schedule([lake.push(3)])
    given_up = lake.write(unused, lake.lease(unused))
    saved = lake.save()
    made = lake.write(plan, token)
    lake.complete(plan, token, made)
    lake.fold.now += 20 * MINUTE_NS
    lake.clean()
    assert not lake.objects(keys.SEGMENTS) & {*tables(one), *tables(two)}
    body = lake.store.read(manifest_key(made))
    for key, bad in ((manifest_key(made), body[:-1]), (manifest_key(given_up), b"")):
        lake.store.delete(key)
        lake.store.create(key, bad)
    lake.lose(saved)
    lake.adopt()
    assert [manifest_key(made) in each for each in lake.adoption.blocked].count(True) == 1
    assert lake.state.tally.blocks_missed == 2
    lake.fold.now += 2 * HOUR_NS
    lake.clean()
    assert lake.objects() >= set(tables(made))
    assert not lake.objects() & set(tables(given_up))  # its input is there: they are leftovers


def test_a_manifest_of_another_tenant_or_day_than_its_place_is_not_adopted() -> None:
    lake = Lives()
    saved = lake.save()
    for change in ({"tenant": "other"}, {"day": 1}, {"day": 1 << 60}):
        made = lake.merge([lake.push(len(lake.contents))])
        forged = msgspec.structs.replace(made, **change)
        lake.store.delete(manifest_key(made))
        lake.store.create(manifest_key(made), msgspec.msgpack.encode(forged))
    lake.lose(saved)
    lake.adopt()
    assert {meta.level for meta in lake.live()} == {0}
    assert len(lake.adoption.blocked) == 3
    assert len(lake.objects(keys.MANIFESTS)) == 3  # told, and left


def test_a_segment_below_the_floor_that_nobody_registered_is_left_and_not_told() -> None:
    """Its push was refused long ago: had it been acknowledged, the index would know it."""
    lake = Lives()
    orphan = lake.upload([1])
    lake.fold.now = 2 * HOUR_NS
    lake.fold.put(RegistrationFloor(LeaseTime(HOUR_NS)))
    lake.lose(lake.save())
    lake.adopt()
    assert orphan.id not in lake.state.blocks
    assert lake.adoption.blocked == ()
    assert lake.store.size(tables(orphan)[0])
