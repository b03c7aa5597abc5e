"""What a worker or a writer claims is taken only if it can be so (S1, S3, S7)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import msgspec
import pytest

from maar.metastore.decide.dead_letter_rules import Fate, FoundLetter, second_chance, verdict
from maar.metastore.records.effects import Adopted, Completed, Effect, Refused, Registered
from maar.metastore.records.entries import BlocksAdded, BlocksAdopted, PlanCompleted, Reincarnated
from maar.model import keys
from maar.model.block import NO_DAY, BlockMeta, Kind, Location
from maar.model.ids import FencingToken, Incarnation, PlanId, StoreName, TenantId
from maar.model.plan import Account, PlanResult
from maar.model.policy import Policy
from maar.model.refusal import Refusal
from maar.model.time import DAY_NS, SECOND_NS, LeaseTime
from maar.ports.stores.object_store import ObjectInfo
from maar.services.compact.rules import COMPACT
from support.lake.fold_and_store import Lake
from support.metastore.fold import DAY, SMALL, TENANT, Fold, output, segment

OTHER = TenantId("globex")
STRANGER = Incarnation("ffffffff")


class Work:
    """A plan over some segments, leased, whose result a test makes up."""

    def __init__(self, *inputs: BlockMeta, policy: Policy = SMALL) -> None:
        self.lake = Lake(policy)
        self.inputs = inputs
        self.lake.register(*inputs)
        self.plan = self.lake.schedule(inputs)
        self.token = self.lake.lease(self.plan)

    def made(self, profiles: int, *, ordinal: int = 0, **how: Any) -> BlockMeta:
        return output(self.plan, self.token, self.inputs, profiles=profiles, ordinal=ordinal, **how)

    def end(self, outputs: Sequence[BlockMeta], *, quarantined: int = 0) -> Effect:
        came = sum(meta.profiles for meta in self.inputs)
        kept = sum(meta.profiles for meta in outputs) - quarantined
        account = Account(kept, came - kept - quarantined, quarantined)
        result = PlanResult(COMPACT, tuple(outputs), account)
        (effect,) = self.lake.fold.put(PlanCompleted(self.plan, self.token, result))
        return effect

    def refused(self, outputs: Sequence[BlockMeta]) -> Refusal:
        effect = self.end(outputs)
        assert isinstance(effect, Refused), effect
        assert self.lake.fold.live() == {meta.id for meta in self.inputs}
        return effect.why


# ── of what came, something is left ────────────────────────────────────────────────────────────


def test_not_every_profile_can_be_a_duplicate() -> None:
    assert Work(segment(1), segment(2)).refused([]) is Refusal.SHARE


def test_all_but_one_can_be_duplicates() -> None:
    work = Work(segment(1), segment(2))
    assert isinstance(work.end([work.made(1)]), Completed)


def test_what_is_in_quarantine_is_left_too() -> None:
    work = Work(segment(1))
    bad = work.made(1, kind=Kind.QUARANTINE)
    assert isinstance(work.end([bad], quarantined=1), Completed)


@pytest.mark.parametrize("day", [NO_DAY, DAY, 10**12])  # the last one is in no calendar
def test_no_plan_makes_a_segment(day: int) -> None:
    work = Work(segment(1))
    made = work.made(10)
    stem = made.files[0].locations[0].key.rpartition("/")[2].removesuffix(".parquet")
    key = keys.table(name="segment", tenant=TENANT, day=DAY, stem=stem)
    file = msgspec.structs.replace(
        made.files[0], table="segment", locations=(Location(made.store, key),)
    )
    odd = msgspec.structs.replace(made, kind=Kind.SEGMENT, day=day, files=(file,))
    assert work.refused([odd]) is Refusal.OUTPUT_KEY


def test_what_is_in_quarantine_has_no_day() -> None:
    work = Work(segment(1))
    bad = msgspec.structs.replace(work.made(1, kind=Kind.QUARANTINE), day=DAY)
    effect = work.end([bad], quarantined=1)
    assert isinstance(effect, Refused)
    assert effect.why is Refusal.OUTPUT_KEY


def test_no_tenant_may_vanish_behind_another() -> None:
    work = Work(segment(1, tenant=TENANT), segment(2, tenant=OTHER))
    assert work.refused([work.made(10, tenant=TENANT)]) is Refusal.SHARE
    both = [work.made(10, tenant=TENANT), work.made(1, ordinal=1, tenant=OTHER)]
    assert isinstance(work.end(both), Completed)


def test_no_tenant_gets_what_another_had() -> None:
    work = Work(segment(1, tenant=TENANT), segment(2, tenant=OTHER))
    moved = [work.made(11, tenant=TENANT), work.made(9, ordinal=1, tenant=OTHER)]
    assert work.refused(moved) is Refusal.SHARE
    invented = [
        work.made(9, tenant=TENANT),
        work.made(10, ordinal=1, tenant=OTHER),
        work.made(1, ordinal=2, tenant=TenantId("initech")),
    ]
    assert work.refused(invented) is Refusal.SHARE


def on_day(meta: BlockMeta, day: int) -> BlockMeta:
    """The same output, a day's, wherever it has been before."""
    times = {"min_time_ns": day * DAY_NS, "max_time_ns": day * DAY_NS + SECOND_NS}
    stem = meta.files[0].locations[0].key.rpartition("/")[2].removesuffix(".parquet")
    files = tuple(
        msgspec.structs.replace(
            file,
            locations=(
                Location(
                    meta.store,
                    keys.table(name=file.table, tenant=meta.tenant, day=day, stem=stem),
                ),
            ),
        )
        for file in meta.files
    )
    return msgspec.structs.replace(meta, day=day, files=files, **times)


