"""What the index said is kept, and asked about each time."""

from __future__ import annotations

import asyncio
from random import Random

import msgspec

from maar.model.block import BlockMeta
from maar.model.ids import TenantId
from maar.model.time import SECOND_NS, TimeRange
from maar.ports.reader.index import IndexView, ViewRequest
from maar.query.read.known_views import BLOCK_BYTES, KnownViews, round_out
from support.metastore.fold import segment

TENANT = TenantId("acme")
RANGE = TimeRange(600 * SECOND_NS, 900 * SECOND_NS)
MUCH = 1 << 20


class Index:
    """Answers as the metastore does: without blocks when the stamp is known."""

    def __init__(self) -> None:
        self.blocks: tuple[BlockMeta, ...] = (segment(1),)
        self.stamp = b"1"
        self.asked: list[ViewRequest] = []

    async def view(self, request: ViewRequest) -> IndexView:
        self.asked.append(request)
        await asyncio.sleep(0)
        index = len(self.asked)
        if request.known and request.known == self.stamp:
            return IndexView(index, (), stamp=self.stamp)
        return IndexView(index, self.blocks, stamp=self.stamp)

    def change(self, *numbers: int, stamp: bytes) -> None:
        self.blocks, self.stamp = tuple(map(segment, numbers)), stamp


def request(service: str = "", time: TimeRange = RANGE) -> ViewRequest:
    return ViewRequest(TENANT, time, service, reader="me")


def test_the_index_is_asked_each_time_and_leaves_out_what_is_known() -> None:
    async def test() -> None:
        index, views = Index(), KnownViews(MUCH)
        first = await views.ask(index.view, request())
        again = await views.ask(index.view, request())
        assert again.blocks == first.blocks == index.blocks
        assert [asked.known for asked in index.asked] == [b"", b"1"]
        assert again.index == 2

    asyncio.run(test())


def test_what_was_added_is_in_the_next_answer_and_what_is_gone_is_not() -> None:
    async def test() -> None:
        index, views = Index(), KnownViews(MUCH)
        await views.ask(index.view, request())
        for numbers, stamp in (((1, 2), b"2"), ((3,), b"3"), ((), b"0"), ((1,), b"1")):
            index.change(*numbers, stamp=stamp)
            for _ in range(2):
                view = await views.ask(index.view, request())
                assert [meta.id for meta in view.blocks] == [meta.id for meta in index.blocks]

    asyncio.run(test())


def test_an_answer_without_a_stamp_is_not_kept() -> None:
    """Something of the tenant was deleted: its masks come with every answer."""

    async def test() -> None:
        index, views = Index(), KnownViews(MUCH)
        index.stamp = b""
        for _ in range(2):
            assert (await views.ask(index.view, request())).blocks == index.blocks
        assert not views.bytes
        assert [asked.known for asked in index.asked] == [b"", b""]

    asyncio.run(test())


def test_other_services_tenants_and_ranges_are_other_questions() -> None:
    async def test() -> None:
        index, views = Index(), KnownViews(MUCH)
        other = TimeRange(RANGE.start_ns, RANGE.end_ns + 60 * SECOND_NS)
        for asked in (
            request(),
            request("shop"),
            request(time=other),
            msgspec.structs.replace(request(), tenant=TenantId("other")),
        ):
            await views.ask(index.view, asked)
        assert [asked.known for asked in index.asked] == [b""] * 4

    asyncio.run(test())


def test_a_range_that_moves_with_the_clock_is_the_same_question_for_a_while() -> None:
    moved = TimeRange(RANGE.start_ns + 7, RANGE.end_ns - 7)
    assert round_out(moved) == round_out(RANGE) == RANGE
    assert round_out(TimeRange(0, (1 << 63) - 1)) == TimeRange(0, (1 << 63) - 1)
    random = Random(1)
    for _ in range(100):
        first = random.randrange(1 << 62)
        time = TimeRange(first, first + random.randrange(1 << 50))
        wide = round_out(time)
        assert wide.start_ns <= time.start_ns <= time.end_ns <= wide.end_ns


def test_questions_that_overlap_in_time_get_their_own_blocks() -> None:
    """The index changes between two answers to one question, and back again."""

    async def test() -> None:
        index, views = Index(), KnownViews(MUCH)
        await views.ask(index.view, request())

        async def slow(asked: ViewRequest) -> IndexView:
            view = await index.view(asked)
            index.change(2, stamp=b"2")
            await views.ask(index.view, request())
            return view

        view = await views.ask(slow, request())
        assert [meta.id for meta in view.blocks] == [segment(1).id]
        (block,) = (await views.ask(index.view, request())).blocks
        assert block.id == segment(2).id

    asyncio.run(test())


def test_memory_is_bounded_and_the_least_recently_used_goes_first() -> None:
    async def test() -> None:
        index, views = Index(), KnownViews(4 * BLOCK_BYTES)
        for number in range(50):
            await views.ask(index.view, request(f"service-{number}"))
            await views.ask(index.view, request("often"))
            assert 0 < views.bytes <= views.bytes_max
        assert index.asked[-1].known == b"1"
        await views.ask(index.view, request("service-0"))
        assert index.asked[-1].known == b""
        tiny = KnownViews(100)
        await tiny.ask(index.view, request())
        assert not tiny.bytes

    asyncio.run(test())
