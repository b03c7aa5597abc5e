"""/api/v1, health, metrics and the page."""

from __future__ import annotations

import pytest

from support.http.front import Front
from support.http.pushed import CPU, NOW_NS, gz, pprof

NOW_MS = NOW_NS // 10**6


def test_status_is_an_object_with_names() -> None:
    answer = Front().get("/api/v1/status").json()
    assert answer["incarnation"] == "1234abcd"
    assert answer["levels"] == []


def test_blocks_and_plans_are_lists_in_an_object() -> None:
    front = Front()
    assert front.get("/api/v1/blocks?level=0&limit=5").json() == {"blocks": []}
    assert front.get("/api/v1/plans?state=inflight").json() == {"plans": []}


@pytest.mark.parametrize(
    ("url", "status"),
    [
        ("/api/v1/blocks/0123", 404),
        ("/api/v1/plans/7.0", 404),
        ("/api/v1/plans/seven", 400),
        ("/api/v1/blocks?limit=0", 400),
        ("/api/v1/blocks?limit=many", 400),
        ("/api/v1/profiles/xyz", 400),
        ("/api/v1/profiles/" + "0" * 32, 404),
        ("/api/v1/top?profileTypeID=cpu", 400),
        ("/api/v1/top?profileTypeID=" + CPU + "&start=9&end=3", 400),
        ("/api/v1/top?profileTypeID=" + CPU + "&start=soon", 400),
        ("/nowhere", 404),
        ("/ui/nothing.js", 404),
        ("/api/v1/plans/" + "1" * 5000 + ".0", 400),
        ("/ui/%00.js", 404),
        ("/ui/" + "a" * 5000 + ".js", 404),
        ("/ui/../app.py", 404),
        ("/ui/%2e%2e/app.py", 404),
        ("/ui/%2e%2e/%2e%2e/cli/__init__.py", 404),
    ],
)
def test_what_is_not_there_or_not_understood_is_said_in_json(url: str, status: int) -> None:
    reply = Front().get(url)
    assert reply.status_code == status
    assert reply.json()["message"]


def test_a_profile_comes_back_as_it_went_and_only_to_its_tenant() -> None:
    front = Front()
    body = gz(pprof())
    pushed = front.post("/ingest?format=pprof&name=shop", content=body)
    url = f"/api/v1/profiles/{pushed.headers['maar-profile-ids']}?from={NOW_MS}&until={NOW_MS}"
    assert front.get(url).content == body
    assert front.get(url, headers={"x-scope-orgid": "other"}).status_code == 404


def test_top_is_rows_and_a_total() -> None:
    front = Front()
    front.post("/ingest?format=pprof&name=shop", content=pprof())
    selector = '{service_name="shop"}'
    reply = front.get("/api/v1/top", params={"profileTypeID": CPU, "labelSelector": selector})
    assert reply.json() == {"total": 1, "rows": [["work", 1, 1]]}


def test_ready_tells_the_truth_and_health_only_that_it_lives() -> None:
    front = Front()
    assert front.get("/ready").status_code == 200
    front.not_ready = "the metastore does not answer"
    reply = front.get("/ready")
    assert (reply.status_code, reply.text) == (503, "the metastore does not answer\n")
    assert front.get("/ready?for=push").status_code == 503
    assert front.get("/ready?for=query").text == "ready\n"
    assert front.get("/ready?for=coffee").status_code == 400
    assert front.get("/healthz").status_code == 200


def test_metrics_show_ours_and_those_of_other_roles() -> None:
    text = Front().get("/metrics").text
    assert "maar_distributor_profiles_total 0.0" in text
    assert "maar_other_up 1.0" in text


def test_the_page_is_revalidated_each_time() -> None:
    front = Front()
    page = front.get("/")
    assert page.status_code == 200
    assert page.headers["content-type"] == "text/html; charset=utf-8"
    assert page.headers["cache-control"] == "no-cache"
    again = front.get("/", headers={"if-none-match": page.headers["etag"]})
    assert (again.status_code, again.content) == (304, b"")


def test_modules_are_served_as_javascript() -> None:
    reply = Front().get("/ui/app.js")
    assert reply.headers["content-type"] == "text/javascript; charset=utf-8"
