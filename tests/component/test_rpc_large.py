"""Views larger than a message may be: whole, in parts, and never half."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import grpc.aio
import msgspec
import pytest

from maar.adapters.rpc import (
    MESSAGE_BYTES_MAX,
    MetastoreClient,
    RpcServer,
    serve_metastore,
)
from maar.adapters.rpc.parts import PART_BYTES, Joined, split
from maar.adapters.rpc.server import whole_name
from maar.model import errors
from maar.model.block import BlockMeta, Dataset
from maar.model.ids import ANONYMOUS, BlockId
from maar.model.time import TimeRange
from maar.ports.operator.operator import ListBlocks
from maar.ports.reader.index import IndexView, ViewRequest
from support.metastore.fold import TENANT, segment

pytestmark = pytest.mark.component

WANTED = ViewRequest(ANONYMOUS, TimeRange(0, 10))
SMALL = tuple(segment(n) for n in range(3))


def many(count: int) -> tuple[BlockMeta, ...]:
    """As large as segments of 20 services are."""
    types = ("process_cpu:cpu:nanoseconds:cpu:nanoseconds",)
    services = tuple(
        Dataset(TENANT, f"service-{n}", types, 1 << 60, 1 << 60, 10, 1 << 30, n, 1)
        for n in range(20)
    )
    one = msgspec.structs.replace(segment(1), datasets=services)
    return tuple(msgspec.structs.replace(one, id=BlockId(f"{n:032x}")) for n in range(count))


class Viewed:
    """A metastore that knows one view, and can be told to fail."""

    def __init__(self, view: IndexView, error: Exception | None = None) -> None:
        self._view = view
        self._error = error

    async def view(self, request: ViewRequest) -> IndexView:
        assert request == WANTED
        if self._error is not None:
            raise self._error
        return self._view

    async def blocks(self, *, level: int, tenant: str, limit: int) -> tuple[BlockMeta, ...]:
        assert (level, tenant) == (-1, "")
        return self._view.blocks[:limit]

    async def metrics(self) -> str:
        return ""

    async def ready(self) -> str:
        return ""


async def serving(address: str, role: Viewed) -> tuple[RpcServer, str]:
    server = await serve_metastore(address, role, role)  # type: ignore[arg-type]
    return server, f"127.0.0.1:{server.port}" if server.port else address


def by_frames(directory: Path) -> str:
    return f"unix:{directory / 's'}"


BY_GRPC = "127.0.0.1:0"


def test_a_view_larger_than_a_message_arrives_whole(tmp_path: Path) -> None:
    view = IndexView(7, many(60_000), (BlockId("0f" * 16),))
    assert sum(map(len, split(view, "blocks"))) > MESSAGE_BYTES_MAX

    async def run(address: str) -> None:
        server, address = await serving(address, Viewed(view))
        client = MetastoreClient(address, deadline_s=60)
        try:
            assert await client.call(WANTED) == view
            assert await client.call(ListBlocks(limit=50_000)) == view.blocks[:50_000]
        finally:
            await client.close()
            await server.stop(0)

    for address in (by_frames(tmp_path), BY_GRPC):
        asyncio.run(run(address))


def test_a_reply_by_grpc_that_grows_is_made_in_vain_once_and_that_shrinks_never() -> None:
    class Growing(Viewed):
        asked = 0

        async def view(self, request: ViewRequest) -> IndexView:
            self.asked += 1
            return await super().view(request)

        def show(self, count: int) -> IndexView:
            self._view = IndexView(count, many(count))
            return self._view

    async def run() -> None:
        role = Growing(IndexView(1, ()))
        server, address = await serving(BY_GRPC, role)
        client = MetastoreClient(address)
        asked = []
        for count in (0, 2, 900, 900, 2, 2, 0):
            view = role.show(count)
            assert await client.call(WANTED) == view
            asked.append(role.asked)
        assert asked == [1, 2, 4, 5, 6, 7, 8], "the first large one is asked for twice"
        await client.close()
        await server.stop(0)

    asyncio.run(run())


def test_no_part_is_much_larger_than_it_may_be() -> None:
    """Or the leader's loop would stand still while it is made."""
    messages = list(split(IndexView(7, many(2_000)), "blocks"))
    row = len(msgspec.msgpack.encode(many(1)[0]))
    assert max(map(len, messages)) <= PART_BYTES + row + 5
    assert len(messages) > 10


@pytest.mark.parametrize("count", [0, 1, 700])
def test_parts_make_the_reply_that_they_were(count: int) -> None:
    view = IndexView(9, many(count), (BlockId("0f" * 16),))
    joined: Joined[IndexView] = Joined(ViewRequest)
    rows: Joined[tuple[BlockMeta, ...]] = Joined(ListBlocks)
    assert joined.reply() is None
    for message in split(view, "blocks"):
        joined.take(message)
    for message in split(view.blocks, ""):
        rows.take(message)
    assert joined.reply() == view
    assert rows.reply() == view.blocks


def test_a_refusal_keeps_its_class(tmp_path: Path) -> None:
    async def run() -> None:
        failing = Viewed(IndexView(7, ()), errors.Overloaded("too many", retry_after_s=3.0))
        server, address = await serving(by_frames(tmp_path), failing)
        client = MetastoreClient(address)
        with pytest.raises(errors.Overloaded, match="too many") as caught:
            await client.call(WANTED)
        assert caught.value.retry_after_s == 3.0
        await client.close()
        await server.stop(0)

    asyncio.run(run())


def test_a_reply_that_stops_in_the_middle_is_asked_of_another() -> None:
    """One replica dies after its first part, one never sends its second: nobody gets half."""

    async def run() -> None:
        view = IndexView(7, SMALL)
        (first,) = split(IndexView(7, SMALL[:1]), "blocks")

        async def dying(_: bytes, context: Any) -> Any:
            yield first
            await context.abort(grpc.StatusCode.UNAVAILABLE, "gone")

        async def hanging(_: bytes, context: Any) -> Any:
            del context
            yield first
            await asyncio.sleep(60)

        async def nothing(_: bytes, context: Any) -> bytes:
            del context
            return b""

        in_parts = grpc.unary_unary_rpc_method_handler(nothing)
        servers, addresses = [], []
        for answer in (dying, hanging):
            server = grpc.aio.server()
            handler = grpc.unary_stream_rpc_method_handler(answer)
            handlers = {ViewRequest.__name__: handler, whole_name(ViewRequest): in_parts}
            server.add_generic_rpc_handlers(
                (grpc.method_handlers_generic_handler("maar.Metastore", handlers),)
            )
            addresses.append(f"127.0.0.1:{server.add_insecure_port(BY_GRPC)}")
            await server.start()
            servers.append(server)
        good, address = await serving(BY_GRPC, Viewed(view))
        client = MetastoreClient(",".join([*addresses, address]), deadline_s=20)
        assert await client.call(WANTED) == view
        await client.close()
        alone = MetastoreClient(addresses[1], deadline_s=0.5)
        with pytest.raises(errors.Unreachable, match="did not answer in time"):
            await alone.call(WANTED)
        await alone.close()
        await good.stop(0)
        for server in servers:
            await server.stop(0)

    asyncio.run(run())
