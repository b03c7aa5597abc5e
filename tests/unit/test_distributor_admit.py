"""What is let in, what it is called, and what is kept of it."""

from __future__ import annotations

import gzip
import zlib

import pytest

from maar.distributor.admit import PushedProfile, admit, unpack
from maar.distributor.naming import profile_name
from maar.distributor.settings import Limits
from maar.model.errors import InvalidInput, MaarError, MalformedProfile, TooLarge
from maar.model.ids import ANONYMOUS, TenantId
from maar.model.profile import RawProfile
from maar.model.time import DAY_NS, SECOND_NS
from maar.pprof.gzip import gunzip
from support.http.pushed import CPU, NOW_NS, gz, pprof

LABELS = (("service_name", "shop"), ("__name__", "process_cpu"))
LIMIT = 1 << 20
GZIP = 31  # to zlib: its container, and the largest window


def admitted(
    body: bytes,
    *,
    labels: tuple[tuple[str, str], ...] = LABELS,
    client_id: str = "",
    time_ns: int = 0,
    now_ns: int = NOW_NS,
    tenant: TenantId = ANONYMOUS,
    limits: Limits | None = None,
) -> RawProfile:
    pushed = PushedProfile(labels, body, client_id, time_ns)
    return admit(
        pushed, tenant=tenant, now_ns=now_ns, limits=limits or Limits(), kept_ns=90 * DAY_NS
    )


def test_a_profile_is_summed_up_as_it_is_admitted() -> None:
    raw = pprof()
    profile = admitted(gz(raw))
    assert profile.service == "shop"
    assert profile.types == (CPU,)
    assert (profile.time_ns, profile.duration_ns) == (NOW_NS, SECOND_NS)
    assert (profile.samples, profile.raw_size) == (1, len(raw))


def test_gzip_is_kept_as_it_came() -> None:
    body = gz(pprof())
    assert admitted(body).payload == body


def test_a_raw_profile_is_compressed_for_storage() -> None:
    profile = admitted(pprof())
    assert gzip.decompress(profile.payload) == pprof()


def test_a_gzip_of_several_members_becomes_one() -> None:
    raw = pprof()
    body = gz(raw[:40]) + gz(raw[40:])
    unpacked, payload = unpack(body, limit=LIMIT)
    assert unpacked == raw
    assert payload != body
    assert gunzip(payload, limit=LIMIT) == raw


def test_an_empty_member_behind_the_profile_is_not_kept() -> None:
    raw = pprof()
    assert unpack(gz(raw) + gz(b""), limit=LIMIT)[1] != gz(raw) + gz(b"")


@pytest.mark.parametrize("flag", [0x20, 0x40, 0x80])
def test_a_gzip_that_other_readers_refuse_is_not_kept(flag: int) -> None:
    body = bytearray(gz(pprof()))
    body[3] |= flag
    with pytest.raises(zlib.error):
        zlib.decompress(body, GZIP)
    unpacked, payload = unpack(bytes(body), limit=LIMIT)
    assert unpacked == zlib.decompress(payload, GZIP) == pprof()


def test_gzip_within_gzip_is_unpacked_twice_and_stored_once() -> None:
    raw = pprof()
    assert unpack(gz(gz(raw)), limit=LIMIT) == (raw, gz(raw))


def test_gzip_thrice_is_not_a_profile() -> None:
    with pytest.raises(MalformedProfile):
        admitted(gz(gz(gz(pprof()))))


def test_a_retry_is_the_same_profile_however_it_is_compressed() -> None:
    assert admitted(pprof()).id == admitted(gz(pprof())).id


def test_twins_with_different_client_ids_stay_apart() -> None:
    assert admitted(pprof(), client_id="a").id != admitted(pprof(), client_id="b").id


def test_tenants_never_share_an_id() -> None:
    assert admitted(pprof()).id != admitted(pprof(), tenant=TenantId("acme")).id


def test_the_order_of_labels_does_not_matter() -> None:
    assert admitted(pprof(), labels=LABELS[::-1]) == admitted(pprof())


def test_an_undated_profile_takes_the_agents_time() -> None:
    profile = admitted(pprof(time_ns=0), time_ns=NOW_NS - SECOND_NS)
    assert profile.time_ns == NOW_NS - SECOND_NS


def test_an_undated_profile_without_any_time_is_of_now() -> None:
    assert admitted(pprof(time_ns=7)).time_ns == NOW_NS


def test_whose_clock_dated_a_profile_is_known() -> None:
    reckoned = NOW_NS - SECOND_NS  # from=now-1s, or folded stacks that we encode ourselves
    assert admitted(pprof()).dated
    assert admitted(pprof(time_ns=0), time_ns=NOW_NS - SECOND_NS).dated
    assert not admitted(pprof(time_ns=0)).dated
    for body, dated in (
        (pprof(time_ns=0), False),
        (pprof(time_ns=reckoned), False),
        (pprof(), True),
    ):
        pushed = PushedProfile(LABELS, body, time_ns=reckoned, own_time=False)
        made = admit(pushed, tenant=ANONYMOUS, now_ns=NOW_NS, limits=Limits())
        assert made.dated is dated


