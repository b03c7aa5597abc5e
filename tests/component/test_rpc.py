"""Roles in different processes: answers, errors and restarts over a real socket."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, ClassVar, Protocol

import pytest

from maar.adapters.rpc import (
    MESSAGE_BYTES_MAX,
    Channel,
    MetastoreClient,
    RpcServer,
    serve_metastore,
    serve_query,
)
from maar.adapters.rpc.server import WholeMetastore
from maar.model import errors
from maar.model.ids import ANONYMOUS, BlockId, Incarnation, PlanId, ProfileId, WorkerId
from maar.model.time import LeaseTime, TimeRange
from maar.ports.calls import Call
from maar.ports.metastore.log_time import GetNow, Now
from maar.ports.operator.operator import GetBlock
from maar.ports.plans.board import PollReply, PollRequest, Renewal
from maar.ports.reader.query import DrawFlameGraph, FlameGraph, GetProfile, QueryEngine, Scope
from maar.ports.role import GetMetrics, GetReadiness
from support.network.cut import lines
from support.oracles.graphs import graph_of

pytestmark = pytest.mark.component

WHEN = TimeRange(0, 10)


class OneAnswer:
    """A metastore that can tell the time, and what it was told to raise."""

    def __init__(self, error: Exception | None = None, delay_s: float = 0.0) -> None:
        self.error = error
        self.delay_s = delay_s

    async def now(self) -> Now:
        await asyncio.sleep(self.delay_s)
        if self.error is not None:
            raise self.error
        return Now(Incarnation("00c0ffee"), LeaseTime(5), 7)

    async def poll(self, request: PollRequest) -> PollReply:
        return PollReply((), (), ()) if request.worker == "w" and not request.renewals else _never()

    async def profile(self, request: GetProfile) -> bytes:
        return f"{request.tenant} {request.profile.hex()} {request.hint.end_ns}".encode()

    async def flamegraph(self, request: DrawFlameGraph) -> FlameGraph:
        most = request.max_nodes
        return graph_of((request.profile_type, request.scope.tenant), [(0, most, 1, 0)], most, 1)


class Steady:
    async def metrics(self) -> str:
        return "maar_up 1\n"

    async def ready(self) -> str:
        return "still reading the log"


def _never() -> PollReply:
    raise AssertionError("the request arrived changed")


def address_in(directory: Path) -> str:
    return f"unix:{directory}/role.sock"


def as_metastore(target: Any) -> WholeMetastore:
    return target  # type: ignore[no-any-return]


def as_engine(target: Any) -> QueryEngine:
    return target  # type: ignore[no-any-return]


def with_metastore(
    directory: Path,
    target: OneAnswer,
    use: Callable[[MetastoreClient], Awaitable[None]],
    *,
    deadline_s: float = 60.0,
    message_bytes_max: int = MESSAGE_BYTES_MAX,
) -> None:
    """By frames, and by gRPC."""

    async def run(address: str) -> None:
        server = await serve_metastore(
            address,
            as_metastore(target),
            Steady(),
            message_bytes_max=message_bytes_max,
        )
        if server.port:
            address = f"127.0.0.1:{server.port}"
        client = MetastoreClient(address, deadline_s=deadline_s)
        try:
            await use(client)
        finally:
            await client.close()
            await server.stop(0)

    for address in (address_in(directory), "127.0.0.1:0"):
        asyncio.run(run(address))


def test_a_slow_handshake_is_waited_for() -> None:
    """As a busy machine has them; we gave up after 50 ms, and said that nobody was there."""

    async def ask(address: str) -> None:
        client = MetastoreClient(address, deadline_s=60.0)
        try:
            assert (await client.call(GetNow())).index == 7
        finally:
            await client.close()

    async def run() -> None:
        server = await serve_metastore("127.0.0.1:0", as_metastore(OneAnswer()), Steady())
        try:
            with lines() as opened:
                line = opened.open(f"127.0.0.1:{server.port}")
                line.delay(0.2)
                await ask(line.address)
        finally:
            await server.stop(0)

    asyncio.run(run())


def test_values_arrive_as_they_were_sent(tmp_path: Path) -> None:
    async def use(client: MetastoreClient) -> None:
        assert await client.call(GetNow()) == Now(Incarnation("00c0ffee"), LeaseTime(5), 7)
        assert await client.call(PollRequest(WorkerId("w"), 2)) == PollReply((), (), ())

    with_metastore(tmp_path, OneAnswer(), use)


@pytest.mark.parametrize(
    "error",
    [
        errors.NotFound("no plan 3.0"),
        errors.Overloaded("the queue holds 100 000 plans; back off"),
        errors.StoreFull("no room: ¾ of a disk is not a whole one"),
        errors.OutcomeUnknown("the append may have happened"),
        errors.LeaseLost("plan 3.0 is no longer yours"),
        errors.Corrupt("entry 12 does not follow entry 11"),
        errors.InvalidInput("the range is upside down", reason="range"),
        errors.MalformedProfile("not a profile"),
        errors.TooLarge("too large"),
        errors.Unavailable("the store does not answer"),
        errors.Draining("about to end"),
        errors.Overloaded("full", retry_after_s=2.5),
        errors.Unavailable("away", retry_after_s=0.125),
    ],
    ids=lambda error: type(error).__name__,
)
def test_an_error_keeps_its_class_and_sentence(tmp_path: Path, error: errors.MaarError) -> None:
    async def use(client: MetastoreClient) -> None:
        with pytest.raises(errors.MaarError) as caught:
            await client.call(GetNow())
        assert type(caught.value) is type(error)
        assert str(caught.value) == str(error)
        assert getattr(caught.value, "reason", "") == getattr(error, "reason", "")
        wait_s = getattr(error, "retry_after_s", None)
        assert getattr(caught.value, "retry_after_s", None) == wait_s

    with_metastore(tmp_path, OneAnswer(error), use)


class Choked(errors.Overloaded):
    """As a stage may call what only it can say."""


class Unpronounceable(errors.MalformedProfile):
    """With a reason, two classes away from what callers know by heart."""


class StoreFull(errors.Retryable):
    """Has the name of another."""


class OfItsOwn(errors.MaarError):
    """Nothing but one of ours."""


@pytest.mark.parametrize(
    ("error", "known"),
    [
        (Choked("the pipe is full", retry_after_s=1.5), errors.Overloaded),
        (Unpronounceable("not a profile", reason="letters"), errors.MalformedProfile),
        (StoreFull("a store of another kind"), errors.Retryable),
        (OfItsOwn("nobody knows"), errors.MaarError),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_an_error_of_a_class_that_callers_do_not_know_arrives_as_the_nearest_that_they_do(
    tmp_path: Path, error: errors.MaarError, known: type[errors.MaarError]
) -> None:
    async def use(client: MetastoreClient) -> None:
        with pytest.raises(errors.MaarError) as caught:
            await client.call(GetNow())
        assert type(caught.value) is known
        assert str(caught.value) == str(error)
        assert getattr(caught.value, "reason", "") == getattr(error, "reason", "")
        wait_s = getattr(error, "retry_after_s", None)
        assert getattr(caught.value, "retry_after_s", None) == wait_s

    with_metastore(tmp_path, OneAnswer(error), use)


def test_whom_a_server_could_not_reach_is_no_word_about_the_server(tmp_path: Path) -> None:
    async def use(client: MetastoreClient) -> None:
        with pytest.raises(errors.Unavailable, match="the store is cut off") as caught:
            await client.call(GetNow())
        assert not isinstance(caught.value, errors.Unreachable)

    with_metastore(tmp_path, OneAnswer(errors.Unreachable("the store is cut off")), use)


@pytest.mark.parametrize("letter", ["u", "ü", "𝄞"])  # of one, two and four bytes
def test_a_sentence_too_long_for_a_header_is_cut(tmp_path: Path, letter: str) -> None:
    async def use(client: MetastoreClient) -> None:
        with pytest.raises(errors.NotFound) as caught:
            await client.call(GetNow())
        assert 500 < len(str(caught.value)) < 10_000

    with_metastore(tmp_path, OneAnswer(errors.NotFound(letter * 100_000)), use)


def test_a_fault_in_the_server_is_an_error_and_the_server_lives(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    target = OneAnswer()

    async def use(client: MetastoreClient) -> None:
        target.error = ZeroDivisionError("secret detail")
        with pytest.raises(errors.MaarError, match="bug in maar") as caught:
            await client.call(GetNow())
        assert "secret" not in str(caught.value)
        target.error = None
        assert (await client.call(GetNow())).index == 7

    with_metastore(tmp_path, target, use)
    assert "secret detail" in caplog.text


def test_a_call_past_its_deadline_is_unavailable(tmp_path: Path) -> None:
    async def use(client: MetastoreClient) -> None:
        with pytest.raises(
            errors.Unreachable, match=r"^the metastore at .* did not answer in time"
        ):
            await client.call(GetNow())

    with_metastore(tmp_path, OneAnswer(delay_s=30), use, deadline_s=0.1)


def test_nobody_at_the_address_is_unavailable_at_once(tmp_path: Path) -> None:
    async def run() -> None:
        client = MetastoreClient(address_in(tmp_path))
        async with asyncio.timeout(60):
            with pytest.raises(errors.Unreachable, match=r"^the metastore at .* cannot be reached"):
                await client.call(GetNow())
        await client.close()
        with pytest.raises(errors.Unavailable):
            await client.call(GetNow())

    asyncio.run(run())


async def finds_it(client: MetastoreClient, *, within_s: float) -> bool:
    """Whether it answers in time."""
    try:
        async with asyncio.timeout(within_s):
            while True:
                with contextlib.suppress(errors.Unavailable):
                    return (await client.call(GetNow())).index == 7
                await asyncio.sleep(0.02)
    except TimeoutError:
        return False


def test_a_client_finds_a_restarted_server_within_a_second(tmp_path: Path) -> None:
    async def run() -> None:
        address = address_in(tmp_path)
        client = MetastoreClient(address)
        server = await serve_metastore(address, as_metastore(OneAnswer()), Steady())
        for _ in range(5):  # a busy machine may be late once, or twice
            assert await finds_it(client, within_s=60)
            await server.stop(0)
            for _ in range(20):  # enough failures for a backoff to have grown
                with pytest.raises(errors.Unavailable):
                    await client.call(GetNow())
                await asyncio.sleep(0.05)
            server = await serve_metastore(address, as_metastore(OneAnswer()), Steady())
            if await finds_it(client, within_s=1.5):
                break
        else:
            raise AssertionError("it never came back within a second and a half")
        await client.close()
        await server.stop(0)

    asyncio.run(run())


def test_a_message_over_the_limit_is_too_large(tmp_path: Path) -> None:
    async def use(client: MetastoreClient) -> None:
        renewal = Renewal(PlanId(1, 0), None, False)  # type: ignore[arg-type]
        with pytest.raises(errors.TooLarge):
            await client.call(PollRequest(WorkerId("x" * 4096), 1, (renewal,)))

    with_metastore(tmp_path, OneAnswer(), use, message_bytes_max=1024)


def test_arguments_of_another_version_are_refused_with_a_sentence(tmp_path: Path) -> None:
    async def use(client: MetastoreClient) -> None:
        with pytest.raises(errors.InvalidInput, match="another version"):
            await client.call(GetBlock(BlockId(5)))  # type: ignore[arg-type]

    with_metastore(tmp_path, OneAnswer(), use)


def test_queries_and_the_role_itself_answer_over_tcp() -> None:
    async def run() -> None:
        server: RpcServer = await serve_query("127.0.0.1:0", as_engine(OneAnswer()), Steady())
        address = f"127.0.0.1:{server.port}"
        client, role = Channel(address), Channel(address)
        graph = await client.call(
            DrawFlameGraph(Scope(ANONYMOUS, WHEN), profile_type="cpu", max_nodes=9)
        )
        assert graph == graph_of(("cpu", "anonymous"), [(0, 9, 1, 0)], 9, 1)
        body = await client.call(GetProfile(ANONYMOUS, ProfileId(b"\x01" * 16), WHEN))
        assert body == b"anonymous " + b"01" * 16 + b" 10"
        assert await role.call(GetMetrics()) == "maar_up 1\n"
        assert await role.call(GetReadiness()) == "still reading the log"
        await client.close()
        await role.close()
        await server.stop(0)

    asyncio.run(run())


def test_a_port_has_one_server() -> None:
    """Else another lake's metastore would get half of the calls."""

    async def scenario() -> None:
        server = await serve_query("127.0.0.1:0", as_engine(OneAnswer()), Steady())
        try:
            with pytest.raises(errors.Unavailable, match="another process may hold it"):
                await serve_query(f"127.0.0.1:{server.port}", as_engine(OneAnswer()), Steady())
        finally:
            await server.stop()

    asyncio.run(scenario())


