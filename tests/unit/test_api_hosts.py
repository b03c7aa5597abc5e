"""A page elsewhere speaks to us neither by a name of its own nor in our name."""

from __future__ import annotations

import pytest

from maar.api.hosts import Hosts, host_name, hosts_of, refusal
from support.http.front import Front
from support.http.pushed import NOW_NS, pprof

HERE = hosts_of("127.0.0.1", (), own_name="laptop")
OPEN = hosts_of("0.0.0.0", ("maar.corp",), own_name="node-7")
PERIOD = "/api/v1/retention/acme"


@pytest.mark.parametrize(
    "host",
    [
        *("localhost", "LocalHost:4040", "localhost.:80", "app.localhost"),
        *("127.0.0.1:4040", "127.9.8.7", "[::1]", "[::1]:4040"),
    ],
)
def test_a_loopback_listener_takes_loopback_names_with_any_port(host: str) -> None:
    assert refusal(HERE, "PUT", [host], []) == ""


@pytest.mark.parametrize(
    "host",
    [
        *("evil.example", "evil.example:4040", "localhost.evil.example", "127.0.0.1.evil.example"),
        *("laptop", "192.168.1.5", "0.0.0.0", "2130706433", "[::2]", "[localhost]", "", "a:b"),
        *("[::1", "localhost:4040@evil.example", "maar.corp"),
    ],
)
def test_a_loopback_listener_takes_no_other(host: str) -> None:
    assert "server.allowed_hosts" in refusal(HERE, "GET", [host], [])


@pytest.mark.parametrize(
    "host",
    ["maar.corp", "MAAR.corp.:443", "10.1.2.3:4040", "[fd00::1]:4040", "node-7", "localhost"],
)
def test_another_listener_takes_its_names_and_any_address(host: str) -> None:
    assert refusal(OPEN, "POST", [host], []) == ""


@pytest.mark.parametrize("host", ["evil.example", "localhost.evil", "sub.maar.corp"])
def test_another_listener_takes_no_name_that_it_was_not_given(host: str) -> None:
    assert "does not answer to the name" in refusal(OPEN, "GET", [host], [])


def test_a_star_takes_every_name() -> None:
    assert refusal(hosts_of("0.0.0.0", ("*",), own_name="n"), "GET", ["evil.example"], []) == ""


def test_all_of_several_names_must_be_ours_and_none_is_no_browsers() -> None:
    assert refusal(HERE, "GET", ["localhost", "evil.example"], []) != ""
    assert refusal(HERE, "POST", [], []) == ""


@pytest.mark.parametrize(
    ("hosts", "host", "origin", "allowed"),
    [
        (HERE, "127.0.0.1:4040", "http://127.0.0.1:4040", True),
        (HERE, "localhost:4040", "http://localhost:4040", True),
        (HERE, "localhost:4040", "http://localhost:3000", False),
        (HERE, "localhost:4040", "http://evil.example", False),
        (HERE, "localhost:4040", "null", False),
        (HERE, "localhost:4040", "", False),
        (HERE, "localhost:4040", "file://", False),
        (OPEN, "10.1.2.3:4040", "https://maar.corp", True),  # TLS ends at a proxy
        (OPEN, "maar.corp:4040", "http://maar.corp:4040", True),
        (OPEN, "node-7:4040", "http://node-7:3000", False),
        (OPEN, "maar.corp", "https://other.corp", False),
    ],
)
def test_a_foreign_page_changes_nothing(
    hosts: Hosts, host: str, origin: str, allowed: bool
) -> None:
    for method in ("POST", "PUT", "DELETE", "PATCH"):
        assert (refusal(hosts, method, [host], [origin]) == "") is allowed
    assert refusal(hosts, "GET", [host], [origin]) == ""  # a browser keeps the answer from the page


@pytest.mark.parametrize(
    ("authority", "name"),
    [("A.b:1", "a.b"), ("[::1]:1", "::1"), ("a:1:2", None), ("[a]", None), ("a" * 300, None)],
)
def test_the_name_is_what_stands_before_the_port(authority: str, name: str | None) -> None:
    assert host_name(authority) == name


def test_rebinding_neither_reads_nor_changes_anything() -> None:
    front = Front()
    host = {"host": "evil.example"}
    read = front.get("/api/v1/status", headers=host)
    assert (read.status_code, read.json()["code"]) == (403, "permission_denied")
    assert front.request("PUT", PERIOD, json={"seconds": 1}, headers=host).status_code == 403
    assert front.post("/ingest?name=a", content=b"main 1", headers=host).status_code == 403
    assert (front.metastore.periods, front.writer.stored) == ({}, [])
    assert (
        front.metric_value("maar_api_errors_total", route="any", status="403", reason="forbidden")
        == 3
    )


def test_a_page_elsewhere_can_not_push_and_our_own_can_ask() -> None:
    front = Front()
    url, body = "/ingest?name=a&format=pprof", pprof(time_ns=NOW_NS)
    assert front.post(url, content=body, headers={"origin": "http://evil"}).status_code == 403
    assert front.writer.stored == []
    assert front.post(url, content=body).status_code == 200  # as agents do, without an Origin
    asked = "/querier.v1.QuerierService/LabelNames"
    ours = front.post(asked, json={}, headers={"origin": "http://maar"})
    assert ours.status_code == 200


@pytest.mark.parametrize("values", [["acme", "other"], ["acme", "acme"], ["", "acme"]])
def test_two_tenants_in_one_request_are_refused(values: list[str]) -> None:
    front = Front()
    reply = front.post(
        "/ingest?name=a&format=pprof",
        content=pprof(),
        headers=[("X-Scope-OrgID", value) for value in values],
    )
    assert reply.status_code == 400
    assert "2 X-Scope-OrgID headers" in reply.text
    assert front.writer.stored == []
