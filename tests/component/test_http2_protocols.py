"""HTTP/2 without TLS: every protocol reaches every service."""

from __future__ import annotations

import base64
import gzip
import json
from typing import Any

import httpx
import pytest

from maar.api.protocol.wire import (
    LabelValuesRequest,
    LabelValuesResponse,
    ProfileTypesResponse,
    PushResponse,
    SelectMergeStacktracesRequest,
)
from maar.model.errors import MaarError, Overloaded, Unavailable
from support.http.front import Front
from support.http.h2_client import (
    h2_client,
)
from support.http.h2_requests import GRPC, JSON, PROTO, QUERIER, message
from support.http.port import PUSH, Port, run_story
from support.http.port import request as push_request
from support.http.pushed import CPU

pytestmark = [pytest.mark.component, pytest.mark.timeout(120)]


def web_parts(body: bytes) -> list[tuple[int, bytes]]:
    """Flags and payloads of a gRPC-Web body."""
    parts = []
    while body:
        size = int.from_bytes(body[1:5], "big")
        parts.append((body[0], body[5 : 5 + size]))
        body = body[5 + size :]
    return parts


def trailers_in(part: bytes) -> dict[str, str]:
    lines = part.decode().strip().split("\r\n")
    return {name: value.strip() for name, _, value in (line.partition(":") for line in lines)}


def test_connect_over_h2c_pushes_and_asks() -> None:
    async def story(port: Port) -> None:
        async with h2_client(port.number) as client:
            pushed = await client.ask(PUSH, [*PROTO, ("x-scope-orgid", "acme")], push_request())
            assert (pushed.status, pushed.headers["content-type"]) == (200, "application/proto")
            assert len(pushed.headers["maar-profile-ids"]) == 32
            body = json.dumps({"name": "service_name"}).encode()
            asked = await client.ask(
                f"{QUERIER}/LabelValues", [*JSON, ("x-scope-orgid", "acme")], body
            )
            assert json.loads(asked.body) == {"names": ["shop"]}
            packed = gzip.compress(push_request("b"))
            again = await client.ask(PUSH, [*PROTO, ("content-encoding", "gzip")], packed)
            assert again.status == 200

    assert {one.tenant for one in run_story(story).writer.profiles()} == {"acme", "anonymous"}


def test_the_pages_and_health_are_there_too() -> None:
    async def story(port: Port) -> None:
        async with h2_client(port.number) as client:
            for path, status in (("/healthz", 200), ("/", 200), ("/nowhere", 404)):
                stream = client.begin(path, method="GET", end=True)
                assert (await client.answer(stream)).status == status
            stream = client.begin("/healthz", method="HEAD", end=True)
            assert (await client.answer(stream)).body == b""

    run_story(story)


def test_grpc_offers_what_connect_offers() -> None:
    asked: dict[str, tuple[Any, Any]] = {
        "ProfileTypes": (b"", ProfileTypesResponse),
        "LabelValues": (
            LabelValuesRequest(name="service_name").SerializeToString(),
            LabelValuesResponse,
        ),
        "LabelNames": (b"", None),
        "Series": (b"", None),
        "SelectMergeStacktraces": (
            SelectMergeStacktracesRequest(
                profile_typeID=CPU, label_selector="{}"
            ).SerializeToString(),
            None,
        ),
    }

    async def story(port: Port) -> None:
        await port.push(push_request())
        async with (
            port.channel() as channel,
            httpx.AsyncClient(trust_env=False, verify=False) as http,
        ):
            for name, (body, kind) in asked.items():
                got = await channel.unary_unary(f"{QUERIER}/{name}")(body, timeout=20)
                url = f"http://127.0.0.1:{port.number}{QUERIER}/{name}"
                same = await http.post(url, content=body, headers=dict(PROTO))
                assert same.status_code == 200
                assert got == same.content
                assert kind is None or kind.FromString(got).ByteSize()

    run_story(story)


def test_grpc_and_connect_mix_on_one_connection() -> None:
    async def story(port: Port) -> None:
        async with h2_client(port.number) as client:
            streams = []
            for number in range(20):
                body = push_request(f"s{number}")
                style = (PROTO, GRPC)[number % 2]
                stream = client.begin(PUSH, style)
                client.send(stream, message(body) if style is GRPC else body)
                streams.append(stream)
            answers = [await client.answer(stream) for stream in streams]
            assert [answer.status for answer in answers] == [200] * 20
            assert [one.trailers for one in answers[1::2]] == [{"grpc-status": "0"}] * 10

    assert len(run_story(story).writer.profiles()) == 20