class Echo(Protocol):
    async def echo(self, text: str) -> str: ...


class Repeat(Call[Echo, str], frozen=True):
    wire_service: ClassVar[str] = "maar.Echo"
    text: str

    def answer(self, port: Echo) -> Awaitable[str]:
        return port.echo(self.text)


class Echoing:
    def __init__(self) -> None:
        self.asked = asyncio.Event()
        self.cancelled = asyncio.Event()

    async def echo(self, text: str) -> str:
        self.asked.set()
        if text == NEVER:
            try:
                await asyncio.Event().wait()
            finally:
                self.cancelled.set()
        return text * 2


NEVER = "never answered"


def test_a_closed_channel_ends_its_calls_with_an_error_and_cancels_no_task(tmp_path: Path) -> None:
    async def run() -> None:
        server, address, echoing = RpcServer(), address_in(tmp_path), Echoing()
        server.add((Repeat,), echoing)
        await server.start(address)
        for cancel in (False, True):
            channel = Channel(address)
            call = asyncio.create_task(channel.call(Repeat(NEVER)))
            await echoing.asked.wait()
            echoing.asked.clear()
            if cancel:
                call.cancel()
            await channel.close()
            with pytest.raises(asyncio.CancelledError if cancel else errors.Unreachable):
                await call
            assert call.cancelled() == cancel
        await server.stop(0)

    asyncio.run(run())


