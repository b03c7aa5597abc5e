"""QuerierService in the shapes that Grafana knows, as protobuf and as JSON."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from maar.api.protocol import wire
from maar.api.query.querier import (
    graph_reply,
    label_sets_reply,
    names_reply,
    series_reply,
    types_reply,
)
from maar.ports.reader.query import Point, SeriesPoints
from support.http.front import Front
from support.http.pushed import CPU, NOW_NS, gz, pprof
from support.oracles.graphs import graph_of

SERVICE = "/querier.v1.QuerierService/"
NOW_MS = NOW_NS // 10**6
RANGE = {"start": NOW_MS - 60_000, "end": NOW_MS}


@pytest.fixture(scope="module")
def front() -> Front:
    front = Front()
    for name in ("shop{region=eu}", "mail{region=us}"):
        assert front.post(f"/ingest?format=pprof&name={name}", content=pprof()).is_success
    headers = {"x-scope-orgid": "other"}
    assert front.post("/ingest?format=pprof&name=x", content=pprof(), headers=headers).is_success
    return front


def ask(front: Front, method: str, **request: Any) -> Any:
    return front.post(SERVICE + method, json={**RANGE, **request})


def test_profile_types_come_apart(front: Front) -> None:
    assert ask(front, "ProfileTypes").json() == {
        "profileTypes": [
            {
                "ID": CPU,
                "name": "process_cpu",
                "sampleType": "cpu",
                "sampleUnit": "nanoseconds",
                "periodType": "cpu",
                "periodUnit": "nanoseconds",
            }
        ]
    }


def test_protobuf_is_answered_in_protobuf(front: Front) -> None:
    body = wire.ProfileTypesRequest(**RANGE).SerializeToString()
    reply = front.post(
        SERVICE + "ProfileTypes", content=gz(body), headers={"content-type": "application/proto"}
    )
    assert reply.headers["content-type"] == "application/proto"
    assert wire.ProfileTypesResponse.FromString(reply.content).profile_types[0].ID == CPU


def test_a_range_of_zeros_asks_for_everything(front: Front) -> None:
    assert front.post(SERVICE + "ProfileTypes", json={}).json()["profileTypes"]


def test_the_last_millisecond_is_included_and_the_next_is_not(front: Front) -> None:
    at = {"start": NOW_MS, "end": NOW_MS}
    before = {"start": NOW_MS - 5, "end": NOW_MS - 1}
    assert front.post(SERVICE + "ProfileTypes", json=at).json()
    assert not front.post(SERVICE + "ProfileTypes", json=before).json()


def test_label_names_and_values_of_several_selectors_are_united(front: Front) -> None:
    assert ask(front, "LabelNames").json()["names"] == ["__name__", "region", "service_name"]
    values = ask(front, "LabelValues", name="service_name").json()["names"]
    assert values == ["mail", "shop"]
    both = ['{service_name="shop"}', '{service_name="mail"}']
    united = ask(front, "LabelValues", name="region", matchers=both).json()["names"]
    assert united == ["eu", "us"]
    one = ask(front, "LabelValues", name="region", matchers=both[:1]).json()["names"]
    assert one == ["eu"]


def test_tenants_are_kept_apart(front: Front) -> None:
    reply = front.post(
        SERVICE + "LabelValues",
        json={**RANGE, "name": "service_name"},
        headers={"x-scope-orgid": "other"},
    )
    assert reply.json()["names"] == ["x"]


def test_series_are_in_field_two(front: Front) -> None:
    labels = [{"name": "region", "value": "eu"}, {"name": "service_name", "value": "shop"}]
    answer = ask(front, "Series", labelNames=["service_name", "region"]).json()
    assert {"labels": labels} in answer["labelsSet"]
    body = wire.SeriesRequest(**RANGE, label_names=["region"]).SerializeToString()
    reply = front.post(
        SERVICE + "Series", content=body, headers={"content-type": "application/proto"}
    )
    assert reply.content[0] == 2 << 3 | 2


def test_a_flame_graph_has_64_bit_numbers_as_text(front: Front) -> None:
    request = {"profileTypeID": CPU, "labelSelector": '{service_name="shop"}'}
    assert ask(front, "SelectMergeStacktraces", **request).json() == {
        "flamegraph": {
            "names": ["total", "of 8192 nodes"],
            "levels": [{"values": ["0", "1", "0", "0"]}, {"values": ["0", "1", "1", "1"]}],
            "total": "1",
            "maxSelf": "1",
        }
    }


def test_max_nodes_and_the_format_may_be_given(front: Front) -> None:
    request = {
        "profileTypeID": f"{CPU}:delta",
        "maxNodes": "77",
        "format": "PROFILE_FORMAT_FLAMEGRAPH",
    }
    answer = ask(front, "SelectMergeStacktraces", **request).json()
    assert answer["flamegraph"]["names"][1] == "of 77 nodes"


def test_select_series_gives_points(front: Front) -> None:
    request = {"profileTypeID": CPU, "labelSelector": "{}", "step": 15.0, "groupBy": ["a.b"]}
    assert ask(front, "SelectSeries", **request).json() == {
        "series": [
            {
                "labels": [{"name": "service_name", "value": "shop"}],
                "points": [{"value": 2.0, "timestamp": "15000000000"}],
            }
        ]
    }


@pytest.mark.parametrize(
    ("method", "request_", "status", "code", "words"),
    [
        ("SelectMergeStacktraces", {"format": 4}, 501, "unimplemented", "format 4"),
        (
            "SelectMergeStacktraces",
            {"stackTraceSelector": {"callSite": [{"name": "main"}]}},
            501,
            "unimplemented",
            "stack_trace_selector",
        ),
        ("SelectMergeStacktraces", {"spanSelector": ["ab"]}, 501, "unimplemented", "span_selector"),
        ("SelectMergeStacktraces", {"async": {}}, 501, "unimplemented", "async"),
        ("SelectMergeStacktraces", {"profileTypeID": "cpu"}, 400, "invalid_argument", "five parts"),
        ("SelectMergeStacktraces", {"maxNodes": -1}, 400, "invalid_argument", "max_nodes"),
        ("SelectMergeStacktraces", {"maxNodes": 2**40}, 400, "invalid_argument", "max_nodes"),
        ("SelectMergeStacktraces", {"labelSelector": "{a="}, 400, "invalid_argument", "selector"),
        ("SelectSeries", {"step": 0}, 400, "invalid_argument", "step"),
        ("SelectSeries", {"step": "NaN"}, 400, "invalid_argument", "step"),
        ("SelectSeries", {"step": 0.001}, 400, "invalid_argument", "points"),
        ("SelectSeries", {"step": 15, "aggregation": 9}, 400, "invalid_argument", "aggregation"),
        ("SelectSeries", {"step": 15, "exemplarType": 2}, 501, "unimplemented", "exemplars"),
        (
            "SelectSeries",
            {"step": 15, "exemplarType": "EXEMPLAR_TYPE_SPAN"},
            501,
            "unimplemented",
            "exemplar_type",
        ),
        (
            "SelectSeries",
            {"step": 15, "groupBy": ["a"] * 65},
            400,
            "invalid_argument",
            "65 label names",
        ),
        ("Series", {"labelNames": ["a"] * 65}, 400, "invalid_argument", "65 label names"),
        ("LabelValues", {}, 400, "invalid_argument", "no label"),
        ("LabelNames", {"matchers": ["{}"] * 33}, 400, "invalid_argument", "33 selectors"),
        ("LabelNames", {"start": -5}, 400, "invalid_argument", "out of bounds"),
        ("LabelNames", {"end": 2**62}, 400, "invalid_argument", "out of bounds"),
        ("SelectHeatmap", {}, 501, "unimplemented", "SelectHeatmap is not offered"),
    ],
)
def test_what_cannot_be_asked_is_answered_with_a_sentence(
    front: Front, method: str, request_: dict[str, Any], status: int, code: str, words: str
) -> None:
    reply = ask(front, method, **{"profileTypeID": CPU, **request_})
    assert reply.status_code == status, reply.text
    assert reply.json()["code"] == code
    assert words in reply.json()["message"]


def test_a_question_larger_than_any_question_is_refused(front: Front) -> None:
    reply = ask(front, "LabelNames", matchers=["x" * (1 << 20)])
    assert reply.status_code == 413


labels_of_any_text = st.lists(st.tuples(st.text(max_size=3), st.text(max_size=3)), max_size=3)


@given(
    st.lists(
        st.builds(
            SeriesPoints,
            labels_of_any_text.map(tuple),
            st.lists(
                st.builds(
                    Point,
                    st.sampled_from([0, 1, 2**62]),
                    st.sampled_from([0.0, -0.0, 1.5, -3.0, 1e300]),
                ),
                max_size=3,
            ).map(tuple),
        ),
        max_size=3,
    )
)
def test_json_that_is_made_without_a_message_says_the_same(found: list[SeriesPoints]) -> None:
    """The order of fields is the same, too."""
    for made in (series_reply(found), label_sets_reply([one.labels for one in found])):
        assert msgspec.json.encode(made.json()) == msgspec.json.encode(wire.json_of(made.message()))


some_text = st.text(max_size=3)


@given(st.lists(some_text | st.just("a:b:c:d:e") | st.just("a:b:c:::"), max_size=3))
def test_types_and_names_as_json_say_the_same_as_their_messages(found: list[str]) -> None:
    for made in (types_reply(found), names_reply(wire.LabelNamesResponse, found)):
        assert repr(made.json()) == repr(wire.json_of(made.message()))


@given(
    st.lists(some_text | st.just("],["), min_size=1, max_size=3),
    st.lists(st.lists(st.sampled_from([0, 7, -1, 2**63 - 1]), min_size=4, max_size=8), min_size=1),
    st.sampled_from([0, 1, 2**63 - 1]),
)
def test_a_flame_graph_as_json_says_the_same_as_its_message(
    names: list[str], levels: list[list[int]], total: int
) -> None:
    made = graph_reply(graph_of(names, levels, total, total // 2))
    assert msgspec.json.encode(made.json()) == msgspec.json.encode(wire.json_of(made.message()))