def test_an_undated_profile_sent_again_under_its_client_id_is_the_same() -> None:
    first = admitted(pprof(time_ns=0), client_id="a", now_ns=NOW_NS)
    again = admitted(pprof(time_ns=0), client_id="a", now_ns=NOW_NS + SECOND_NS)
    assert first.id == again.id


def test_equal_undated_profiles_without_client_id_are_two() -> None:
    first = admitted(pprof(time_ns=0), now_ns=NOW_NS)
    second = admitted(pprof(time_ns=0), now_ns=NOW_NS + SECOND_NS)
    assert first.id != second.id


def test_dotted_label_names_are_kept_with_underscores() -> None:
    profile = admitted(pprof(), labels=(*LABELS, ("otel.scope.name", "com.grafana/python")))
    assert ("otel_scope_name", "com.grafana/python") in profile.labels


def test_a_profile_without_name_is_named_by_its_types() -> None:
    profile = admitted(pprof(), labels=(("service_name", "shop"),))
    assert profile.types == (CPU,)
    assert ("__name__", "process_cpu") in profile.labels


@pytest.mark.parametrize("offset_ns", [-90 * DAY_NS + 1, 0, 600 * SECOND_NS])
def test_times_up_to_the_bounds_are_taken(offset_ns: int) -> None:
    assert admitted(pprof(time_ns=NOW_NS + offset_ns)).time_ns == NOW_NS + offset_ns


@pytest.mark.parametrize(
    ("body", "labels", "error", "words"),
    [
        (pprof(), (("__name__", "process_cpu"),), InvalidInput, "no service_name"),
        (pprof(), (("service_name", "s" * 513),), InvalidInput, "513 bytes"),
        (pprof(time_ns=NOW_NS + 600 * SECOND_NS + 1), LABELS, InvalidInput, "in the future"),
        (pprof(time_ns=NOW_NS - 90 * DAY_NS), LABELS, InvalidInput, "90 days"),
        (pprof(types=[("x" * 600, "y")]), LABELS, MalformedProfile, "profile type"),
        (pprof(types=[("cpu\n", "y")]), LABELS, MalformedProfile, "profile type"),
        (gz(pprof())[:-9], LABELS, MalformedProfile, "cut off"),
        (gz(pprof()) + b"junk", LABELS, MalformedProfile, "something else follow"),
        (gz(b"\0" * (65 << 20)), LABELS, TooLarge, "larger than the limit"),
        (b"not a protobuf", LABELS, MalformedProfile, "profile"),
        (b"", LABELS, MalformedProfile, "profile"),
    ],
)
def test_what_cannot_be_stored_is_refused_with_a_sentence(
    body: bytes, labels: tuple[tuple[str, str], ...], error: type[MaarError], words: str
) -> None:
    with pytest.raises(error, match=words):
        admitted(body, labels=labels)


@pytest.mark.parametrize(
    ("types", "shown_as", "name"),
    [
        (["samples", "cpu"], {}, "process_cpu"),
        (["samples", "wall", "cpu"], {}, "wall"),
        (["inuse_objects", "inuse_space"], {}, "memory"),
        (["objects", "space"], {}, "memory"),
        (["goroutine"], {}, "goroutines"),
        (["goroutine"], {"goroutine": "goroutines"}, "goroutines"),
        (["goroutineleak"], {"goroutineleak": "goroutine_leak"}, "goroutine_leak"),
        (["samples"], {}, "process_cpu"),
        (["alloc_samples", "alloc_size"], {}, "memory"),
        (["contentions", "delay"], {"contentions": "block_count"}, "block"),
        (["contentions", "delay"], {"contentions": "mutex_count"}, "mutex"),
        (["page faults"], {}, "page_faults"),
        ([], {}, "unknown"),
    ],
)
def test_types_imply_a_name(types: list[str], shown_as: dict[str, str], name: str) -> None:
    assert profile_name(types, shown_as) == name


DOTNET = (("cpu", "nanoseconds"), ("alloc-samples", "count"), ("alloc-size", "bytes"))


def test_value_types_of_an_agent_that_names_nothing_are_spelled_as_dashboards_ask_for_them() -> (
    None
):
    raw = pprof(types=DOTNET, period_type=("", "nanoseconds"))
    assert admitted(raw, labels=LABELS[:1]).types == (
        "process_cpu:cpu:nanoseconds::nanoseconds",
        "process_cpu:alloc_samples:count::nanoseconds",
        "process_cpu:alloc_size:bytes::nanoseconds",
    )
    named = admitted(raw, labels=(*LABELS[:1], ("__name__", "mine")))
    assert named.types[1] == "mine:alloc-samples:count::nanoseconds"


def test_two_value_types_never_become_one() -> None:
    raw = pprof(types=(("a-b", "count"), ("a_b", "count")))
    assert [text.split(":")[1] for text in admitted(raw, labels=LABELS[:1]).types] == ["a-b", "a_b"]