def test_from_level_1_on_no_day_becomes_another() -> None:
    lake = Lake()
    (first,) = lake.add(1)
    one = lake.merge([first])
    plan = lake.schedule([one])
    token = lake.lease(plan)
    made = output(plan, token, (one,), profiles=one.profiles, level=2)
    wrong = on_day(made, made.day + 1)
    (effect,) = lake.complete(plan, token, wrong)
    assert isinstance(effect, Refused)
    (effect,) = lake.complete(plan, token, made)
    assert isinstance(effect, Completed)


# ── an output has its files, under its own keys ────────────────────────────────────────────────


def changed(meta: BlockMeta, which: int, /, **how: object) -> BlockMeta:
    files = list(meta.files)
    files[which] = msgspec.structs.replace(files[which], **how)
    return msgspec.structs.replace(meta, files=tuple(files))


@pytest.mark.parametrize(
    "spoil",
    [
        lambda meta: msgspec.structs.replace(meta, files=()),
        lambda meta: msgspec.structs.replace(meta, files=meta.files[:4]),
        lambda meta: msgspec.structs.replace(meta, files=(*meta.files, meta.files[0])),
        lambda meta: changed(meta, 1, table="samples"),
        lambda meta: changed(meta, 2, size=0),
        lambda meta: changed(meta, 3, locations=()),
        lambda meta: changed(
            meta, 4, locations=(Location(StoreName("far"), meta.files[4].locations[0].key),)
        ),
    ],
)
def test_an_output_that_lacks_a_file_is_refused(spoil: Callable[[BlockMeta], BlockMeta]) -> None:
    work = Work(segment(1))
    assert work.refused([spoil(work.made(10))]) is Refusal.OUTPUT_FILES


def copied_to_far(meta: BlockMeta, key: str) -> BlockMeta:
    """With a second location of each file, of which the first is this one."""
    keys = (key, *(file.locations[0].key for file in meta.files[1:]))
    copied = meta
    for place, (file, far) in enumerate(zip(meta.files, keys, strict=True)):
        locations = (*file.locations, Location(StoreName("far"), far))
        copied = changed(copied, place, locations=locations)
    return copied


