"""Connect Push, as the agents of today send it."""

from __future__ import annotations

import asyncio
import base64
import gzip
import json
import os
import tracemalloc
from collections.abc import Sequence
from typing import Any, cast

import pytest
from prometheus_client import CollectorRegistry

from maar.api.guard import RequestGuard
from maar.api.protocol.wire import PushRequest
from maar.api.push.pusher import pusher_service
from maar.api.settings import ApiSettings
from maar.distributor.admit import PushedProfile
from maar.distributor.service import Distributor
from maar.distributor.settings import Limits
from maar.model.errors import MaarError, Overloaded, StoreFull, Unavailable
from maar.model.ids import TenantId
from support.http.front import Front
from support.http.pushed import CPU, gz, pprof

PUSH = "/push.v1.PusherService/Push"
PROTO = {"content-type": "application/proto"}
MEMORY_TYPES = (
    ("alloc_objects", "count"),
    ("alloc_space", "bytes"),
    ("inuse_objects", "count"),
    ("inuse_space", "bytes"),
)
UUID = "8b9b5d9e-3d0f-4b6c-9a53-0f6a1f2f1a11"


def request_of(*series: tuple[dict[str, str], bytes, str]) -> bytes:
    request = PushRequest()
    for labels, body, client_id in series:
        one = request.series.add()
        for name, value in labels.items():
            one.labels.add(name=name, value=value)
        one.samples.add(raw_profile=body, ID=client_id)
    return bytes(request.SerializeToString())


def agent_1_4_request() -> bytes:
    """What pyroscope-io 1.4.0 sends with mem_enabled: two series, labels unsorted and dotted."""
    scope = {
        "otel.scope.name": "com.grafana.pyroscope/python",
        "otel.scope.version": "1.4.0",
        "process.runtime.name": "cpython",
        "process.runtime.version": "3.11.9",
    }
    cpu = {"service_name": "checkout", "region": "eu-1", **scope, "__name__": "process_cpu"}
    memory = {"service_name": "checkout", "region": "eu-1", **scope, "__name__": "memory"}
    heap = pprof(types=MEMORY_TYPES, period_type=("space", "bytes"))
    return request_of((cpu, pprof(), UUID), (memory, heap, UUID[::-1]))


def test_the_agent_of_today_is_taken_as_it_is() -> None:
    front = Front()
    reply = front.post(
        PUSH,
        content=gzip.compress(agent_1_4_request()),
        headers={
            "user-agent": "pyroscope-rs/pyspy/1.4.0 reqwest",
            "content-type": "application/proto",
            "content-encoding": "gzip",
            "authorization": "Basic dTpw",
            "x-scope-orgid": "tenantA",
            "x-extra": "1",
            "accept": "*/*",
        },
    )
    assert (reply.status_code, reply.content) == (200, b"")
    assert reply.headers["content-type"] == "application/proto"
    cpu, memory = sorted(front.writer.profiles(), key=lambda one: len(one.types))
    assert cpu.types == (CPU,)
    assert memory.types[1] == "memory:alloc_space:bytes:space:bytes"
    assert cpu.tenant == TenantId("tenantA")
    assert cpu.labels == (
        ("__name__", "process_cpu"),
        ("otel_scope_name", "com.grafana.pyroscope/python"),
        ("otel_scope_version", "1.4.0"),
        ("process_runtime_name", "cpython"),
        ("process_runtime_version", "3.11.9"),
        ("region", "eu-1"),
        ("service_name", "checkout"),
    )
    ids = reply.headers["maar-profile-ids"].split(",")
    assert set(ids) == {one.id.hex() for one in front.writer.profiles()}


class Waits:
    """A distributor that looks what is in memory while a push waits for its segment."""

    held = 0

    async def push(self, _: TenantId, pushed: Sequence[PushedProfile]) -> list[bytes]:
        await asyncio.sleep(0)
        self.held = tracemalloc.get_traced_memory()[0]
        return [bytes(one.body[:16]) for one in pushed]