def test_calls_share_a_connection_and_do_not_wait_for_each_other(tmp_path: Path) -> None:
    async def run() -> None:
        server, address, echoing = RpcServer(), address_in(tmp_path), Echoing()
        server.add((Repeat,), echoing)
        await server.start(address)
        channel = Channel(address)
        slow = asyncio.create_task(channel.call(Repeat(NEVER)))
        await echoing.asked.wait()
        texts = [str(number) * (1 + 40_000 * (number % 3)) for number in range(30)]
        replies = await asyncio.gather(*(channel.call(Repeat(text)) for text in texts))
        assert replies == [text * 2 for text in texts]
        assert not slow.done()
        slow.cancel()
        with pytest.raises(asyncio.CancelledError):
            await slow
        await asyncio.wait_for(echoing.cancelled.wait(), 60)
        await channel.close()
        await server.stop(0)

    asyncio.run(run())


def test_a_process_that_ends_is_noticed_at_once_and_its_calls_are_cancelled(tmp_path: Path) -> None:
    """Either end: the other one has not to wait for a deadline."""

    async def run() -> None:
        server, address, echoing = RpcServer(), address_in(tmp_path), Echoing()
        server.add((Repeat,), echoing)
        await server.start(address)
        channel = Channel(address)
        call = asyncio.create_task(channel.call(Repeat(NEVER)))
        await echoing.asked.wait()
        await channel.close()
        await asyncio.wait_for(echoing.cancelled.wait(), 60)
        with pytest.raises(errors.Unreachable, match="closed"):
            await call
        channel = Channel(address)
        echoing.asked.clear()
        call = asyncio.create_task(channel.call(Repeat(NEVER)))
        await echoing.asked.wait()
        await server.stop(0)
        with pytest.raises(errors.Unreachable, match="cannot be reached"):
            await asyncio.wait_for(call, 60)
        await channel.close()

    asyncio.run(run())


def test_what_a_process_does_not_serve_is_said(tmp_path: Path) -> None:
    async def run() -> None:
        server, address = RpcServer(), address_in(tmp_path)
        await server.start(address)
        channel = Channel(address)
        with pytest.raises(errors.Unreachable, match=r"does not serve /maar\.Echo/Repeat"):
            await channel.call(Repeat("ab"))
        await channel.close()
        await server.stop(0)

    asyncio.run(run())


def test_a_new_call_is_a_record_and_the_method_that_answers_it(tmp_path: Path) -> None:
    async def run() -> None:
        server, address = RpcServer(), address_in(tmp_path)
        server.add((Repeat,), Echoing())
        await server.start(address)
        channel = Channel(address)
        assert await channel.call(Repeat("ab")) == "abab"
        await channel.close()
        await server.stop(0)

    asyncio.run(run())
