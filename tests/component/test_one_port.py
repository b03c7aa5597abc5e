"""Agents push by HTTP/1.1 and by gRPC to the same port, through one handler."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import grpc
import grpc.aio
import httpx
import pytest

from maar.api.protocol.grpc import RetryInfo, RpcStatus
from maar.api.settings import ApiSettings
from maar.app.http.gate import PortBounds
from maar.app.http.http2_frames import PREFACE
from maar.distributor.settings import Limits
from maar.model.errors import MaarError, Overloaded, StoreFull, Unavailable
from maar.model.ids import Shard
from maar.model.profile import RawProfile
from support.http.front import Front
from support.http.port import PATIENCE_S, PUSH, Port, call_push, request, run_story, until
from support.http.pushed import gz, pprof

pytestmark = [pytest.mark.component, pytest.mark.timeout(120)]

GZIP = grpc.Compression.Gzip
DETAILS = "grpc-status-details-bin"


# ------------------------------------------------------------------ one handler


def test_a_push_by_grpc_is_the_same_as_by_http() -> None:
    async def story(port: Port) -> None:
        call = await port.push(request("a", "b"), tenant="acme")
        ids = dict(await call.initial_metadata())["maar-profile-ids"]
        async with httpx.AsyncClient(trust_env=False, verify=False) as client:
            reply = await client.post(
                f"http://127.0.0.1:{port.number}{PUSH}",
                content=request("a", "b"),
                headers={"content-type": "application/proto", "x-scope-orgid": "acme"},
            )
        assert reply.headers["maar-profile-ids"] == ids

    front = run_story(story)
    assert len(front.writer.profiles()) == 4
    assert {one.tenant for one in front.writer.profiles()} == {"acme"}


def test_without_a_tenant_it_is_anonymous() -> None:
    async def story(port: Port) -> None:
        await port.push(request())

    assert [one.tenant for one in run_story(story).writer.profiles()] == ["anonymous"]


def test_two_tenants_in_one_call_are_refused() -> None:
    async def story(port: Port) -> None:
        async with port.channel() as channel:
            twice = (("x-scope-orgid", "proxy"), ("x-scope-orgid", "client"))
            with pytest.raises(grpc.aio.AioRpcError, match="2 X-Scope-OrgID headers") as caught:
                await channel.unary_unary(PUSH)(request(), metadata=twice, timeout=PATIENCE_S)
            assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT

    assert run_story(story).writer.stored == []


@pytest.mark.parametrize(("wrapped", "compression"), [(request(), GZIP), (gz(request()), None)])
def test_messages_may_be_gzip_by_the_protocol_or_by_themselves(
    wrapped: bytes, compression: Any
) -> None:
    async def story(port: Port) -> None:
        await port.push(wrapped, compression=compression)

    assert len(run_story(story).writer.profiles()) == 1


def test_a_large_push_arrives_whole() -> None:
    """Many chunks, and more than the buffers between the two sockets hold."""
    labels = [f"f{number}" * 40 for number in range(60_000)]
    body = pprof(functions=labels[:4000])
    names = [f"s{number}" for number in range(24)]

    async def story(port: Port) -> None:
        assert len(request(*names, body=body)) > 8 << 20
        await port.push(request(*names, body=body))

    assert len(run_story(story).writer.profiles()) == len(names)


# ------------------------------------------------------------------ errors


@pytest.mark.parametrize(
    ("body", "tenant", "code", "sentence"),
    [
        (request(), "no/slash", grpc.StatusCode.INVALID_ARGUMENT, "tenant 'no/slash'"),
        (b"\xff\xff\xff", "", grpc.StatusCode.INVALID_ARGUMENT, "protobuf"),
        (b"\x1f\x8bjunk", "", grpc.StatusCode.INVALID_ARGUMENT, "gzip"),
        (b"", "", grpc.StatusCode.INVALID_ARGUMENT, "no profile"),
        (request(body=b"junk"), "", grpc.StatusCode.INVALID_ARGUMENT, ""),
    ],
)
def test_what_can_never_succeed_has_a_sentence_and_no_retry(
    body: bytes, tenant: str, code: Any, sentence: str
) -> None:
    async def story(port: Port) -> None:
        error = await port.refusal_of(body, tenant=tenant)
        assert error.code() is code
        assert sentence in (error.details() or "")
        assert not dict(error.trailing_metadata() or ())

    front = run_story(story)
    assert front.writer.stored == []
    route = f"grpc:{PUSH}"
    counted = front.registry.collect()
    errors = [s for f in counted if f.name == "maar_api_errors" for s in f.samples]
    assert any(s.labels["route"] == route and s.value == 1 for s in errors)


@pytest.mark.parametrize(
    ("failure", "code", "wait_s"),
    [
        (Overloaded("full", retry_after_s=2.5), grpc.StatusCode.RESOURCE_EXHAUSTED, 2.5),
        (Unavailable("away"), grpc.StatusCode.UNAVAILABLE, 1.0),
        (StoreFull("no room — at all"), grpc.StatusCode.UNAVAILABLE, 1.0),
    ],
)
def test_what_may_succeed_later_says_when(failure: MaarError, code: Any, wait_s: float) -> None:
    front = Front()
    front.writer.failure = failure

    async def story(port: Port) -> None:
        error = await port.refusal_of(request())
        assert (error.code(), error.details()) == (code, str(failure))
        trailer: dict[str, Any] = dict(error.trailing_metadata() or ())
        assert float(trailer["retry-after"]) == wait_s
        status = RpcStatus.FromString(trailer[DETAILS])
        assert (status.code, status.message) == (code.value[0], str(failure))
        (detail,) = status.details
        assert detail.type_url == "type.googleapis.com/google.rpc.RetryInfo"
        delay = RetryInfo.FromString(detail.value).retry_delay
        assert delay.seconds + delay.nanos / 1e9 == wait_s

    run_story(story, front)


def test_a_message_over_the_limit_is_refused_as_it_comes_and_unpacked() -> None:
    front = Front(api=ApiSettings(body_bytes_max=100_000, request_bytes_max=300_000))

    async def story(port: Port) -> None:
        for body, compression in ((bytes(100_001), None), (bytes(400_000), GZIP)):
            error = await port.refusal_of(body, compression=compression)
            assert error.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
            assert DETAILS not in dict(error.trailing_metadata() or ())
        swelling = request(body=pprof(functions=[letter * 60_000 for letter in "abc"]))
        assert 100_000 < len(swelling) < 300_000
        await port.push(swelling, compression=GZIP)  # small as it comes, as by HTTP

    run_story(story, front)
    assert len(front.writer.profiles()) == 1


def test_all_requests_together_have_one_budget_whatever_door_they_came_through() -> None:
    front = Front(api=ApiSettings(reading_bytes_max=50))

    async def story(port: Port) -> None:
        error = await port.refusal_of(request())
        assert error.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert "requests being read" in (error.details() or "")

    run_story(story, front)


def test_a_tenant_over_its_rate_hears_it_by_grpc_too() -> None:
    front = Front(limits=Limits(rate_bytes=len(pprof())))

    async def story(port: Port) -> None:
        await port.push(request(), tenant="acme")
        error = await port.refusal_of(request(), tenant="acme")
        assert error.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert "tenant acme" in (error.details() or "")
        await port.push(request(), tenant="other")

    run_story(story, front)


def test_a_sentence_with_any_characters_and_length_arrives() -> None:
    front = Front()
    front.writer.failure = Unavailable("schön\n% " + "ü" * 20_000)

    async def story(port: Port) -> None:
        error = await port.refusal_of(request())
        assert error.code() is grpc.StatusCode.UNAVAILABLE
        assert (error.details() or "").startswith("schön\n% üü")

    run_story(story, front)


def test_a_fault_of_ours_is_told_without_its_secrets_and_ends_nobody() -> None:
    front = Front()
    front.writer.failure = RuntimeError("password=hunter2")  # type: ignore[assignment]

    async def story(port: Port) -> None:
        error = await port.refusal_of(request())
        assert error.code() is grpc.StatusCode.INTERNAL
        assert "hunter2" not in (error.details() or "")
        front.writer.failure = None
        await port.push(request())

    run_story(story, front)


def test_a_method_that_is_not_there_is_told_so() -> None:
    async def story(port: Port) -> None:
        async with port.channel() as channel:
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await channel.unary_unary("/push.v1.PusherService/Pull")(b"")
        assert caught.value.code() is grpc.StatusCode.UNIMPLEMENTED

    run_story(story)


# ------------------------------------------------------------------ connections


def test_many_connections_of_both_kinds_at_once() -> None:
    async def story(port: Port) -> None:
        pushes = [port.push(request(f"s{number}")) for number in range(100)]
        asked = [port.get("/healthz") for _ in range(100)]
        replies = await asyncio.gather(*pushes, *asked)
        assert all(reply.status_code == 200 for reply in replies[100:])
        replies.clear()  # a call that is remembered keeps its connection
        await until(lambda: not port.http_server.server_state.connections)  # all hung up

    assert len(run_story(story).writer.profiles()) == 100


def test_many_calls_on_one_connection() -> None:
    async def story(port: Port) -> None:
        async with port.channel() as channel:
            calls = (call_push(channel, request(f"s{number}")) for number in range(500))
            await asyncio.gather(*calls)

    assert len(run_story(story).writer.profiles()) == 500


def test_a_client_that_hangs_up_in_mid_call_loses_nothing_that_others_count() -> None:
    front = Front()
    gate = asyncio.Event()
    begun = asyncio.Event()

    async def push(shard: Shard, profiles: tuple[RawProfile, ...]) -> None:
        begun.set()
        await gate.wait()
        front.writer.stored += [(shard, profile) for profile in profiles]

    front.writer.push = push  # type: ignore[method-assign]

    async def story(port: Port) -> None:
        async with port.channel() as channel:
            call = asyncio.create_task(call_push(channel, request()))
            await asyncio.wait_for(begun.wait(), PATIENCE_S)
            call.cancel()
            await asyncio.gather(call, return_exceptions=True)
        assert front.door.budget.held > 0  # as long as its bytes are held, they count
        gate.set()
        await until(lambda: front.door.budget.held == 0)
        assert len(front.writer.stored) == 1

    run_story(story, front)


def test_calls_that_say_nothing_do_not_keep_others_out() -> None:
    front = Front(bounds=PortBounds(streams_max=2), body_read_s=0.5)

    async def nothing() -> AsyncIterator[bytes]:
        await asyncio.Event().wait()
        yield b""

    async def story(port: Port) -> None:
        async with port.channel() as channel:
            silent = [channel.stream_unary(PUSH)(nothing(), timeout=PATIENCE_S) for _ in range(2)]
            for call in silent:
                with pytest.raises(grpc.aio.AioRpcError) as caught:
                    await asyncio.wait_for(call, PATIENCE_S)
                assert caught.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED
                assert "did not arrive" in (caught.value.details() or "")
            await call_push(channel, request())

    assert len(run_story(story, front).writer.profiles()) == 1


def test_a_call_without_a_message_is_told_so() -> None:
    async def nothing() -> AsyncIterator[bytes]:
        messages: tuple[bytes, ...] = ()
        for message in messages:
            yield message

    async def story(port: Port) -> None:
        async with port.channel() as channel:
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await channel.stream_unary(PUSH)(nothing(), timeout=PATIENCE_S)
            assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
            assert caught.value.details() == "the call has no message"

    run_story(story)


def test_when_it_ends_who_waits_is_answered_and_nobody_new_is_let_in() -> None:
    front = Front()
    gate = asyncio.Event()
    begun = asyncio.Event()

    async def push(shard: Shard, profiles: tuple[RawProfile, ...]) -> None:
        begun.set()
        await gate.wait()
        front.writer.stored += [(shard, profile) for profile in profiles]

    front.writer.push = push  # type: ignore[method-assign]

    async def story(port: Port) -> None:
        idle, _ = await port.raw()
        half, _ = await port.raw(PREFACE[:5])
        async with port.channel() as channel:
            call = asyncio.create_task(call_push(channel, request()))
            await asyncio.wait_for(begun.wait(), PATIENCE_S)
            ending = asyncio.create_task(port.stop())
            await asyncio.sleep(0.3)
            assert not ending.done()
            gate.set()
            await call
            await asyncio.wait_for(ending, PATIENCE_S)
        assert await idle.read() == b""
        assert await half.read() == b""
        with pytest.raises(OSError):
            await port.raw()

    run_story(story, front)
    assert len(front.writer.stored) == 1


def test_a_call_that_never_ends_does_not_keep_the_server() -> None:
    front = Front()
    begun = asyncio.Event()

    async def push(_shard: Shard, _profiles: tuple[RawProfile, ...]) -> None:
        begun.set()
        await asyncio.Event().wait()

    front.writer.push = push  # type: ignore[method-assign, assignment]

    async def story(port: Port) -> None:
        async with port.channel() as channel:
            call = asyncio.create_task(call_push(channel, request()))
            await asyncio.wait_for(begun.wait(), PATIENCE_S)
            await asyncio.wait_for(port.stop(), PATIENCE_S)
            with pytest.raises(grpc.aio.AioRpcError):
                await call

    run_story(story, front, drain_s=1)