def test_a_push_that_waits_has_its_bytes_in_memory_once() -> None:
    size, waits = 400_000, Waits()  # small enough for no thread
    guard = RequestGuard(ApiSettings(), CollectorRegistry())
    service = pusher_service(guard, cast(Distributor, waits))
    scope = {
        "type": "http",
        "http_version": "1.1",
        "headers": [(b"content-type", b"application/proto")],
    }

    async def receive() -> dict[str, Any]:
        body = request_of(({"service_name": "shop"}, os.urandom(size), UUID))
        return {"type": "http.request", "body": gzip.compress(body, 0), "more_body": False}

    async def send(_: Any) -> None:
        pass

    tracemalloc.start()
    try:
        asyncio.run(service.calls["Push"](scope, receive, send))
    finally:
        tracemalloc.stop()
    assert size < waits.held < 1.5 * size


def test_a_retry_of_the_agent_gets_the_same_ids() -> None:
    front = Front()
    first = front.post(PUSH, content=agent_1_4_request(), headers=PROTO)
    again = front.post(PUSH, content=gz(agent_1_4_request()), headers=PROTO)  # header lost
    assert first.headers["maar-profile-ids"] == again.headers["maar-profile-ids"]


def json_request(body: bytes) -> dict[str, Any]:
    return {
        "series": [
            {
                "labels": [{"name": "service_name", "value": "shop"}],
                "samples": [{"rawProfile": base64.b64encode(body).decode(), "ID": UUID}],
                "somethingNew": 1,
            }
        ]
    }


def test_json_and_protobuf_mean_the_same() -> None:
    front = Front()
    as_json = front.post(PUSH, json=json_request(pprof()))
    message = request_of(({"service_name": "shop"}, pprof(), UUID))
    as_proto = front.post(PUSH, content=message, headers=PROTO)
    assert (as_json.status_code, as_json.content) == (200, b"{}")
    assert as_json.headers["content-type"] == "application/json"
    assert as_json.headers["maar-profile-ids"] == as_proto.headers["maar-profile-ids"]


@pytest.mark.parametrize("encoding", ["gzip", "GZIP", ""])
def test_json_may_be_gzip(encoding: str) -> None:
    body = gz(json.dumps(json_request(gz(pprof()))).encode())
    reply = Front().post(
        PUSH,
        content=body,
        headers={"content-type": "application/json; charset=utf-8", "content-encoding": encoding},
    )
    assert reply.status_code == 200


def test_a_push_of_many_profiles_is_answered_without_ids_that_no_client_could_read() -> None:
    series = [({"service_name": f"s{n}"}, pprof(), UUID) for n in range(201)]
    reply = Front().post(PUSH, content=request_of(*series), headers=PROTO)
    assert reply.status_code == 200
    assert "maar-profile-ids" not in reply.headers


@pytest.mark.parametrize(
    ("failure", "status", "code"),
    [
        (Overloaded("too many bytes wait"), 429, "resource_exhausted"),
        (Unavailable("the metastore is away"), 503, "unavailable"),
        (StoreFull("no space left"), 503, "unavailable"),
    ],
)
def test_what_may_succeed_later_says_so(failure: Exception, status: int, code: str) -> None:
    front = Front()
    front.writer.failure = failure  # type: ignore[assignment]
    reply = front.post(PUSH, content=agent_1_4_request(), headers=PROTO)
    assert reply.status_code == status
    assert reply.json() == {"code": code, "message": str(failure)}
    assert reply.headers["retry-after"] == "1"


