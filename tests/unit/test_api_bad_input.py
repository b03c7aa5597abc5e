"""Every bad input gets a 4xx, a sentence that names what and why, a count, and writes nothing."""

from __future__ import annotations

import asyncio
import gzip
import json
from typing import Any

import pytest

from maar.api import body
from maar.api.errors import EndlessBody, TooSlow
from maar.api.protocol.wire import PushRequest
from maar.api.settings import ApiSettings
from maar.distributor.settings import Limits
from maar.model import keys
from maar.model.ids import tenant_id
from maar.model.time import DAY_NS, SECOND_NS
from support.clock.virtual_time import run_virtually
from support.http.front import Front
from support.http.pushed import NOW_NS, gz, pprof

PUSH = "/push.v1.PusherService/Push"
YEAR_2099_NS = 4_070_908_800 * SECOND_NS
SERVICE = (("service_name", "shop"),)


def varint(number: int) -> bytes:
    out = bytearray()
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    out.append(number)
    return bytes(out)


# A profile whose only sample points at string 200, location 9, and so on: well-formed protobuf.
INDEX_OUT_OF_RANGE = b"\x0a\x04\x08\xc8\x01\x10\x02" + b"2\x00"
LOCATION_OUT_OF_RANGE = pprof().replace(b"\x12\n\n\x02\x02\x01", b"\x12\n\n\x02\x09\x01")
WRONG_WIRE_TYPE = b"\x10\x05" + pprof()  # samples as a number
OVERFLOW = b"\x48" + b"\xff" * 10 + b"\x01" + pprof()  # a varint of more than 64 bits

TYPE_AND_TEXTS = b"\x0a\x04\x08\x01\x10\x02" + b"2\x00" + b"2\x03cpu" + b"2\x02ns"


def valued(*values: int) -> bytes:
    """A profile with these values, each in a sample of its own."""
    fields = (b"\x10" + varint(value % 2**64) for value in values)
    return TYPE_AND_TEXTS + b"".join(b"\x12" + varint(len(f)) + f for f in fields)


PROFILES: dict[str, tuple[bytes, str, str]] = {
    "truncated gzip": (gz(pprof())[:-10], "gzip", "cut off"),
    "gzip bomb": (gz(bytes(3 << 20)), "too_large", "larger than the limit"),
    "not a protobuf": (b"GET / HTTP/1.1", "malformed_profile", ""),
    "wrong wire types": (WRONG_WIRE_TYPE, "malformed_profile", ""),
    "indices out of range": (INDEX_OUT_OF_RANGE, "malformed_profile", ""),
    "locations out of range": (LOCATION_OUT_OF_RANGE, "malformed_profile", ""),
    "overflowing varints": (OVERFLOW, "malformed_profile", ""),
    "overflowing values": (valued(2**63 - 1, 2**63 - 1), "values", "more than 2^63-1"),
    "values that cancel each other": (valued(2**62, -(2**62)), "values", f"add up to {2**63}"),
    "a value without a positive twin": (valued(-(2**63)), "values", "'cpu' in 'ns'"),
    "dated 2099": (pprof(time_ns=YEAR_2099_NS), "time", "in the future"),
    "dated 1999": (pprof(time_ns=946_000_000 * SECOND_NS), "time", "days old"),
}
LABELS: dict[str, tuple[tuple[tuple[str, str], ...], str, str]] = {
    "no service_name": ((("region", "eu"),), "service_name", "no service_name"),
    "10,000 labels": (
        (*SERVICE, *((f"label_{n}", "x") for n in range(10_000))),
        "labels",
        "10001 labels",
    ),
    "control characters in a name": ((*SERVICE, ("a\x07b", "x")), "labels", "label name"),
    "control characters in a value": ((*SERVICE, ("a", "x\x1b[2J")), "labels", "control character"),
    "a label twice": ((*SERVICE, ("a", "x"), ("a", "y")), "labels", "twice"),
    "an endless value": ((*SERVICE, ("a", "x" * 3_000)), "labels", "3000 characters"),
}


def front() -> Front:
    return Front(
        limits=Limits(profile_bytes_max=2 << 20, retention_ns=31 * DAY_NS),
        api=ApiSettings(body_bytes_max=1 << 20),
    )


def push_body(labels: tuple[tuple[str, str], ...], body: bytes) -> bytes:
    request = PushRequest()
    series = request.series.add()
    for name, value in labels:
        series.labels.add(name=name, value=value)
    series.samples.add(raw_profile=body)
    return bytes(request.SerializeToString())


def push(to: Front, body: bytes, **headers: str) -> Any:
    return to.post(PUSH, content=body, headers={"content-type": "application/proto", **headers})


def assert_refused(to: Front, reply: Any, status: int, words: str, code: str) -> None:
    assert reply.status_code == status, reply.text
    answer = reply.json()
    assert answer["code"] == code
    assert words in answer["message"]
    assert len(answer["message"]) > 20
    assert to.writer.stored == []


def counted(to: Front, route: str, status: int, reason: str) -> float:
    return to.metric_value("maar_api_errors_total", route=route, status=str(status), reason=reason)


@pytest.mark.parametrize("case", PROFILES)
def test_a_bad_profile_is_refused(case: str) -> None:
    body, reason, words = PROFILES[case]
    to = front()
    reply = push(to, push_body(SERVICE, body))
    status, code = (413, "resource_exhausted") if case == "gzip bomb" else (400, "invalid_argument")
    assert_refused(to, reply, status, words, code)
    assert to.metric_value("maar_distributor_refused_total", reason=reason) == 1