def test_an_output_may_name_only_what_its_attempt_wrote_for_it() -> None:
    work = Work(segment(1))
    good, sibling = work.made(10), work.made(10, ordinal=1)
    stale = output(
        work.plan, FencingToken(work.token.incarnation, 1), work.inputs, profiles=10
    ).files[0]
    foreign = [
        sibling.files[0].locations[0].key,
        stale.locations[0].key,
        good.files[1].locations[0].key,  # of another table: two files with one key
        good.files[0].locations[0].key.replace("/tenant=acme/", "/tenant=globex/"),
        good.files[0].locations[0].key.replace(f"{good.id}-", f"{good.id}-0.1-"),
        good.files[0].locations[0].key.replace(".parquet", "/x.parquet"),
        f"{good.files[0].locations[0].key.rpartition('-')[0]}-.parquet",  # of no task
        segment(1).files[0].locations[0].key,
        "samples.parquet",
        "",
    ]
    for key in foreign:
        spoiled = changed(good, 0, locations=(Location(good.store, key),))
        assert work.refused([spoiled]) is Refusal.OUTPUT_KEY, key
        assert work.refused([copied_to_far(good, key)]) is Refusal.OUTPUT_KEY, key
    assert isinstance(work.end([good]), Completed)


def test_a_block_is_of_the_day_of_its_profiles() -> None:
    work = Work(segment(1))
    made = msgspec.structs.replace(work.made(10), day=10**12)
    assert work.refused([made]) is Refusal.OUTPUT_KEY


# ── a segment names its own object ─────────────────────────────────────────────────────────────


def test_a_segment_of_a_log_that_is_not_this_one_is_refused() -> None:
    fold = Fold()
    (effect,) = fold.put(BlocksAdded((segment(1, life=STRANGER),)))
    assert isinstance(effect, Registered)
    assert "not its own" in effect.refusal


def test_segments_that_cut_off_writers_wrote_in_a_former_life_are_taken() -> None:
    fold = Fold()
    former = fold.state.incarnation
    fold.put(Reincarnated(Incarnation("0badcaff"), ()))
    assert former in fold.state.former
    (effect,) = fold.put(BlocksAdded((segment(1, life=former),)))
    assert effect == Registered(segment(1).id, "", 10)


def test_no_two_blocks_own_an_object() -> None:
    """By grammar: a key names its block, so a second owner would have the id of the first."""
    fold = Fold()
    first, second = segment(1), segment(2)
    fold.put(BlocksAdded((first,)))
    thief = msgspec.structs.replace(second, files=first.files)
    (effect,) = fold.put(BlocksAdded((thief,)))
    assert isinstance(effect, Registered)
    assert "not its own" in effect.refusal
    assert fold.live() == {first.id}


def test_what_is_adopted_names_its_own_objects_of_a_life_that_is_adopted() -> None:
    fold = Fold()
    life = fold.state.incarnation
    fold.put(Reincarnated(Incarnation("0badcaff"), ()))
    sources = (segment(1),)
    good = output(PlanId(3, 0), FencingToken(life, 4), sources, profiles=10)
    stranger = output(PlanId(3, 0), FencingToken(STRANGER, 4), sources, profiles=10)
    thief = changed(good, 0, locations=(Location(good.store, sources[0].files[0].table),))
    bare = msgspec.structs.replace(good, files=())
    for bad in (stranger, thief, bare, segment(2, life=STRANGER)):
        (effect,) = fold.put(BlocksAdopted((bad,)))
        assert isinstance(effect, Adopted)
        assert effect.refusal, bad
    assert fold.put(BlocksAdopted((good,))) == (Adopted(good.id, "", 10),)


def test_a_letter_about_an_object_that_is_not_its_own_waits_for_a_person() -> None:
    fold = Fold()
    meta = msgspec.structs.replace(segment(1), files=segment(2).files)
    bare = msgspec.structs.replace(segment(1), files=())
    for bad in (meta, bare):
        letter = FoundLetter(ObjectInfo("dlq/x", 1), "x", bad)
        assert verdict(fold.state, letter, now=LeaseTime(0)).fate is Fate.HELD
        fold.state.registration_floor = LeaseTime(10)
        assert not second_chance(fold.state, letter, now=LeaseTime(0))
        fold.state.registration_floor = LeaseTime(-1)
