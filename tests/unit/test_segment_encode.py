"""A dataset that cannot be written fails its own pushes, and nobody else's."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import msgspec
import pytest

from maar.block.format.segment import SegmentBytes, write_segment
from maar.model.errors import InvalidInput, Unavailable
from maar.model.profile import RawProfile
from maar.segment import encode
from maar.segment.encode import DatasetName, encode_profiles
from support.segment.writer_in_memory import ONE, World, in_world, raw_profile

BROKEN = raw_profile(9, service="\ud800")  # no UTF-8 has it
SHOP, CART = raw_profile(1), raw_profile(2, service="cart")


def test_what_can_be_written_is_written_in_one_go() -> None:
    segment, failed = encode_profiles([SHOP, CART])
    assert segment is not None
    assert (segment.profiles, failed) == (2, {})


@pytest.mark.parametrize(
    "broken",
    [
        BROKEN,
        msgspec.structs.replace(raw_profile(9, service="odd"), time_ns=1 << 63),
        msgspec.structs.replace(raw_profile(9, service="odd"), id=b"short"),
        msgspec.structs.replace(raw_profile(9, service="odd"), types=(7,)),
    ],
)
def test_a_broken_dataset_is_left_out_and_named(broken: RawProfile) -> None:
    segment, failed = encode_profiles([SHOP, broken, CART])
    assert segment is not None
    assert [dataset.service for dataset in segment.datasets] == ["cart", "shop"]
    (name,) = failed
    assert name == DatasetName(broken.tenant, broken.service)
    assert isinstance(failed[name], InvalidInput)


def test_when_all_are_broken_there_is_no_segment() -> None:
    assert encode_profiles([BROKEN]).segment is None


def test_a_failure_that_is_no_datasets_own_blames_none(monkeypatch: pytest.MonkeyPatch) -> None:
    def picky(profiles: Sequence[RawProfile], **_: object) -> SegmentBytes:
        if len(profiles) > 1:
            raise RuntimeError("not together")
        return write_segment(profiles)

    monkeypatch.setattr(encode, "write_segment", picky)
    with pytest.raises(RuntimeError, match="not together"):
        encode_profiles([SHOP, CART])


def test_only_the_pushes_of_the_broken_dataset_fail() -> None:
    async def story(world: World) -> None:
        answers = await asyncio.gather(
            world.service.push(ONE, (SHOP,)),
            world.service.push(ONE, (BROKEN,)),
            world.service.push(ONE, (CART,)),
            world.service.push(ONE, (raw_profile(3), BROKEN)),
            return_exceptions=True,
        )
        kinds = [type(answer) for answer in answers]
        assert kinds == [type(None), InvalidInput, type(None), InvalidInput]
        assert {one.id for one in world.stored_profiles()} >= {SHOP.id, CART.id}

    world = in_world(story)
    assert world.value("datasets_failed_total") == 1
    assert world.value("written_total") == 1


def test_a_segment_of_nothing_but_broken_ones_is_an_answer_too() -> None:
    async def story(world: World) -> None:
        with pytest.raises(InvalidInput, match="cannot be written"):
            await world.service.push(ONE, (BROKEN,))
        assert world.store.objects == {}

    assert in_world(story).value("written_total") == 0


def test_without_memory_nobody_is_blamed(monkeypatch: pytest.MonkeyPatch) -> None:
    def starved(*_: object, **__: object) -> SegmentBytes:
        raise MemoryError

    monkeypatch.setattr(encode, "write_segment", starved)

    async def story(world: World) -> None:
        with pytest.raises(Unavailable):
            await world.service.push(ONE, (SHOP,))

    in_world(story)
