"""What ended attempts left goes, what the index lists stays, and a late writer is found."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable
from typing import Any

import msgspec
import pytest

from maar.metastore.fold.plans import leftovers
from maar.metastore.leader.deleting.cleaner import BOUNDS, CleanerBounds
from maar.metastore.leader.held_back import REST_NS
from maar.metastore.records.effects import Leased, Refused, Swept
from maar.metastore.records.entries import (
    AttemptFenced,
    AttemptKey,
    Grant,
    LeftoversSwept,
    PlanFailed,
    PlansLeased,
)
from maar.metastore.state.state import EndedAttempt
from maar.model import keys
from maar.model.block import BlockMeta
from maar.model.errors import Corrupt, NotLeading, Unavailable
from maar.model.ids import FencingToken, PlanId, WorkerId
from maar.model.policy import MINUTE_NS
from maar.model.refusal import Refusal
from maar.model.time import SECOND_NS, LeaseTime
from maar.services.intents import INTENT_BYTES_MAX
from support.clock.virtual_time import run_virtually
from support.lake.fold_and_store import Lake, announce, objects_of, put
from support.metastore.fold import INCARNATION, SMALL, Fold
from support.stores.memory_store import MemoryStore

POLICY = msgspec.structs.replace(SMALL, leftovers_ns=45 * MINUTE_NS)


def lake(store: MemoryStore | None = None, bounds: CleanerBounds = BOUNDS, **policy: Any) -> Lake:
    return Lake(msgspec.structs.replace(POLICY, **policy), store, bounds=bounds)


def sweep(world: Lake) -> None:
    while run_virtually(world.cleaner.sweep()):
        pass


def begun(world: Lake) -> tuple[PlanId, FencingToken]:
    plan = world.schedule(world.add(1, 2, 3))
    return plan, world.lease(plan)


def failed(world: Lake, plan: PlanId, token: FencingToken) -> None:
    world.fold.put(PlanFailed(plan, token, "it broke", world.now()))


# ── what goes and what stays ───────────────────────────────────────────────────────────────────


def test_of_two_tasks_under_one_token_only_the_losers_objects_go() -> None:
    world = lake()
    plan, token = begun(world)
    winner, loser = world.write(plan, token, "0-1-aa"), world.write(plan, token, "0-2-bb")
    assert winner.id == loser.id  # only their keys tell them apart
    world.complete(plan, token, winner)
    world.pass_time(POLICY.leftovers_ns + 1)
    sweep(world)
    assert set(objects_of(winner)) <= world.objects()
    assert not set(objects_of(loser)) & world.objects()
    assert world.objects("attempts/") == set()
    assert world.state.leftovers == {}


def test_whoever_was_deposed_sweeps_nothing() -> None:
    world = lake()
    plan, token = begun(world)
    winner, _ = world.write(plan, token, "0-1-aa"), world.write(plan, token, "0-2-bb")
    world.complete(plan, token, winner)
    world.pass_time(POLICY.leftovers_ns + 1)
    before = world.objects()
    world.deposed = True
    with pytest.raises(NotLeading):
        run_virtually(world.cleaner.sweep())
    assert world.objects() == before


def test_a_winner_that_was_merged_further_keeps_its_objects_until_they_are_cleaned() -> None:
    world = lake(retire_delay_ns=10**18)
    first = world.merge(world.add(1, 2, 3))
    second = world.merge([first])
    assert first.id in world.state.retired
    world.pass_time(POLICY.leftovers_ns + 1)
    sweep(world)
    assert world.listed_keys() == world.objects()
    assert {*objects_of(first), *objects_of(second)} <= world.objects()


def test_a_failed_attempt_leaves_nothing_in_the_end() -> None:
    world = lake()
    plan, token = begun(world)
    made = world.write(plan, token)
    failed(world, plan, token)
    world.pass_time(POLICY.leftovers_ns)
    sweep(world)
    assert set(objects_of(made)) <= world.objects()  # its tasks may not have stopped yet
    world.pass_time(1)
    sweep(world)
    assert world.objects() == world.listed_keys()
    assert world.state.leftovers == {}


def test_what_is_written_after_an_attempt_has_ended_is_found_by_the_final_sweep() -> None:
    world = lake()
    plan, token = begun(world)
    late = world.make_output(plan, token)
    announce(world.store, late, plan, token, "a1")
    failed(world, plan, token)
    put(world.store, late)
    later = world.make_output(plan, token, "a2")
    announce(world.store, later, plan, token, "a2")
    put(world.store, later)
    world.pass_time(POLICY.leftovers_ns + 1)
    sweep(world)
    assert world.objects() == world.listed_keys()


def test_an_attempt_is_not_forgotten_before_its_time_though_nothing_is_there() -> None:
    world = lake()
    plan, token = begun(world)
    failed(world, plan, token)
    world.pass_time(POLICY.leftovers_ns)
    sweep(world)
    assert list(world.state.leftovers) == [AttemptKey(plan, token)]
    world.pass_time(1)
    sweep(world)
    assert world.state.leftovers == {}


def test_a_live_lease_has_no_leftovers_and_neither_has_an_expired_one_that_nobody_took() -> None:
    world = lake()
    plan, token = begun(world)
    made = world.write(plan, token)
    world.pass_time(10 * POLICY.leftovers_ns)
    sweep(world)
    assert world.state.leftovers == {}
    world.complete(plan, token, made)
    sweep(world)
    assert set(objects_of(made)) <= world.objects()


def test_the_attempt_that_was_replaced_goes_and_the_one_that_replaced_it_stays() -> None:
    world = lake()
    plan, old = begun(world)
    lost = world.write(plan, old)
    world.pass_time(POLICY.lease_ns + 1)
    new = world.lease(plan, replaces=old)
    won = world.write(plan, new)
    world.pass_time(POLICY.leftovers_ns + 1)
    sweep(world)
    assert not set(objects_of(lost)) & world.objects()
    assert set(objects_of(won)) <= world.objects()
    world.complete(plan, new, won)
    world.pass_time(POLICY.leftovers_ns + 1)
    sweep(world)
    assert set(objects_of(won)) <= world.objects()


# ── intents that are not ours ──────────────────────────────────────────────────────────────────


FOREIGN = FencingToken(INCARNATION, 999)


def intents(world: Lake, plan: PlanId, token: FencingToken) -> dict[str, bytes]:
    """Bad ones, each naming something that must not be deleted."""
    (segment, *_) = world.objects("segments/")
    other = keys.stem(
        block=world.make_output(plan, token).id, plan=plan, token=FOREIGN, attempt="x"
    )
    mine = keys.stem(block=world.make_output(plan, token).id, plan=plan, token=token, attempt="x")
    return {
        "empty": b"",
        "binary": b"\xff\xfe\x00",
        "segment": segment.encode(),
        "metastore": b"metastore/v1/0badcafe/snapshot-0000000000000001.maar",
        "another token": f"lake/v1/samples/tenant=a/date=2024-01-01/{other}.parquet".encode(),
        "outside": f"lake/v1/samples/tenant=a/date=2024-01-01/../{mine}.parquet".encode(),
        "elsewhere": f"segments/v1/{mine}.parquet".encode(),
        "mixed": "\n".join((objects_of(world.make_output(plan, token))[0], segment)).encode(),
        "huge": b"x" * (INTENT_BYTES_MAX + 1),
    }


def test_bad_intents_are_not_followed_but_told_once_and_hold_up_nobody(
    caplog: pytest.LogCaptureFixture,
) -> None:
    world = lake()
    plan, token = begun(world)
    made = world.write(plan, token)
    bad = intents(world, plan, token)
    places = {}
    for number, (name, body) in enumerate(bad.items()):
        key = keys.intent(plan=plan, token=token, attempt=f"bad{number}", ordinal=0)
        world.store.create(key, body)
        places[name] = key
    failed(world, plan, token)
    other = world.schedule(world.add(11, 12, 13))
    token_of_other = world.lease(other)
    lost = world.write(other, token_of_other)
    failed(world, other, token_of_other)
    world.pass_time(POLICY.leftovers_ns + 1)
    for _ in range(3):
        sweep(world)
        world.pass_time(REST_NS + 1)
    assert not {*objects_of(made), *objects_of(lost)} & world.objects()  # what is good is followed
    assert world.objects("attempts/") == set(places.values())
    assert world.listed_keys() <= world.objects()
    assert list(world.state.leftovers) == [AttemptKey(plan, token)]
    (sentence,) = world.cleaner.blocked
    assert all(place in sentence for place in places.values())
    assert [r.levelname for r in caplog.records if "cleanup blocked" in r.message] == ["ERROR"]
    assert world.registry.get_sample_value("maar_metastore_clean_blocked_attempts") == 1
    # somebody has looked at them, and took them away
    for place in places.values():
        world.store.delete(place)
    sweep(world)
    assert world.state.leftovers == {}
    assert world.cleaner.blocked == ()
    assert world.registry.get_sample_value("maar_metastore_clean_blocked_attempts") == 0


def test_a_part_that_gets_nowhere_takes_a_rest() -> None:
    # one is held at most, so that the same one is due again and again
    world = lake(bounds=CleanerBounds(swept_at_once=1, held_max=1))
    plan, token = begun(world)
    world.store.create(keys.intent(plan=plan, token=token, attempt="x", ordinal=0), b"?")
    failed(world, plan, token)
    world.pass_time(POLICY.leftovers_ns + 1)
    for _ in range(3):
        assert not run_virtually(world.cleaner.sweep())


@pytest.mark.parametrize("attempt", ["0-1-ab", "a1"])
def test_keys_tell_what_an_attempt_may_have_written(attempt: str) -> None:
    world = lake()
    plan, token = begun(world)
    made = world.make_output(plan, token, attempt)
    for key in objects_of(made):
        assert keys.attempt_block(key, plan=plan, token=token) == made.id
        assert keys.attempt_block(key, plan=plan, token=FOREIGN) is None
        assert keys.attempt_block(key, plan=PlanId(1, 1), token=token) is None
        assert keys.attempt_block(f"x{key}", plan=plan, token=token) is None
        assert keys.attempt_block(f"{key}/x", plan=plan, token=token) is None
    stem = keys.stem(block=made.id, plan=plan, token=token, attempt=attempt)
    quarantined = keys.quarantine(tenant=made.tenant, stem=stem)
    assert keys.attempt_block(quarantined, plan=plan, token=token) == made.id


# ── a store that fails ─────────────────────────────────────────────────────────────────────────


class Moody(MemoryStore):
    """Fails on some keys, in its own way, until it is told to stop."""

    def __init__(self, error: Exception) -> None:
        super().__init__()
        self.error = error
        self.on = ""

    def _mood(self, key: str) -> None:
        if self.on and self.on in key:
            raise self.error

    def read(self, key: str) -> bytes:
        self._mood(key)
        return super().read(key)

    def delete(self, key: str) -> None:
        self._mood(key)
        super().delete(key)


@pytest.mark.parametrize("where", ["attempts/", "lake/"])
@pytest.mark.parametrize("error", [Unavailable("no answer"), Corrupt("odd"), OSError("worse")])
def test_store_errors_postpone_and_others_go_on(error: Exception, where: str) -> None:
    store = Moody(error)
    world = lake(store)
    plan, token = begun(world)
    lost = world.write(plan, token)
    failed(world, plan, token)
    other = world.schedule(world.add(11, 12, 13))
    other_token = world.lease(other)
    failed(world, other, other_token)
    world.pass_time(POLICY.leftovers_ns + 1)
    store.on = where if where == "lake/" else f"/{plan}/"
    with contextlib.suppress(Unavailable):  # then the part as a whole waits a little
        sweep(world)
    assert list(world.state.leftovers) == [AttemptKey(plan, token)]
    assert set(objects_of(lost)) <= world.objects()
    (sentence,) = world.cleaner.blocked
    assert str(plan) in sentence
    assert str(error) in sentence
    store.on = ""
    sweep(world)
    assert list(world.state.leftovers) == [AttemptKey(plan, token)]  # it rests
    world.pass_time(REST_NS + 1)
    sweep(world)
    assert world.state.leftovers == {}
    assert world.cleaner.blocked == ()
    assert world.objects() == world.listed_keys()


# ── which are due ──────────────────────────────────────────────────────────────────────────────


def attempt_key(number: int) -> AttemptKey:
    return AttemptKey(PlanId(number, 0), FencingToken(INCARNATION, number))


def test_old_ends_come_first_within_the_limit_and_none_before_its_time() -> None:
    minutes = {1: 50, 2: 46, 3: 45, 4: 20}
    all_of_them = {
        attempt_key(number): EndedAttempt(LeaseTime((60 - age) * MINUTE_NS), completed=number == 2)
        for number, age in minutes.items()
    }

    def due(limit: int = 10, resting: Iterable[int] = ()) -> list[int]:
        found = leftovers.due(
            all_of_them,
            now=LeaseTime(60 * MINUTE_NS),
            leftovers_ns=45 * MINUTE_NS,
            resting=set(map(attempt_key, resting)),
            limit=limit,
        )
        return [one.plan.index for one in found]

    assert due() == [1, 2]
    assert due(resting={1}) == [2]
    assert due(limit=1) == [1]


# ── the bound ──────────────────────────────────────────────────────────────────────────────────


def test_too_many_leftovers_refuse_grants_until_some_are_swept() -> None:
    world = lake(leftovers_max=3)
    plan, token = begun(world)
    for _ in range(2):
        failed(world, plan, token)
        token = world.lease(plan)
    other = world.schedule(world.add(11, 12, 13))
    grant = Grant(other, WorkerId("w"), LeaseTime(world.fold.now + 1))
    (refused,) = world.fold.put(PlansLeased((grant,)))
    assert isinstance(refused, Refused)
    assert refused.why is Refusal.TOO_MANY
    failed(world, plan, token)
    assert len(world.state.leftovers) == 3
    world.pass_time(POLICY.leftovers_ns + 1)
    sweep(world)
    assert world.state.leftovers == {}
    (granted,) = world.fold.put(PlansLeased((grant,)))
    assert isinstance(granted, Leased)


def test_the_fold_forgets_what_was_swept_and_repeats_nothing() -> None:
    fold = Fold()
    fold.state.leftovers[attempt_key(1)] = EndedAttempt(LeaseTime(0), completed=False)
    assert fold.put(LeftoversSwept((attempt_key(1), attempt_key(2)))) == (Swept(1),)
    assert fold.put(LeftoversSwept((attempt_key(1),))) == (Swept(0),)
    assert fold.state.leftovers == {}


def test_every_end_of_an_attempt_is_remembered() -> None:
    world = lake()
    plan, first = begun(world)
    failed(world, plan, first)
    second = world.lease(plan)
    world.fold.put(AttemptFenced(plan, second, "an operator"))
    third = world.lease(plan)
    world.pass_time(POLICY.lease_ns + 1)
    fourth = world.lease(plan, replaces=third)
    world.complete(plan, fourth, world.write(plan, fourth))
    ends = {
        one.token: ended_attempt.completed for one, ended_attempt in world.state.leftovers.items()
    }
    assert ends == {first: False, second: False, third: False, fourth: True}


def test_many_attempts_are_swept_in_turns() -> None:
    world = lake(bounds=CleanerBounds(swept_at_once=4))
    made: list[BlockMeta] = []
    for number in range(10):
        plan = world.schedule(world.add(number))
        token = world.lease(plan)
        made.append(world.write(plan, token))
        failed(world, plan, token)
        world.pass_time(SECOND_NS)
    world.pass_time(POLICY.leftovers_ns)
    sweep(world)
    assert world.state.leftovers == {}
    assert world.objects() == world.listed_keys()
