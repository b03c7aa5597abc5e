"""/api/v1 for operators: plans, explanations and retention; what is done and what refused."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import httpx
import msgspec
import pytest

from maar.api.admin.quarantine import causes_in
from maar.block.format.segment import write_segment
from maar.model.block import Damage, File, Kind, Location
from maar.model.errors import Unavailable
from maar.model.ids import MAIN_STORE, BlockId, PlanId, ProfileId, Shard, StoreName, TenantId
from maar.model.plan import Plan, PlanState, QueueKey
from maar.model.profile import RawProfile
from maar.model.time import DAY_NS, SECOND_NS, LeaseTime
from maar.ports.operator.operator import ListPlans
from maar.services.compact.rules import COMPACT
from support.http.front import Front
from support.metastore.fold import segment
from support.stores.memory_store import MemoryStore

JSON = {"content-type": "application/json"}


def plan(number: int, state: PlanState, *inputs: BlockId) -> Plan:
    key = QueueKey(StoreName("main"), TenantId(""), Shard(2), 0)
    return Plan(PlanId(number, 0), COMPACT, False, key, inputs, state, LeaseTime(1))


def front_with(*plans: Plan) -> Front:
    front = Front()
    front.metastore.known = {one.id: one for one in plans}
    return front


def put(front: Front, url: str, body: Any, **how: Any) -> httpx.Response:
    return front.request("PUT", url, json=body, **how)


def post(front: Front, url: str, body: Any) -> httpx.Response:
    return front.request("POST", url, json=body)


# ── plans ──────────────────────────────────────────────────────────────────────────────────────


def test_every_filter_reaches_the_metastore() -> None:
    front = front_with(plan(1, PlanState.EXCLUDED), plan(2, PlanState.INFLIGHT))
    reply = front.get(
        "/api/v1/plans?state=excluded&service=compact&tenant=acme&level=2&shard=7&failing=true"
        "&limit=9"
    )
    assert [one["id"] for one in reply.json()["plans"]] == ["1.0"]
    assert front.metastore.wanted == ListPlans("excluded", "compact", "acme", 2, 7, True, 9)
    front.get("/api/v1/plans")
    assert front.metastore.wanted == ListPlans()


def test_a_plan_comes_with_inputs_the_time_and_the_limit_in_force() -> None:
    meta = segment(1, size=777)
    front = front_with(plan(3, PlanState.INFLIGHT, meta.id))
    front.metastore.index[meta.id] = meta
    detail = front.get("/api/v1/plans/3.0").json()
    assert detail["plan"]["id"] == "3.0"
    assert detail["now"] == 5_000
    assert detail["failure_limit"] == 3
    assert [(block["id"], block["size"]) for block in detail["inputs"]] == [(meta.id, 777)]


def test_an_excluded_plan_is_requeued_and_a_running_one_is_not() -> None:
    front = front_with(plan(1, PlanState.EXCLUDED), plan(2, PlanState.INFLIGHT))
    reply = front.post("/api/v1/plans/1.0/requeue", json={})
    assert (reply.status_code, reply.json()["state"]) == (200, "requested")
    assert front.metastore.known[PlanId(1, 0)].state is PlanState.REQUESTED
    reply = front.post("/api/v1/plans/2.0/requeue", json={})
    assert (reply.status_code, reply.json()["code"]) == (409, "failed_precondition")
    assert "is inflight" in reply.json()["message"]


def test_a_plan_is_excluded_with_a_reason_and_not_without() -> None:
    front = front_with(plan(1, PlanState.INFLIGHT))
    reply = front.post("/api/v1/plans/1.0/exclude", json={"reason": "bad host"})
    assert (reply.json()["state"], reply.json()["note"]) == ("excluded", "bad host")
    for body in ({}, {"reason": "  "}, {"reason": 5}, {"reasons": "x"}):
        assert front.post("/api/v1/plans/1.0/exclude", json=body).status_code == 400, body


def test_the_limit_is_raised_for_a_while_and_reset() -> None:
    front = front_with()
    reply = front.post("/api/v1/plans/limit", json={"limit": 10, "for_s": 1.5})
    assert reply.json() == {
        "limit": 10,
        "for_s": 1.5,
        "until_lease_time": 5_000 + 1_500_000_000,
    }
    assert front.metastore.raised == 10
    assert front.post("/api/v1/plans/limit", json={"for_s": 0}).status_code == 200
    assert front.metastore.raised == 0
    for body in (
        {"limit": 10},
        {"limit": 3, "for_s": -1},
        {"limit": "x", "for_s": 1},
        {"limit": 10**30, "for_s": 1},
        {"limit": -(2**63) - 1, "for_s": 1},
        {"for_s": 9},
    ):
        assert front.post("/api/v1/plans/limit", json=body).status_code == 400, body


# ── explain ────────────────────────────────────────────────────────────────────────────────────


def test_a_block_is_explained_or_not_found() -> None:
    front = front_with()
    meta = segment(1)
    front.metastore.index[meta.id] = meta
    found = front.get(f"/api/v1/blocks/{meta.id}/explain").json()
    assert (found["block"], found["standing"]) == (meta.id, "queued")
    assert found["sentences"] == ["It waits."]
    assert found["meta"]["size"] == meta.size
    assert front.get("/api/v1/blocks/0123/explain").status_code == 404


def raw(number: int) -> RawProfile:
    labels = (("service_name", "shop"),)
    return RawProfile(
        id=ProfileId(number.to_bytes(16, "big")),
        tenant=TenantId("acme"),
        service="shop",
        labels=labels,
        types=("process_cpu:cpu:nanoseconds:cpu:nanoseconds",),
        time_ns=number,
        duration_ns=SECOND_NS,
        samples=1,
        payload=b"not a profile",
        raw_size=13,
    )


def quarantined(store: MemoryStore, causes: Sequence[str]) -> tuple[BlockId, Front]:
    profiles = [raw(n) for n in range(len(causes))]
    body = write_segment(profiles, causes=list(causes)).body
    store.create("quarantine/one", body)
    file = File(
        "segment", len(body), b"", 0, len(causes), (Location(MAIN_STORE, "quarantine/one"),)
    )
    meta = msgspec.structs.replace(segment(1), kind=Kind.QUARANTINE, files=(file,))
    front = Front(causes=causes_in(store))
    front.metastore.index[meta.id] = meta
    return meta.id, front


def test_why_profiles_are_in_quarantine_is_read_from_their_object() -> None:
    causes = ["it is empty", "it is cut short", "it is empty", *(f"odd {n}" for n in range(7))]
    block, front = quarantined(MemoryStore(), causes)
    found = front.get(f"/api/v1/blocks/{block}/explain").json()
    assert found["standing"] == "quarantined"
    sentences = found["sentences"]
    assert sentences[:2] == ["It waits.", "2 of them: it is empty"]
    assert "1 of them: it is cut short" in sentences
    assert sentences[-1] == "4 of them: other causes."
    assert len(sentences) == 7


def test_a_quarantine_that_cannot_be_read_is_still_explained() -> None:
    store = MemoryStore()
    block, front = quarantined(store, ["it is empty"])
    store.delete("quarantine/one")
    reply = front.get(f"/api/v1/blocks/{block}/explain")
    assert reply.status_code == 200
    assert reply.json()["sentences"][1].startswith("The causes cannot be read now: ")


# ── retention ──────────────────────────────────────────────────────────────────────────────────


def test_retention_is_read_for_all_and_for_one_tenant() -> None:
    front = front_with()
    front.metastore.periods["acme"] = 30 * DAY_NS
    front.metastore.trouble = "the clock is ahead"
    found = front.get("/api/v1/retention").json()
    assert found["default_s"] == 90 * 86_400
    assert found["tenants"] == {"acme": 30 * 86_400}
    assert found["trouble"] == "the clock is ahead"
    own = front.get("/api/v1/retention/acme").json()
    assert (own["period_s"], own["is_default"]) == (30 * 86_400, False)
    other = front.get("/api/v1/retention/other").json()
    assert (other["period_s"], other["is_default"]) == (90 * 86_400, True)
    assert front.get("/api/v1/retention/no%20tenant").status_code == 400


def test_a_lost_block_is_looked_at_and_given_up() -> None:
    front = Front()
    meta = segment(1)
    front.metastore.index = {meta.id: meta}
    path = f"/api/v1/blocks/{meta.id}"
    found = front.get(f"{path}/loss").json()
    assert (found["block"]["id"], found["damages"]) == (meta.id, [])
    refused = post(front, f"{path}/lose", {"reason": "why not"})
    assert (refused.status_code, "whole" in refused.json()["message"]) == (409, True)
    front.metastore.damages = (Damage(meta.id, "some/key", "is missing"),)
    lost = post(front, f"{path}/lose", {"reason": "the disk died"}).json()
    damage = {"block": meta.id, "key": "some/key", "what": "is missing"}
    assert lost["damages"] == [damage]
    assert front.metastore.lost == [(meta.id, "the disk died")]
    assert front.get("/api/v1/blocks/unknown/loss").status_code == 404


def test_retention_is_held_released_and_undone() -> None:
    front = Front()
    held = post(front, "/api/v1/retention/hold", {"reason": "I want to look"})
    assert "I want to look" in held.json()["trouble"]
    assert post(front, "/api/v1/retention/release", {}).json()["trouble"] == ""
    undone = post(front, "/api/v1/retention/undo", {"tenant": "acme", "reason": "a mistake"})
    assert undone.json() == {"blocks": 3, "profiles": 30}
    assert front.metastore.undone == ["acme"]
    assert post(front, "/api/v1/retention/undo", {"tenant": "no tenant"}).status_code == 400


def test_retention_is_set_for_ever_and_reset() -> None:
    front = front_with()
    reply = put(front, "/api/v1/retention/acme", {"period_s": 3600})
    assert (reply.json()["period_s"], reply.json()["is_default"]) == (3600, False)
    assert front.metastore.periods == {"acme": 3600 * SECOND_NS}
    put(front, "/api/v1/retention/acme", {"period_s": 0})
    assert front.metastore.periods == {"acme": 0}
    assert put(front, "/api/v1/retention/acme", {"period_s": None}).json()["is_default"]
    assert front.metastore.periods == {}
    bodies: tuple[object, ...] = ({}, {"period_s": "30d"}, {"period_s": -1}, {"days": 3}, [])
    for body in bodies:
        assert put(front, "/api/v1/retention/acme", body).status_code == 400, body
    assert front.metastore.periods == {}


def test_a_tenant_may_be_called_like_the_preview() -> None:
    front = front_with()
    assert put(front, "/api/v1/retention/preview", {"period_s": 7200}).status_code == 200
    assert front.get("/api/v1/retention").json()["tenants"] == {"preview": 7200}


def test_the_preview_has_totals_the_plans_that_end_and_says_when_there_is_more() -> None:
    metas = [segment(n, size=100, profiles=10) for n in range(3)]
    front = front_with(plan(4, PlanState.REQUESTED, metas[0].id, metas[1].id))
    front.metastore.index = {meta.id: meta for meta in metas}
    found = front.get("/api/v1/retention/preview").json()
    assert (found["bytes"], found["profiles"], found["cancels"]) == (300, 30, ["4.0"])
    assert not found["more"]
    assert [block["cancels"] for block in found["blocks"]] == ["4.0", "4.0", None]
    assert found["blocks"][0]["id"] == metas[0].id
    found = front.get("/api/v1/retention/preview?limit=2").json()
    assert (len(found["blocks"]), found["bytes"], found["more"]) == (2, 200, True)
    assert front.get("/api/v1/retention/preview?tenant=acme").json()["blocks"] == []


# ── what every order is refused for ────────────────────────────────────────────────────────────

ORDERS = (
    ("POST", "/api/v1/plans/1.0/requeue", "{}"),
    ("POST", "/api/v1/plans/1.0/exclude", '{"reason": "x"}'),
    ("POST", "/api/v1/plans/limit", '{"limit": 9, "for_s": 9}'),
    ("PUT", "/api/v1/retention/acme", '{"period_s": 3600}'),
)


@pytest.mark.parametrize(("verb", "url", "body"), ORDERS)
@pytest.mark.parametrize(
    "kind", ["", "text/plain", "application/x-www-form-urlencoded", "multipart/form-data"]
)
def test_an_order_of_a_type_that_any_page_may_send_is_refused(
    verb: str, url: str, body: str, kind: str
) -> None:
    """For JSON browsers ask first, and get no leave."""
    front = front_with(plan(1, PlanState.EXCLUDED))
    headers = {"content-type": kind} if kind else {}
    assert front.request(verb, url, content=body, headers=headers).status_code == 415
    assert (front.metastore.raised, front.metastore.periods) == (0, {})


@pytest.mark.parametrize(("verb", "url", "body"), ORDERS)
@pytest.mark.parametrize("kind", ["", "text/plain", "application/json"])
def test_a_page_of_another_site_can_order_nothing(
    verb: str, url: str, body: str, kind: str
) -> None:
    front = front_with(plan(1, PlanState.EXCLUDED))
    before = dict(front.metastore.known)
    headers = {"origin": "http://evil.example", **({"content-type": kind} if kind else {})}
    reply = front.request(verb, url, content=body, headers=headers)
    assert reply.status_code == 403
    assert (front.metastore.known, front.metastore.raised) == (before, 0)
    assert front.metastore.periods == {}
    asked = front.request("OPTIONS", url, headers={"origin": "http://evil.example"})
    assert asked.status_code == 405
    assert not [name for name in asked.headers if name.startswith("access-control")]


@pytest.mark.parametrize(("verb", "url", "body"), ORDERS)
def test_an_order_with_json_is_carried_out(verb: str, url: str, body: str) -> None:
    front = front_with(plan(1, PlanState.EXCLUDED))
    assert front.request(verb, url, content=body, headers=JSON).status_code == 200


@pytest.mark.parametrize(("verb", "url", "body"), ORDERS)
@pytest.mark.parametrize("content", [b"{", b"\xff\xfe", b"[]", b'{"more": 1}', b"5"])
def test_a_body_that_is_no_order_is_refused_with_a_sentence(
    verb: str, url: str, body: str, content: bytes
) -> None:
    reply = front_with(plan(1, PlanState.EXCLUDED)).request(
        verb, url, content=content, headers=JSON
    )
    assert reply.status_code == 400, body
    assert "the body is not what" in reply.json()["message"]


def test_a_body_that_is_too_large_is_refused() -> None:
    reason = {"reason": "x" * (70 << 10)}
    assert front_with().post("/api/v1/plans/1.0/exclude", json=reason).status_code == 413


@pytest.mark.parametrize(
    ("verb", "url", "status"),
    [
        ("POST", "/api/v1/plans/7.0/requeue", 404),
        ("POST", "/api/v1/plans/seven/requeue", 400),
        ("GET", "/api/v1/plans/limit", 400),
        ("GET", "/api/v1/plans/1.0/requeue", 405),
        ("GET", "/api/v1/plans?failing=maybe", 400),
        ("GET", "/api/v1/plans?level=top", 400),
        ("GET", "/api/v1/retention/preview?limit=10001", 400),
        ("DELETE", "/api/v1/retention/acme", 405),
        ("PUT", "/api/v1/retention/a%2Fb", 404),
        ("PUT", "/api/v1/retention/%20", 400),
    ],
)
def test_what_is_not_there_or_not_understood_is_said(verb: str, url: str, status: int) -> None:
    body = b'{"period_s": 1}' if verb == "PUT" else b"{}"
    reply = front_with().request(verb, url, content=body, headers=JSON)
    assert reply.status_code == status
    assert reply.json()["message"]


def test_an_order_that_nobody_can_take_now_may_be_repeated() -> None:
    front = front_with(plan(1, PlanState.EXCLUDED))
    front.metastore.failures = [Unavailable("the metastore is stopping; ask again")]
    reply = front.post("/api/v1/plans/1.0/requeue", json={})
    assert (reply.status_code, reply.headers["retry-after"]) == (503, "1")
    assert front.post("/api/v1/plans/1.0/requeue", json={}).status_code == 200


def test_refused_orders_are_counted_by_route() -> None:
    front = front_with()
    front.post("/api/v1/plans/7.0/requeue", json={})
    route = "/api/v1/plans/{id}/requeue"
    assert (
        front.metric_value("maar_api_errors_total", route=route, status="404", reason="notfound")
        == 1
    )