@pytest.mark.parametrize(
    ("failure", "said"),
    [
        (Overloaded("full", retry_after_s=12.2), "13"),
        (Unavailable("away", retry_after_s=0.2), "1"),
        (Unavailable("away", retry_after_s=2.0), "2"),
    ],
)
@pytest.mark.parametrize("url", [PUSH, "/ingest?format=pprof&name=shop"])
def test_when_to_come_again_is_what_the_error_knows(
    url: str, failure: MaarError, said: str
) -> None:
    front = Front()
    front.writer.failure = failure
    body = agent_1_4_request() if url == PUSH else pprof()
    reply = front.post(url, content=body, headers=PROTO)
    assert reply.headers["retry-after"] == said


def test_a_tenant_over_its_rate_hears_when_it_may_push_again() -> None:
    front = Front(limits=Limits(rate_bytes=len(pprof()) // 7))
    assert front.post("/ingest?format=pprof&name=shop", content=pprof()).status_code == 200
    message = request_of(({"service_name": "shop"}, pprof(), UUID))
    for url, body in ((PUSH, message), ("/ingest?format=pprof&name=shop", pprof())):
        reply = front.post(url, content=body, headers=PROTO)
        assert reply.status_code == 429
        assert reply.headers["retry-after"] == "7"
    assert front.post(PUSH, content=message, headers=PROTO | {"x-scope-orgid": "b"}).is_success


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"content-type": "application/grpc"}, 415),
        ({}, 415),
        ({"content-type": "application/proto", "content-encoding": "br"}, 415),
    ],
)
def test_what_it_does_not_speak_it_says(headers: dict[str, str], status: int) -> None:
    reply = Front().post(PUSH, content=agent_1_4_request(), headers=headers)
    assert reply.status_code == status
    assert "not read here" in reply.json()["message"]


def test_only_post_pushes() -> None:
    reply = Front().get(PUSH)
    assert reply.status_code == 405
    assert "does not take GET" in reply.json()["message"]


def test_a_bug_is_answered_in_json_and_without_its_secrets() -> None:
    class Bug(Exception):
        pass

    front = Front()
    front.writer.failure = Bug("password=hunter2")  # type: ignore[assignment]
    reply = front.post(PUSH, content=agent_1_4_request(), headers=PROTO)
    assert reply.status_code == 500
    assert reply.json()["code"] == "internal"
    assert "hunter2" not in reply.text


@pytest.mark.parametrize("body", [agent_1_4_request(), gz(agent_1_4_request()), b"junk"])
def test_what_a_request_held_is_given_back(body: bytes) -> None:
    front = Front(api=ApiSettings(reading_bytes_max=10_000))
    statuses = {front.post(PUSH, content=body, headers=PROTO).status_code for _ in range(30)}
    assert len(statuses) == 1
    assert 429 not in statuses


def test_a_large_request_is_unpacked_and_parsed_beside_the_event_loop() -> None:
    reply = Front(inline_bytes_max=10).post(PUSH, content=gz(agent_1_4_request()), headers=PROTO)
    assert reply.status_code == 200


NOT_UTF8 = pprof(functions=("caffe",)).replace(b"caffe", b"caff\xe9")


@pytest.mark.parametrize(
    ("content", "kind", "words"),
    [
        (request_of(({"service_name": "a"}, NOT_UTF8, "")), "application/proto", "string 3 of"),
        (
            request_of(({"service_name": "caffe"}, pprof(), "")).replace(b"caffe", b"caff\xe9"),
            "application/proto",
            "is not a push.v1.PushRequest",
        ),
        (
            b'{"series": [{"labels": [{"name": "service_name", "value": "caff\xe9"}]}]}',
            "application/json",
            "is not a push.v1.PushRequest",
        ),
        (
            b'{"series": [{"labels": [{"name": "service_name", "value": "\\ud800"}]}]}',
            "application/json",
            "is not a push.v1.PushRequest",
        ),
    ],
)
def test_text_that_is_not_utf8_is_refused_wherever_it_is(
    content: bytes, kind: str, words: str
) -> None:
    front = Front()
    reply = front.post(PUSH, content=content, headers={"content-type": kind})
    assert reply.status_code == 400
    assert words in reply.json()["message"]
    assert front.writer.stored == []