@pytest.mark.parametrize("case", PROFILES)
def test_a_bad_profile_is_refused_by_ingest_too(case: str) -> None:
    body, reason, words = PROFILES[case]
    to = front()
    reply = to.post("/ingest?name=shop&format=pprof", content=body)
    assert reply.status_code == (413 if case == "gzip bomb" else 422)
    assert words in reply.text
    assert to.writer.stored == []
    assert to.metric_value("maar_distributor_refused_total", reason=reason) == 1


@pytest.mark.parametrize("case", LABELS)
def test_bad_labels_are_refused(case: str) -> None:
    labels, reason, words = LABELS[case]
    to = front()
    assert_refused(to, push(to, push_body(labels, pprof())), 400, words, "invalid_argument")
    assert counted(to, PUSH, 400, reason) == 1


@pytest.mark.parametrize(
    "tenant", ["../../etc", "..", "a/b", "a b", "x" * 151, "a\x01b", "*" * 150]
)
@pytest.mark.parametrize("url", [PUSH, "/ingest?name=shop&format=pprof", "/api/v1/status"])
def test_a_tenant_that_would_leave_its_place_is_refused(tenant: str, url: str) -> None:
    to = front()
    method = "GET" if url.startswith("/api") else "POST"
    reply = to.request(method, url, headers={"x-scope-orgid": tenant}, content=pprof())
    assert reply.status_code == 400
    assert "is not allowed" in reply.text
    assert to.writer.stored == []
    route = url.partition("?")[0]
    assert counted(to, route, 400, "tenant") == 1


def test_every_tenant_that_is_allowed_can_be_a_directory() -> None:
    for tenant in ("x" * 150, "*" * 80):
        key = keys.table(name="samples", tenant=tenant_id(tenant), day=0, stem="x")
        assert max(map(len, key.split("/"))) <= 255


@pytest.mark.parametrize("url", [PUSH, "/ingest?name=shop&format=pprof"])
def test_a_body_over_the_limit_is_refused(url: str) -> None:
    to = front()
    reply = to.post(
        url, content=bytes((1 << 20) + 1), headers={"content-type": "application/proto"}
    )
    assert reply.status_code == 413
    assert "over the limit of 1048576 bytes" in reply.text
    assert counted(to, url.partition("?")[0], 413, "toolarge") == 1


def test_a_request_that_swells_is_refused() -> None:
    to = Front(api=ApiSettings(request_bytes_max=1 << 20))
    reply = push(to, gzip.compress(bytes(2 << 20)), **{"content-encoding": "gzip"})
    assert_refused(to, reply, 413, "when decompressed", "resource_exhausted")


def test_a_request_of_nothing_but_tiny_fields_is_refused_before_it_is_parsed() -> None:
    to = front()
    assert_refused(to, push(to, b"\x0a\x00" * 200_000), 413, "fields", "resource_exhausted")


@pytest.mark.parametrize(
    "body",
    [
        b"\x0a",
        b"\x0a\x7f",
        b"\x0f",
        b"\xff" * 20,
        gz(b"\x0a\x7f"),
        gz(b"abc")[:-4],
        push_body(SERVICE, pprof())[:-5],
        b"\x0a\x06\x0a\x04\x0a\x02\xff\xfe",  # a label name that is not UTF-8
    ],
)
def test_what_is_not_a_push_request_is_refused(body: bytes) -> None:
    to = front()
    assert_refused(to, push(to, body), 400, "", "invalid_argument")


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"[]",
        b'{"series": 7}',
        b'{"series": [{"labels": [{"name": 7}]}]}',
        b'{"series": [{"samples": [{"rawProfile": "%%%"}]}]}',
        b'{"a":' * 5_000,
        b"[" * 100_000,
        b"\xff\xfe",
        json.dumps(
            {"series": [{"labels": [{"name": "service_name", "value": "\ud800"}]}]}
        ).encode(),
    ],
)
def test_what_is_not_json_of_a_push_request_is_refused(body: bytes) -> None:
    to = front()
    reply = to.post(PUSH, content=body, headers={"content-type": "application/json"})
    assert_refused(to, reply, 400, "", "invalid_argument")


def test_an_empty_push_is_refused() -> None:
    to = front()
    assert_refused(to, push(to, b""), 400, "holds no profile", "invalid_argument")


def test_a_time_range_upside_down_is_refused() -> None:
    to = front()
    now_ms = NOW_NS // 10**6
    reply = to.post(
        "/querier.v1.QuerierService/LabelNames", json={"start": now_ms, "end": now_ms - 1}
    )
    assert_refused(to, reply, 400, "upside down", "invalid_argument")
    assert counted(to, "LabelNames", 400, "time_range") == 1


def test_a_body_that_never_begins_is_given_up() -> None:
    async def nothing() -> Any:
        await asyncio.Event().wait()

    async def story() -> None:
        with body.BodyBudget(10).hold() as hold, pytest.raises(TooSlow, match="did not arrive"):
            async with asyncio.timeout(3600):
                await body.read_body({"headers": []}, nothing, limit=10, hold=hold)

    run_virtually(story())


def test_a_body_that_does_not_say_its_size_is_given_up_when_it_is_over_the_limit() -> None:
    sent = 0

    async def endless() -> Any:
        nonlocal sent
        sent += 1
        return {"type": "http.request", "body": b"x" * 6, "more_body": sent < 100}

    async def story() -> None:
        with body.BodyBudget(1000).hold() as hold, pytest.raises(EndlessBody, match="over the lim"):
            await body.read_body({"headers": []}, endless, limit=10, hold=hold)

    run_virtually(story())
    assert sent == 2


def test_requests_that_together_hold_too_much_are_told_to_wait() -> None:
    to = Front(api=ApiSettings(reading_bytes_max=100))
    reply = push(to, push_body(SERVICE, pprof()))
    assert_refused(to, reply, 429, "send it again later", "resource_exhausted")
    assert reply.headers["retry-after"] == "1"
