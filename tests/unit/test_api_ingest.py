"""/ingest, as older agents and other languages send it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from urllib.parse import quote

import pytest

from maar.distributor.settings import Limits
from maar.model.profile import RawProfile
from maar.model.time import SECOND_NS
from maar.pprof.gzip import gunzip
from support.http.front import Front
from support.http.pushed import CPU, NOW_NS, gz, pprof
from support.oracles.pprof_reader import read_plain

NOW_S = NOW_NS // SECOND_NS
PATHS = ["/ingest", "/pyroscope/ingest"]


NOT_UTF8 = pprof(functions=("caffe",)).replace(b"caffe", b"caff\xe9")


def only(front: Front) -> RawProfile:
    (profile,) = front.writer.profiles()
    return profile


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("encoding", [{"content-encoding": "gzip"}, {}])
def test_the_python_agent_0_8_is_taken_as_it_is(path: str, encoding: dict[str, str]) -> None:
    front = Front()
    reply = front.post(
        f"{path}?name=old.app&from={NOW_S - 10}&until={NOW_S}"
        "&format=pprof&sampleRate=100&spyName=pyspy",
        content=gz(pprof()),
        headers={
            "content-type": "binary/octet-stream",
            "x-scope-orgid": "acme",
            **encoding,
        },
    )
    assert (reply.status_code, reply.content) == (200, b"")
    profile = only(front)
    assert reply.headers["maar-profile-ids"] == profile.id.hex()
    assert profile.payload == gz(pprof())
    assert profile.types == (CPU,)
    assert profile.labels == (
        ("__name__", "process_cpu"),
        ("pyroscope_spy", "pyspy"),
        ("service_name", "old.app"),
    )
    assert profile.tenant == "acme"


def test_the_python_agent_0_8_behind_a_proxy_that_unpacked_it() -> None:
    front = Front()
    reply = front.post(f"/ingest?name=old.app&from={NOW_S}&format=pprof", content=pprof())
    assert reply.status_code == 200
    assert gunzip(only(front).payload, limit=1 << 20) == pprof()


def node_url(extra: str) -> str:
    name = (
        "node.app{otel.scope.name=com.grafana.pyroscope/nodejs,otel.scope.version=0.6.4,"
        "process.runtime.name=nodejs,process.runtime.version=20.20.2,region=eu-1}"
    )
    return (
        f"/ingest?format=pprof&from={NOW_S - 5}&name={quote(name, safe='')}"
        f"&spyName=nodespy&until={NOW_S}{extra}"
    )


def test_the_node_agents_wall_profile_is_taken_as_it_is() -> None:
    front = Front()
    wall = pprof(
        types=(("samples", "count"), ("wall", "nanoseconds"), ("cpu", "nanoseconds")),
        period_type=("wall", "nanoseconds"),
    )
    reply = front.post(
        node_url("&sampleRate=200"),
        content=gz(wall),
        headers={"content-type": "application/octet-stream", "X-Scope-OrgID": "acme"},
    )
    assert reply.status_code == 200
    profile = only(front)
    assert profile.service == "node.app"
    assert profile.types == (
        "wall:samples:count:wall:nanoseconds",
        "wall:wall:nanoseconds:wall:nanoseconds",
        "wall:cpu:nanoseconds:wall:nanoseconds",
    )
    assert ("otel_scope_name", "com.grafana.pyroscope/nodejs") in profile.labels
    assert ("process_runtime_version", "20.20.2") in profile.labels


def test_the_node_agents_heap_profile_has_no_rate_and_perhaps_no_time() -> None:
    front = Front()
    heap = pprof(types=(("inuse_objects", "count"), ("inuse_space", "bytes")), time_ns=0)
    assert front.post(node_url(""), content=gz(heap)).status_code == 200
    assert only(front).time_ns == (NOW_S - 5) * SECOND_NS
    assert ("__name__", "memory") in only(front).labels


def test_the_go_agents_form_is_taken() -> None:
    front = Front()
    mutex = pprof(types=(("contentions", "count"), ("delay", "nanoseconds")))
    config = b'{"contentions":{"display-name":"block_count","units":"lock_samples"}}'
    reply = front.post(
        f"/ingest?name=go.app&from={NOW_S - 5}&until={NOW_S}&spyName=gospy&sampleRate=0"
        "&units=&aggregationType=",
        files={
            "profile": ("profile.pprof", gz(mutex), "application/octet-stream"),
            "sample_type_config": ("sample_type_config.json", config, "application/json"),
        },
    )
    assert reply.status_code == 200
    assert ("__name__", "block") in only(front).labels
    assert only(front).payload == gz(mutex)


def test_a_form_is_read_also_when_the_format_says_pprof() -> None:
    front = Front()
    reply = front.post("/ingest?name=go.app&format=pprof", files={"profile": pprof()})
    assert reply.status_code == 200


def folded(front: Front) -> tuple[list[tuple[list[str], int]], Any]:
    plain = read_plain(gunzip(only(front).payload, limit=1 << 20))
    rows = [
        (
            [
                plain.functions[plain.locations[row].lines[0].function].name
                for row in sample.locations
            ],
            sample.values[0],
        )
        for sample in plain.samples
    ]
    return sorted(rows), plain


def test_folded_groups_are_the_default_and_count_cpu_time() -> None:
    front = Front()
    reply = front.post(
        f"/ingest?name=shop{{region=eu}}&from={NOW_S - 10}&until={NOW_S}&sampleRate=50",
        content=b"main;work 3\nmain 1\n",
    )
    assert reply.status_code == 200
    rows, plain = folded(front)
    assert rows == [(["main"], 20_000_000), (["work", "main"], 60_000_000)]
    assert (plain.time_ns, plain.duration_ns) == ((NOW_S - 10) * SECOND_NS, 10 * SECOND_NS)
    assert only(front).types == (CPU,)
    assert only(front).service == "shop"
    assert ("region", "eu") in only(front).labels


def test_text_in_any_language_is_kept_as_it_is() -> None:
    front = Front()
    url = f"/ingest?name=caf%C3%A9{{ort={quote('köln')}}}&from={NOW_S}"
    assert front.post(url, content="größe;関数 3\n".encode()).status_code == 200
    assert folded(front)[0] == [(["関数", "größe"], 30_000_000)]
    assert only(front).service == "café"
    assert ("ort", "köln") in only(front).labels


@pytest.mark.parametrize(
    ("times", "dated"),
    [
        (f"&from={NOW_S - 10}", True),
        (f"&until={NOW_S}", True),
        ("&from=now-10s&until=now", False),
        ("&until=now", False),
        ("", False),
    ],
)
def test_folded_stacks_are_dated_by_whose_clock_gave_the_time(times: str, dated: bool) -> None:
    front = Front()
    assert front.post(f"/ingest?name=shop{times}", content=b"main;work 1\n").status_code == 200
    (profile,) = front.writer.profiles()
    assert profile.dated is dated


def test_folded_lines_are_counted() -> None:
    front = Front()
    reply = front.post(
        "/ingest?name=shop.alloc_space&format=lines", content=gz(b"main;work\nmain;work\n")
    )
    assert reply.status_code == 200
    assert folded(front)[0] == [(["work", "main"], 2)]
    assert only(front).types == ("memory:alloc_space:bytes:space:bytes",)
    assert only(front).service == "shop"


@pytest.mark.parametrize("unit", [1, 10**3, 10**6, 10**9])
def test_times_come_in_any_unit(unit: int) -> None:
    front = Front()
    url = f"/ingest?name=a&format=pprof&from={(NOW_S - 10) * unit}&until={NOW_S * unit}"
    assert front.post(url, content=pprof(time_ns=0)).status_code == 200
    assert only(front).time_ns == (NOW_S - 10) * SECOND_NS


@pytest.mark.parametrize(
    ("text", "time_ns"),
    [
        (f"{NOW_S - 10}.0", (NOW_S - 10) * SECOND_NS),
        (f"{NOW_S - 10}.25", (NOW_S - 10) * SECOND_NS + SECOND_NS // 4),
        (f"{(NOW_S - 10) * 1000}.5", (NOW_S - 10) * SECOND_NS + 500_000),
        ("now", NOW_NS),
        ("now-10s", NOW_NS - 10 * SECOND_NS),
        ("now-2h", NOW_NS - 7200 * SECOND_NS),
    ],
)
def test_times_may_have_a_fraction_or_be_relative(text: str, time_ns: int) -> None:
    front = Front()
    url = f"/ingest?name=a&format=pprof&from={text}&until=now"
    assert front.post(url, content=pprof(time_ns=0)).status_code == 200
    assert only(front).time_ns == time_ns


def test_a_flush_of_the_go_agent_that_ends_before_it_begins_is_taken() -> None:
    """pyroscope-go 1.4.3 ends a flush at now, rounded down to its upload rate of 15 s."""
    front = Front()
    from_ns, until_ns = NOW_NS - 3 * SECOND_NS, NOW_NS - 9 * SECOND_NS
    heap = pprof(types=(("alloc_objects", "count"), ("alloc_space", "bytes")), time_ns=0)
    config = b'{"alloc_objects":{"units":"objects"},"alloc_space":{"units":"bytes"}}'
    reply = front.post(
        f"/ingest?aggregationType=&from={from_ns}&name=go.app%7B%7D&sampleRate=0&spyName=gospy"
        f"&units=&until={until_ns}",
        files={
            "profile": ("profile.pprof", gz(heap), "application/octet-stream"),
            "sample_type_config": ("sample_type_config.json", config, "application/octet-stream"),
        },
    )
    assert (reply.status_code, reply.content) == (200, b"")
    assert only(front).time_ns == from_ns


def test_text_that_ends_before_it_begins_took_no_time() -> None:
    front = Front()
    url = f"/ingest?name=shop&from={NOW_S - 3}&until={NOW_S - 9}"
    assert front.post(url, content=b"main 1").status_code == 200
    _, plain = folded(front)
    assert (plain.time_ns, plain.duration_ns) == ((NOW_S - 3) * SECOND_NS, 0)


@pytest.mark.parametrize("name", ["service_name", "service.name"])
def test_a_service_name_among_the_labels_wins(name: str) -> None:
    front = Front()
    url = f"/ingest?format=pprof&name=app{{{name}=shop,__name__=evil}}"
    assert front.post(url, content=pprof()).status_code == 200
    assert only(front).service == "shop"
    assert ("app_name", "app") in only(front).labels
    assert ("__name__", "process_cpu") in only(front).labels


@pytest.mark.parametrize(
    ("query", "body", "status", "words"),
    [
        ("format=pprof", pprof(), 400, "`name` is missing"),
        ("name={a=b}", pprof(), 400, "`name` is missing"),
        ("name=a{b=c", pprof(), 400, "does not close"),
        ("name=a{b}", pprof(), 400, "not a label"),
        ("name=a&format=jfr", b"x", 400, "'jfr' is not read by maar yet"),
        ("name=a&format=trie", b"x", 400, "not read by maar yet"),
        ("name=a&format=tree", b"x", 400, "not read by maar yet"),
        ("name=a&format=speedscope", b"x", 400, "not read by maar yet"),
        ("name=a&format=perf", b"x", 400, "'perf' is unknown"),
        ("name=a&from=yesterday", b"x", 400, "not a time"),
        ("name=a&from=99999999999999999999", b"x", 400, "not a time"),
        ("name=a&from=99999999999", b"x", 400, "not a time"),
        ("name=a&from=1.2.3", b"x", 400, "not a time"),
        ("name=a&from=now%2B10s", b"x", 400, "not a time"),
        ("name=a&from=now-10y", b"x", 400, "not a time"),
        (f"name=a&from={NOW_S + 3600}", b"x 1", 422, "in the future"),
        ("name=a&sampleRate=-1", b"x 1", 400, "sampleRate"),
        ("name=a&sampleRate=fast", b"x 1", 400, "sampleRate"),
        ("name=a", b"", 400, "empty"),
        ("name=a", b"main;work many", 400, "whole number"),
        ("name=a.b", b"main 1", 400, "must end in what the text counts"),
        ("name=a&format=pprof", b"junk", 422, ""),
        ("name=a{b%0A=c}&format=pprof", pprof(), 422, "label name"),
        ("name=a{b=%FF}&format=pprof", pprof(), 400, "the query string is not UTF-8"),
        ("name=a", b"main;caf\xe9 1", 400, "line 1 of the folded stacks is not UTF-8"),
        ("name=a&format=lines", b"main\n\nmain;\xed\xa0\x80\n", 400, "line 3 of the folded"),
        ("name=a&format=pprof", NOT_UTF8, 422, "string 3 of the profile's string table is not UTF"),
        ("name=a{b=c%00}&format=pprof", pprof(), 422, "control character"),
    ],
)
def test_bad_requests_are_answered_with_a_plain_sentence(
    query: str, body: bytes, status: int, words: str
) -> None:
    front = Front()
    reply = front.post(f"/ingest?{query}", content=body)
    assert reply.status_code == status
    assert reply.headers["content-type"] == "text/plain; charset=utf-8"
    assert words in reply.text
    assert front.writer.stored == []


@pytest.mark.parametrize(
    ("files", "words"),
    [
        ({"other": b"x"}, "no field `profile`"),
        ({"profile": pprof(), "prev_profile": pprof()}, "prev_profile"),
        ({"profile": pprof(), "sample_type_config": b"["}, "sample_type_config"),
    ],
)
def test_bad_forms_are_refused(files: dict[str, bytes], words: str) -> None:
    front = Front()
    reply = front.post("/ingest?name=a", files=files)
    assert reply.status_code == 400
    assert words in reply.text
    assert front.writer.stored == []


@pytest.mark.parametrize("pack", [bytes, gz])
def test_text_of_a_tenant_over_its_rate_is_refused_before_it_is_read(
    pack: Callable[[bytes], bytes],
) -> None:
    """To unpack and read text costs more than all else that a push costs."""
    text = b"main;work 1\n" * 1000
    front = Front(limits=Limits(rate_bytes=len(text)))
    url = f"/ingest?name=shop.cpu&from={NOW_S}&format=groups"
    assert front.post(url, content=pack(text)).status_code == 200
    reply = front.post(url, content=pack(b"no count" * 1000))
    assert (reply.status_code, reply.headers["retry-after"]) == (429, "1")
    assert front.metric_value("maar_distributor_over_rate_total") == 1
    assert front.metric_value("maar_distributor_refused_total", reason="overloaded") == 1
    front.clock.now_ns += SECOND_NS
    assert front.post(url, content=pack(text)).status_code == 200


def test_text_that_becomes_a_larger_profile_owes_the_rest() -> None:
    text = b"a 1\n"
    front = Front(limits=Limits(rate_bytes=10))
    url = f"/ingest?name=shop.cpu&from={NOW_S}&format=groups"
    assert front.post(url, content=text).status_code == 200
    reply = front.post(url, content=text)
    owed = only(front).raw_size + len(text) - 10
    assert reply.status_code == 429
    assert int(reply.headers["retry-after"]) == -(-owed // 10)
