"""What attempts wrote that the log does not know: what goes, what stays, and why (S1, S5)."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import msgspec
import pytest

from maar.metastore.leader.deleting.orphan_search import KEPT_MAX
from maar.metastore.leader.deleting.orphans import WAIT_NS, Orphans
from maar.metastore.records.entries import AttemptFenced, RegistrationFloor
from maar.metastore.recovery import orphan_count
from maar.model import keys
from maar.model.block import BlockMeta
from maar.model.errors import NotLeading, Unavailable
from maar.model.ids import BlockId, FencingToken, Incarnation, PlanId, Shard
from maar.model.policy import MINUTE_NS
from maar.model.time import SECOND_NS, LeaseTime
from support.clock.virtual_time import run_virtually
from support.lake.lost_log import Lives, manifest_key, tables
from support.metastore.dead_letters import FaultyStore
from support.metastore.fold import INCARNATION, SMALL, TENANT

GRACE_NS = 45 * MINUTE_NS
POLICY = msgspec.structs.replace(SMALL, leftovers_ns=GRACE_NS, retire_delay_ns=0)
OTHER = Incarnation("feedbeef")
FILES = 5 + 1  # the tables and the manifest of a block


class Restored(Lives):
    """A lake whose log can be lost; the sweep of orphans is told when."""

    def __init__(self) -> None:
        self.faulty = FaultyStore()
        super().__init__(POLICY, self.faulty)
        self.stop_ns = 0  # for so long the process is stopped after the next confirmation

    def confirm_deletes(self) -> None:
        super().confirm_deletes()
        if self.stop_ns:
            self.clock.advance(self.stop_ns)
            self.stop_ns, self.deposed = 0, True

    def sweep(self) -> int:
        return run_virtually(self.orphans.sweep())

    def left(self) -> set[str]:
        """All that attempts wrote."""
        return {key for key in self.objects() if key.startswith(("lake/", "attempts/", "quar"))}

    def lost_attempt(self, *numbers: int, files: int = FILES) -> BlockMeta:
        """An attempt of a part of the log that is lost right after it wrote some files."""
        saved = self.save()
        plan = self.schedule([self.push(number) for number in numbers])
        made = self.write(plan, self.lease(plan))
        for key in [*tables(made), manifest_key(made)][files:]:
            self.store.delete(key)
        self.lose(saved)
        return made

    def metric(self, kind: str) -> float | None:
        return self.registry.get_sample_value("maar_metastore_orphans_swept_total", {"kind": kind})


@pytest.fixture
def lake() -> Iterator[Restored]:
    made = Restored()
    yield made
    made.orphans.close()
    made.adoption.close()
    made.cleaner.close()


def test_what_the_lost_part_of_the_log_left_goes_and_what_was_adopted_of_it_stays(
    lake: Restored,
) -> None:
    saved = lake.save()
    whole = lake.merge([lake.push(1), lake.push(2)])
    plan = lake.schedule([lake.push(3)])
    unfinished = lake.write(plan, lake.lease(plan))
    for key in (manifest_key(unfinished), tables(unfinished)[4]):
        lake.store.delete(key)
    lake.lose(saved)
    lake.adopt()
    assert whole.id in lake.state.blocks
    assert unfinished.id not in lake.state.blocks
    lake.pass_time(GRACE_NS)
    assert lake.sweep() == 0, "its task may still write"
    lake.pass_time(1)
    assert lake.sweep() == 4 + 2
    assert lake.left() == {*tables(whole), manifest_key(whole)}
    assert lake.visible_profiles() == {1, 2, 3}
    assert (lake.metric("output"), lake.metric("intent")) == (4, 2)
    assert lake.orphans.blocked == ()


def test_the_grace_counts_from_the_end_of_the_adoption(lake: Restored) -> None:
    lake.lost_attempt(1, files=2)
    lake.pass_time(3 * GRACE_NS)
    before = lake.left()
    assert lake.sweep() == 0, "while the log adopts, nothing goes"
    lake.adopt()
    assert lake.sweep() == 0
    assert lake.left() == before
    lake.pass_time(GRACE_NS + 1)
    assert lake.sweep() == 2 + 1


def test_attempts_that_no_entry_has_ended_and_those_that_await_their_last_sweep_stay(
    lake: Restored,
) -> None:
    held = lake.schedule([lake.push(1)])
    begun = lake.write(held, lake.lease(held))  # its lease expires, and nobody takes the plan
    ended = lake.schedule([lake.push(2)])
    token = lake.lease(ended)
    failed = lake.write(ended, token)
    lake.fold.put(AttemptFenced(ended, token, "?"))
    for made in (begun, failed):
        lake.store.delete(manifest_key(made))
    before = lake.left()
    lake.pass_time(3 * GRACE_NS)
    assert lake.sweep() == 0
    assert lake.left() == before


def test_a_token_that_this_log_has_not_granted_yet_is_not_judged(lake: Restored) -> None:
    token = FencingToken(INCARNATION, lake.state.index + 1)
    key = keys.intent(plan=PlanId(1, 0), token=token, attempt="a1", ordinal=0)
    lake.store.create(key, b"")
    assert lake.sweep() == 0
    lake.push(1)  # the next entry: it granted nothing
    assert lake.sweep() == 0, "the intent names nothing that its attempt can have written"
    assert key in lake.left()


def test_what_a_task_wrote_after_the_last_sweep_of_its_attempt_goes(lake: Restored) -> None:
    plan = lake.schedule([lake.push(1)])
    token = lake.lease(plan)
    made = lake.write(plan, token)
    lake.fold.put(AttemptFenced(plan, token, "?"))
    lake.pass_time(GRACE_NS + 1)
    run_virtually(lake.cleaner.sweep())
    assert lake.left() == set()
    lake.write_late(made, "late", files=3)
    assert lake.sweep() == 3 + 1
    assert lake.left() == set()


def test_a_whole_block_of_this_log_that_it_does_not_know_stays_for_a_person(
    lake: Restored,
) -> None:
    """Its log may be an old copy of itself, which knows nothing of the completion."""
    plan = lake.schedule([lake.push(1)])
    token = lake.lease(plan)
    made = lake.write(plan, token)
    lake.fold.put(AttemptFenced(plan, token, "?"))
    lake.pass_time(GRACE_NS + 1)
    run_virtually(lake.cleaner.sweep())
    lake.write_late(made, "late")
    before = lake.left()
    assert lake.sweep() == 0
    assert lake.left() == before
    assert "the log does not know it" in lake.orphans.blocked[0]


def test_a_block_that_was_finished_after_the_adoption_goes(lake: Restored) -> None:
    made = lake.lost_attempt(1, files=0)
    lake.adopt()
    lake.write_late(made, "late")
    lake.pass_time(GRACE_NS + 1)
    assert lake.sweep() == FILES + 2
    assert lake.left() == set()
    assert lake.visible_profiles() == {1}


def test_without_intents_what_is_whole_goes_and_what_nobody_can_judge_stays(
    lake: Restored,
) -> None:
    made = lake.lost_attempt(1, files=0)
    lake.adopt()
    lake.write_late(made, "whole")
    lake.write_late(made, "part", files=2)
    for info in list(lake.store.list(keys.ATTEMPTS)):
        lake.store.delete(info.key)
    part = {key for key in lake.left() if "-part." in key}
    lake.pass_time(GRACE_NS + 1)
    assert lake.sweep() == FILES
    assert lake.left() == part
    assert len(lake.orphans.blocked) == len(part) == 2
    assert "no intent tells of its attempt" in lake.orphans.blocked[0]


def test_of_two_attempts_the_one_that_was_not_adopted_goes(lake: Restored) -> None:
    saved = lake.save()
    plan = lake.schedule([lake.push(1)])
    first = lake.lease(plan)
    lake.write(plan, first, "a1")
    lake.pass_time(10 * MINUTE_NS)
    made = lake.write(plan, lake.lease(plan, replaces=first), "a2")
    lake.lose(saved)
    lake.adopt()
    lake.pass_time(GRACE_NS + 1)
    assert lake.sweep() == FILES + 2
    assert lake.left() == {*tables(made), manifest_key(made)}


@pytest.mark.parametrize("damage", ["manifest", "table", "another size"])
def test_what_adoption_could_not_read_stays_with_its_intent(lake: Restored, damage: str) -> None:
    made = lake.lost_attempt(1)
    key = manifest_key(made) if damage == "manifest" else tables(made)[2]
    lake.store.delete(key)
    if damage != "table":
        lake.store.create(key, b"bit rot")
    lake.adopt()
    before = lake.left()
    lake.pass_time(GRACE_NS + 1)
    assert lake.sweep() == 0
    assert lake.left() == before
    assert manifest_key(made) in lake.orphans.blocked[0]
    assert "it is not swept" in lake.orphans.blocked[0]


def test_a_damaged_file_in_quarantine_stays(lake: Restored) -> None:
    saved = lake.save()
    plan = lake.schedule([lake.push(1)])
    token = lake.lease(plan)
    stem = keys.stem(block=BlockId("0" * 32), plan=plan, token=token, attempt="a1")
    key = keys.quarantine(tenant=TENANT, stem=stem)
    lake.store.create(key, b"bit rot")
    lake.store.create(keys.intent(plan=plan, token=token, attempt="a1", ordinal=0), key.encode())
    lake.lose(saved)
    lake.adopt()
    before = lake.left()
    lake.pass_time(GRACE_NS + 1)
    assert lake.sweep() == 0
    assert lake.left() == before
    assert key in lake.orphans.blocked[0]


def test_a_joined_segment_that_was_written_too_late_goes_and_a_damaged_one_stays(
    lake: Restored,
) -> None:
    """A plan writes them among the segments of writers, one object each."""
    saved = lake.save()
    source = lake.push(1)
    plan = lake.schedule([source])
    token = lake.lease(plan)

    def write(attempt: str, body: bytes, block: BlockId) -> str:
        stem = keys.stem(block=block, plan=plan, token=token, attempt=attempt)
        key = keys.joined_segment(shard=source.shard, stem=stem)
        intent = keys.intent(plan=plan, token=token, attempt=attempt, ordinal=0)
        lake.store.create(intent, key.encode())
        lake.store.create(key, body)
        return key

    whole = lake.store.read(tables(source)[0])
    adopted = write("a1", whole, BlockId(f"{source.id[:16]}{1:016x}"))
    lake.contents[adopted] = lake.profiles_in(source)
    lake.lose(saved)
    lake.adopt()
    late = write("late", whole, BlockId(f"{source.id[:16]}{2:016x}"))
    damaged = write("bad", b"bit rot", BlockId(f"{source.id[:16]}{3:016x}"))
    unannounced = write("lost", whole, BlockId(f"{source.id[:16]}{4:016x}"))
    lake.store.delete(keys.intent(plan=plan, token=token, attempt="lost", ordinal=0))
    lake.pass_time(GRACE_NS + 1)
    lake.sweep()
    assert lake.objects(keys.SEGMENTS) == {tables(source)[0], adopted, damaged}
    assert {late, unannounced}.isdisjoint(lake.objects())
    assert damaged in lake.orphans.blocked[0]
    assert lake.visible_profiles() == {1}


def planted(made: BlockMeta) -> list[str]:
    """Keys beside those of an attempt, none of which our writers write."""
    table, manifest = tables(made)[0], manifest_key(made)
    named = keys.output_name(table)
    assert named is not None
    prefix = keys.attempt_prefix(plan=named.plan, token=named.token)
    return [
        f"{prefix}notes",
        f"{prefix}deeper/a1-0",
        prefix.replace(f"/{named.plan}/", f"/0{named.plan}/") + "a1-0",
        "attempts/v1/README",
        table.replace("-a1.", ".").replace(str(named.plan), f"0{named.plan}"),
        table.replace(f"-{named.plan}-", f"-0{named.plan}-"),
        table.replace("/v1/", "/v2/"),
        manifest.replace("/manifests/", "/backups/"),
        "lake/v1/README",
    ]


def test_keys_that_our_writers_do_not_write_stay(lake: Restored) -> None:
    made = lake.lost_attempt(1, files=2)
    for key in planted(made):
        lake.store.create(key, b"?")
    lake.adopt()
    lake.pass_time(GRACE_NS + 1)
    lake.sweep()
    assert lake.left() == set(planted(made))


def test_an_intent_that_names_what_is_not_its_own_is_not_followed(lake: Restored) -> None:
    kept = lake.merge([lake.push(1)])
    made = lake.lost_attempt(2, files=0)
    named = keys.output_name(tables(made)[0])
    assert named is not None
    bad = keys.intent(plan=named.plan, token=named.token, attempt="a2", ordinal=0)
    lake.store.create(bad, tables(kept)[0].encode())
    lake.adopt()
    lake.pass_time(GRACE_NS + 1)
    run_virtually(lake.cleaner.sweep())
    assert lake.sweep() == 1
    assert lake.left() == {*tables(kept), manifest_key(kept), bad}
    assert "is not followed" in lake.orphans.blocked[0]


def test_attempts_of_other_logs_are_let_alone(lake: Restored) -> None:
    plan, token = PlanId(1, 0), FencingToken(OTHER, 1)
    intent = keys.intent(plan=plan, token=token, attempt="a1", ordinal=0)
    stem = keys.stem(block=BlockId("0" * 32), plan=plan, token=token, attempt="a1")
    table = keys.table(name="samples", tenant=TENANT, day=1, stem=stem)
    lake.store.create(intent, table.encode())
    lake.store.create(table, b"x")
    lake.pass_time(3 * GRACE_NS)
    assert lake.sweep() == 0
    assert lake.left() == {intent, table}


def test_in_a_store_that_another_log_has_marked_nothing_goes(lake: Restored) -> None:
    lake.lost_attempt(1, files=2)
    lake.adopt()
    lake.upload([9])
    lake.pass_time(3 * POLICY.registration_floor_lag_ns + GRACE_NS)
    lake.fold.put(RegistrationFloor(LeaseTime(lake.fold.now)))
    lake.store.create(keys.marker(OTHER), b"")
    before = lake.objects()
    assert lake.sweep() == 0
    assert lake.objects() == before
    assert f"{keys.marker(OTHER)}: nothing is swept: another log" in lake.orphans.blocked[0]
    lake.store.create(keys.successor(OTHER), INCARNATION.encode())  # it was a life of this one
    assert lake.sweep() == 2 + 1 + 1
    assert lake.orphans.blocked == ()


def test_what_forbids_everything_is_told_first_however_much_stays(lake: Restored) -> None:
    made = lake.lost_attempt(1, files=0)
    lake.adopt()
    for number in range(KEPT_MAX + 5):
        lake.write_late(made, f"bad{number}")
        last = f"-bad{number}."
        for key in [key for key in lake.objects(keys.MANIFESTS) if last in key]:
            lake.store.delete(key)
            lake.store.create(key, b"bit rot")
    lake.pass_time(GRACE_NS + 1)
    assert lake.sweep() == 0
    assert len(lake.orphans.blocked) == KEPT_MAX
    lake.store.create(keys.marker(OTHER), b"")
    lake.sweep()
    assert keys.marker(OTHER) in lake.orphans.blocked[0]
    assert len(lake.orphans.blocked) == KEPT_MAX


def test_in_a_store_without_this_logs_marker_nothing_goes(lake: Restored) -> None:
    lake.lost_attempt(1, files=2)
    lake.adopt()
    lake.pass_time(GRACE_NS + 1)
    lake.store.delete(keys.marker(lake.state.incarnation))
    before = lake.objects()
    assert lake.sweep() == 0
    assert lake.objects() == before
    assert "It may be the store of another log" in lake.orphans.blocked[0]


@pytest.mark.parametrize("deletions", range(FILES + 1))
def test_a_sweep_that_is_broken_off_is_finished_by_the_next(lake: Restored, deletions: int) -> None:
    """Whatever is left is still announced, and no manifest names what is gone."""
    made = lake.lost_attempt(1, files=0)
    lake.adopt()
    lake.write_late(made, "late")
    lake.pass_time(GRACE_NS + 1)
    left = deletions

    def mortal(operation: str, _key: str) -> Unavailable | None:
        nonlocal left
        if operation != "delete":
            return None
        left -= 1
        return Unavailable("killed") if left < 0 else None

    lake.faulty.fault = mortal
    with pytest.raises(Unavailable):
        lake.sweep()
    objects = lake.objects(keys.LAKE)
    assert len(objects) == FILES - deletions
    assert (deletions == 0) == any(key.startswith(keys.MANIFESTS) for key in objects)
    lake.faulty.heal()
    lake.sweep()
    assert lake.left() == set()
    assert lake.orphans.blocked == ()


def test_pages_that_split_an_attempt_find_all_of_it(lake: Restored) -> None:
    made = lake.lost_attempt(1, files=0)
    lake.adopt()
    for number in range(5):
        lake.write_late(made, f"late{number}", files=number)
    lake.orphans.close()
    lake.orphans = Orphans(lake, lake.store, lake.clock, lake.metrics, listed_at_once=2)
    lake.pass_time(GRACE_NS + 1)
    lake.sweep()
    assert lake.left() == set()


# ── whoever was stopped ────────────────────────────────────────────────────────────────────────


def test_whoever_was_stopped_after_its_confirmation_deletes_nothing(lake: Restored) -> None:
    lake.lost_attempt(1, files=2)
    lake.adopt()
    lake.pass_time(GRACE_NS + 1)
    before = lake.objects()
    lake.stop_ns = 2 * SECOND_NS
    with pytest.raises(NotLeading):
        lake.sweep()
    assert lake.objects() == before


def test_whoever_was_stopped_between_two_deletes_deletes_nothing_more(lake: Restored) -> None:
    lake.lost_attempt(1, files=4)
    lake.adopt()
    lake.pass_time(GRACE_NS + 1)
    before = lake.objects()

    def stop(operation: str, _key: str) -> None:
        if operation == "delete":
            lake.clock.advance(2 * SECOND_NS)
            lake.deposed = True

    lake.faulty.fault = stop
    with pytest.raises(NotLeading):
        lake.sweep()
    assert len(before - lake.objects()) == 1


# ── a dry run ──────────────────────────────────────────────────────────────────────────────────


def test_a_dry_run_tells_what_a_sweep_deletes_and_changes_nothing(lake: Restored) -> None:
    made = lake.lost_attempt(1, files=3)
    lake.adopt()
    lake.write_late(made, "late")
    orphan = lake.upload([9])
    lake.pass_time(3 * POLICY.registration_floor_lag_ns + GRACE_NS)
    lake.fold.put(RegistrationFloor(LeaseTime(lake.fold.now)))
    before = {info.key: info.size for info in lake.store.list("")}
    found = run_virtually(lake.orphans.find(limit=1000))
    assert {info.key: info.size for info in lake.store.list("")} == before
    assert lake.confirmations == 0
    assert found.complete
    short = run_virtually(lake.orphans.find(limit=2))
    assert (short.objects, short.bytes) == (found.objects, found.bytes)
    assert short.first == found.first[:2]
    lake.sweep()
    gone = before.keys() - lake.objects()
    assert {each.key for each in found.first} == gone
    assert (found.objects, found.bytes) == (len(gone), sum(before[key] for key in gone))
    kinds = {each.key: each.kind for each in found.first}
    assert kinds[tables(orphan)[0]] == "segment"
    assert sorted(kinds.values()) == ["intent"] * 2 + ["output"] * 9 + ["segment"]


def test_a_sweep_at_once_tells_what_it_deleted_and_begins_at_the_beginning(lake: Restored) -> None:
    made = lake.lost_attempt(1, files=3)
    lake.adopt()
    lake.pass_time(GRACE_NS + 1)
    before = lake.objects()
    found = run_virtually(lake.orphans.sweep_now(limit=2))
    gone = before - lake.objects()
    assert (found.objects, found.complete, len(found.first)) == (len(gone), True, 2) == (4, True, 2)
    lake.write_late(made, "late", files=1)
    lake.store.create(keys.marker(OTHER), b"")
    found = run_virtually(lake.orphans.sweep_now(limit=9))
    assert (found.objects, found.complete) == (0, False)
    assert "another log has marked" in found.kept[0]
    lake.store.delete(keys.marker(OTHER))
    lake.deposed = True
    with pytest.raises(NotLeading):
        run_virtually(lake.orphans.sweep_now(limit=9))
    lake.deposed = False
    found = run_virtually(lake.orphans.sweep_now(limit=9))
    assert [each.kind for each in found.first] == ["output", "intent"]
    assert lake.left() == set()


def test_two_sweeps_at_once_do_not_disturb_each_other(lake: Restored) -> None:
    lake.lost_attempt(1, files=3)
    lake.adopt()
    lake.pass_time(GRACE_NS + 1)

    async def both() -> None:
        first = asyncio.create_task(lake.orphans.sweep())
        await asyncio.sleep(0)
        refused = await lake.orphans.sweep_now(limit=9)
        assert refused.kept == ("orphans are being swept already; ask again",)
        assert (refused.objects, refused.complete, await first) == (0, False, 4)

    run_virtually(both())


def test_a_dry_run_says_when_nothing_may_go_or_it_took_too_long(lake: Restored) -> None:
    made = lake.lost_attempt(1, files=2)
    assert not run_virtually(lake.orphans.find(limit=10)).complete, "it adopts"
    lake.adopt()
    lake.pass_time(GRACE_NS + 1)
    lake.store.create(keys.marker(OTHER), b"")
    found = run_virtually(lake.orphans.find(limit=10))
    assert (found.objects, found.complete) == (0, False)
    assert "another log has marked this store" in found.kept[0]
    lake.store.delete(keys.marker(OTHER))
    lake.store.create(keys.segment(shard=Shard(1), block=made.id, incarnation=INCARNATION), b"x")

    def slow(operation: str, key: str) -> None:
        if (operation, key) == ("list", keys.ATTEMPTS):
            lake.clock.advance(WAIT_NS)

    lake.faulty.fault = slow
    found = run_virtually(lake.orphans.find(limit=10))
    assert (found.objects, found.complete) == (3, False)


def test_verify_counts_what_attempts_left_due_or_not_and_touches_nothing(lake: Restored) -> None:
    lake.lost_attempt(1, files=2)
    lake.push(2)
    assert run_virtually(orphan_count.count([lake.store], lake.state)).total == 0, "it adopts"
    lake.adopt()
    before = lake.objects()
    young = run_virtually(orphan_count.count([lake.store], lake.state))
    assert (young.by_kind, young.due) == ({"segment": 0, "output": 2, "intent": 1, "commit": 0}, 0)
    lake.pass_time(GRACE_NS + 1)
    lake.push(3)  # an entry: the log knows the time
    old = run_virtually(orphan_count.count([lake.store], lake.state))
    assert (old.by_kind, old.due) == (young.by_kind, 3)
    assert {*before} <= {*lake.objects()}
    assert lake.sweep() == old.due, "the leader judges alike"


def test_verify_names_what_is_left_alone(lake: Restored) -> None:
    made = lake.lost_attempt(1)
    lake.store.delete(tables(made)[0])
    lake.adopt()
    lake.pass_time(GRACE_NS + 1)
    lake.push(3)
    found = run_virtually(orphan_count.count([lake.store], lake.state))
    assert (found.total, found.due) == (0, 0)
    (sentence,) = found.kept
    assert "files that it names are missing" in sentence
