"""docs/operating.md names every metric and request, and only those; so do the other pages."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from prometheus_client import CollectorRegistry
from prometheus_client.metrics import MetricWrapperBase
from starlette.applications import Starlette
from starlette.routing import Route

from maar.adapters.etcd.metrics import EtcdMetrics
from maar.app.http.gate import GateMetrics
from maar.distributor.agent import AgentMetrics
from maar.distributor.metrics import PushMetrics, RouterMetrics
from maar.metastore.leader.placement_manager import PlacementMetrics
from maar.metastore.replica.metrics import MetastoreMetrics
from maar.metastore.replica.repair_metrics import RepairMetrics
from maar.metastore.replica.store_metrics import StoreMetrics
from maar.query.metrics import Metrics as QueryMetrics
from maar.segment.metrics import MembershipMetrics, SegmentMetrics
from maar.worker.metrics import WorkerMetrics
from support.http.front import Front

DOCS = Path(__file__).parents[2] / "docs"
REFERENCE = (DOCS / "operating.md").read_text()


def metrics_of(kind: type[Any]) -> dict[str, tuple[str, ...]]:
    """The names of metrics, as queries have to spell them, and their labels."""
    made = vars(kind(CollectorRegistry())).values()
    found = {}
    for metric in made:
        if isinstance(metric, MetricWrapperBase):
            (family,) = metric.describe()
            suffix = "_total" if family.type == "counter" else ""
            found[f"{family.name}{suffix}"] = metric._labelnames
    return found


WRITTEN_OUT = {
    "maar_api_errors_total": ("route", "status", "reason"),  # by api/guard.py
    "maar_api_partial_answers_total": (),  # by api/query/partly.py
    "maar_role_up": ("role",),  # by app/roles/readiness.py, which speaks for the others
    "maar_process_restarts_total": ("process",),  # by app/processes/status_file.py
    "maar_process_hangs_total": ("process",),
    "maar_disk_free_bytes": ("directory",),  # by app/roles/disks.py, when it is asked
    "maar_disk_total_bytes": ("directory",),
    "maar_disk_reserve_bytes": ("directory",),
}
KNOWN = (
    metrics_of(MetastoreMetrics)
    | metrics_of(RepairMetrics)
    | metrics_of(StoreMetrics)
    | metrics_of(EtcdMetrics)
    | metrics_of(PlacementMetrics)
    | metrics_of(AgentMetrics)
    | metrics_of(GateMetrics)
    | metrics_of(PushMetrics)
    | metrics_of(RouterMetrics)
    | metrics_of(SegmentMetrics)
    | metrics_of(MembershipMetrics)
    | metrics_of(QueryMetrics)
    | metrics_of(WorkerMetrics)
    | WRITTEN_OUT
)


def test_every_metric_that_is_named_exists_and_all_are_explained() -> None:
    named = set(re.findall(r"\bmaar_[a-z0-9_]+", REFERENCE))
    assert named <= set(KNOWN), named - set(KNOWN)
    explained = (
        metrics_of(MetastoreMetrics) | metrics_of(PlacementMetrics) | metrics_of(AgentMetrics)
    )
    explained |= metrics_of(EtcdMetrics) | metrics_of(GateMetrics)
    explained |= metrics_of(PushMetrics) | metrics_of(RouterMetrics)
    explained |= metrics_of(SegmentMetrics) | metrics_of(MembershipMetrics)
    explained |= metrics_of(QueryMetrics) | metrics_of(WorkerMetrics) | WRITTEN_OUT
    assert set(explained) <= named, set(explained) - named


def test_no_page_names_a_metric_that_does_not_exist() -> None:
    for page in DOCS.rglob("*.md"):
        named = set(re.findall(r"\bmaar_[a-z0-9_]+", page.read_text()))
        assert named <= set(KNOWN), page.name


def test_every_label_that_is_named_is_one_of_its_metric() -> None:
    labelled = re.findall(r"\b(maar_[a-z0-9_]+)\{([^}]*)\}", REFERENCE)
    assert labelled
    for name, inside in labelled:
        labels = {pair.partition("=")[0].rstrip("!~") for pair in inside.split(",")}
        assert labels <= set(KNOWN[name]), (name, labels)


def test_every_request_beneath_api_v1_is_listed() -> None:
    app: Any = Front().app
    while not isinstance(app, Starlette):
        app = app.app
    offered = {
        f"{method} {route.path.replace(':path', '')}"
        for route in app.routes
        if isinstance(route, Route) and route.path.startswith("/api/v1/")
        for method in (route.methods or set()) - {"HEAD"}
    }
    listed = set(re.findall(r"`([A-Z]+ /api/v1/[^` ]+)`", REFERENCE))
    assert listed == offered


def test_every_runbook_that_an_alert_names_is_there() -> None:
    titles = set(re.findall(r"^### (.+)$", REFERENCE, re.MULTILINE))
    named = set(re.findall(r"# → (.+)$", REFERENCE, re.MULTILINE))
    linked = {text for text, _ in re.findall(r"\[([^\]]+)\]\((#[a-z-]+)\)", REFERENCE)}
    assert named
    assert named | linked <= titles


def texts(node: ast.AST) -> Iterator[str]:
    if isinstance(node, ast.JoinedStr):  # what is filled in is left out
        parts = [part.value if isinstance(part, ast.Constant) else "…" for part in node.values]
        yield "".join(map(str, parts))
    elif isinstance(node, ast.Constant) and isinstance(node.value, str):
        yield node.value


def test_the_sentences_that_runbooks_explain_are_those_that_maar_says() -> None:
    sources = [ast.parse(file.read_text()) for file in (DOCS.parent / "src").rglob("*.py")]
    said = "\n".join(
        text.lower() for tree in sources for node in ast.walk(tree) for text in texts(node)
    )
    runbooks = REFERENCE.partition("\n## Runbooks\n")[2]
    steps = re.findall(r"^ *(?:\d\.|-) (\*[^*]+\*(?:, \*[^*]+\*)*)", runbooks, re.MULTILINE)
    quoted = [part.strip(" *,:()") for step in steps for part in re.split(r"…|\*, \*", step)]
    assert len(quoted) > 20
    assert [part for part in quoted if part.lower() not in said] == []


def test_whoever_is_sent_to_a_page_finds_the_place() -> None:
    root = Path(__file__).parents[2]
    for source in (root / "src").rglob("*.py"):
        for page, anchor in re.findall(r"(docs/[\w-]+\.md)#([\w-]+)", source.read_text()):
            headings = re.findall(r"^#+ (.+)$", (root / page).read_text(), re.MULTILINE)
            anchors = {re.sub(r"[^\w -]", "", line.lower()).replace(" ", "-") for line in headings}
            assert anchor in anchors, f"{source.name}: {page}#{anchor}"