@pytest.mark.parametrize("text", [False, True], ids=["binary", "text"])
@pytest.mark.parametrize("version", [1, 2], ids=["http1", "http2"])
def test_grpc_web_has_its_status_in_the_body(text: bool, version: int) -> None:
    kind = "application/grpc-web-text" if text else "application/grpc-web+proto"

    async def story(port: Port) -> None:
        async def called(path: str, payload: bytes) -> list[tuple[int, bytes]]:
            body = message(payload)
            if text:  # in two padded pieces, as clients that stream send it
                body = base64.b64encode(body[:5]) + base64.b64encode(body[5:])
            if version == 2:
                async with h2_client(port.number) as client:
                    answer = await client.ask(path, [("content-type", kind)], body)
                    status, said, got = answer.status, answer.headers["content-type"], answer.body
            else:
                async with httpx.AsyncClient(trust_env=False, verify=False) as http:
                    url = f"http://127.0.0.1:{port.number}{path}"
                    reply = await http.post(url, content=body, headers={"content-type": kind})
                    said, got = reply.headers["content-type"], reply.content
                    status = reply.status_code
            assert (status, said) == (200, kind)
            return web_parts(base64.b64decode(got) if text else got)

        (flags, pushed), (end, trailers) = await called(PUSH, push_request())
        assert (flags, end) == (0, 0x80)
        PushResponse.FromString(pushed)
        assert trailers_in(trailers)["grpc-status"] == "0"
        ((end, trailers),) = await called(PUSH, b"\xff\xff")
        assert (end, trailers_in(trailers)["grpc-status"]) == (0x80, "3")
        ((end, trailers),) = await called("/push.v1.PusherService/Pull", b"")
        assert (end, trailers_in(trailers)["grpc-status"]) == (0x80, "12")

    run_story(story)


@pytest.mark.parametrize(
    ("failure", "status", "code", "number"),
    [
        (Overloaded("full"), 429, "resource_exhausted", "8"),
        (Unavailable("away"), 503, "unavailable", "14"),
    ],
)
def test_an_error_has_the_code_of_each_protocol(
    failure: MaarError, status: int, code: str, number: str
) -> None:
    front = Front()
    front.writer.failure = failure

    async def story(port: Port) -> None:
        async with h2_client(port.number) as client:
            connect = await client.ask(PUSH, PROTO, push_request())
            assert connect.status == status
            assert json.loads(connect.body) == {"code": code, "message": str(failure)}
            assert connect.headers["retry-after"] == "1"
            called = await client.ask(PUSH, GRPC, message(push_request()))
            assert (called.status, called.headers["grpc-status"]) == (200, number)
            assert called.headers["grpc-message"] == str(failure)
            assert called.frames == 1  # trailers only

    run_story(story, front)


def test_what_is_not_offered_is_told_in_each_protocol() -> None:
    async def story(port: Port) -> None:
        async with h2_client(port.number) as client:
            connect = await client.ask(f"{QUERIER}/Diff", JSON, b"{}")
            assert (connect.status, json.loads(connect.body)["code"]) == (501, "unimplemented")
            assert "there are ProfileTypes," in json.loads(connect.body)["message"]
            other = await client.ask("/adhoc.v1.AdHoc/Get", PROTO, b"")
            assert (other.status, json.loads(other.body)["code"]) == (501, "unimplemented")
            called = await client.ask(f"{QUERIER}/Diff", GRPC, message(b""))
            assert called.headers["grpc-status"] == "12"
            packed = [*GRPC, ("grpc-encoding", "snappy")]
            snappy = await client.ask(PUSH, packed, message(b"x", flags=1))
            assert snappy.headers["grpc-status"] == "12"
            assert "gzip" in snappy.headers["grpc-accept-encoding"]
            half = await client.ask(PUSH, GRPC, message(push_request())[:-1])
            assert half.headers["grpc-status"] == "3"
        async with httpx.AsyncClient(trust_env=False, verify=False) as http:
            url = f"http://127.0.0.1:{port.number}{PUSH}"
            reply = await http.post(url, content=message(b""), headers=dict(GRPC[:1]))
            assert reply.status_code == 415
            assert "without HTTP/2" in reply.json()["message"]

    run_story(story)
