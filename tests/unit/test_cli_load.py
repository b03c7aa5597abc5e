"""What a load decides: who pushes when, what a profile is, how long to wait, what to tell."""

from __future__ import annotations

import gzip
from collections import Counter
from random import Random

import pytest

from maar.cli.output.failure import CommandFailed
from maar.cli.retry import PAUSE_MAX_S, pause_s
from maar.distributor.admit import PushedProfile, admit
from maar.distributor.settings import Limits
from maar.model.errors import MalformedProfile
from maar.model.ids import ANONYMOUS
from maar.model.time import SECOND_NS
from maar.tools.load.http import Address
from maar.tools.load.plan import Crowd
from maar.tools.load.profiles import synthetic, template_of
from maar.tools.load.report import SENTENCES_MAX, LoadTally, lines, quantile, report
from support.load.crowd import profile
from support.oracles.pprof_reader import read_plain

NOW_NS = 1_794_000_000 * SECOND_NS


def crowd(**how: float) -> Crowd:
    given = {"tenants": 1, "services": 3, "pods": 2, "rate": 10.0, "seconds": 2.0, **how}
    return Crowd(**given)  # type: ignore[arg-type]


# ── profiles ───────────────────────────────────────────────────────────────────────────────────


def test_a_synthetic_profile_is_admitted_as_it_is_with_its_time_and_total() -> None:
    template = synthetic(7, samples=20)
    body = template.with_time(NOW_NS)
    pushed = PushedProfile((("service_name", "load-1"),), body)
    raw = admit(pushed, tenant=ANONYMOUS, now_ns=NOW_NS + SECOND_NS, limits=Limits())
    assert raw.time_ns == NOW_NS
    assert raw.samples == 20
    assert raw.payload is body, "one sound gzip member: the server compresses nothing again"
    plain = read_plain(gzip.decompress(body))
    assert sum(sample.values[0] for sample in plain.samples) == template.total


def test_another_time_is_another_profile_and_another_seed_another_program() -> None:
    template = synthetic(7, samples=20)
    ids = {
        admit(
            PushedProfile((("service_name", "load-1"),), one.with_time(NOW_NS + n)),
            tenant=ANONYMOUS,
            now_ns=NOW_NS,
            limits=Limits(),
        ).id
        for one in (template, synthetic(8, samples=20))
        for n in range(3)
    }
    assert len(ids) == 6
    assert template.with_time(NOW_NS) == template.with_time(NOW_NS), (
        "the same bytes can be sent again"
    )


@pytest.mark.parametrize("pack", [gzip.compress, bytes])
def test_a_given_profile_is_dated_anew_and_else_unchanged(pack: type[bytes]) -> None:
    given = profile(time_ns=NOW_NS - 10**15, value=77)
    template = template_of(pack(given))
    dated = gzip.decompress(template.with_time(NOW_NS))
    assert read_plain(dated) == read_plain(profile(time_ns=NOW_NS, value=77))
    assert template.total == 77


def test_what_is_no_profile_is_said() -> None:
    with pytest.raises(MalformedProfile, match="not those of a pprof"):
        template_of(b"root:x:0:0")


# ── the plan ───────────────────────────────────────────────────────────────────────────────────


def test_every_pod_of_every_service_of_every_tenant_pushes_equally() -> None:
    sources = crowd(tenants=2, services=3, pods=4).sources(seed=1)
    assert len(sources) == len(set(sources)) == 24
    assert Counter(source.tenant for source in sources) == {"load-1": 12, "load-2": 12}
    assert Counter(source.service for source in sources) == {f"load-{n}": 8 for n in (1, 2, 3)}
    assert {source.number for source in sources} == set(range(6))
    assert len({(source.service, source.pod) for source in sources}) == 12
    assert sources != crowd(tenants=2, services=3, pods=4).sources(seed=2)


def test_one_tenant_is_the_servers_default() -> None:
    assert {source.tenant for source in crowd().sources(seed=1)} == {""}


def test_pushes_are_due_at_a_steady_rate() -> None:
    assert crowd(rate=10.0, seconds=2.0).pushes == 20
    assert crowd(rate=0.1, seconds=1.0).pushes == 1
    assert [crowd(rate=4.0).due_s(n) for n in range(3)] == [0.0, 0.25, 0.5]


def test_pauses_double_to_a_bound_differ_and_are_never_shorter_than_told() -> None:
    chance = Random(1)
    for tries, longest in ((0, 0.1), (1, 0.2), (3, 0.8), (20, PAUSE_MAX_S)):
        pauses = [pause_s(tries, told_s=0.0, chance=chance) for _ in range(200)]
        assert longest / 2 <= min(pauses) < max(pauses) <= longest
        assert len(set(pauses)) > 100, "those who were refused together come back apart"
        assert min(pause_s(tries, told_s=7.0, chance=chance) for _ in range(50)) > 7.0


# ── addresses ──────────────────────────────────────────────────────────────────────────────────


def test_addresses() -> None:
    plain = Address.of("http://127.0.0.1:4040/")
    assert (plain.host, plain.port, plain.secure) == ("127.0.0.1", 4040, False)
    assert plain.path == "/push.v1.PusherService/Push"
    behind = Address.of("https://maar.example/lake")
    assert (behind.port, behind.secure) == (443, True)
    assert behind.path == "/lake/push.v1.PusherService/Push"
    head = plain.head("acme", 12).decode()
    assert "X-Scope-OrgID: acme\r\n" in head
    assert "Content-Length: 12\r\n" in head
    assert "X-Scope-OrgID" not in plain.head("", 12).decode()


@pytest.mark.parametrize("url", ["127.0.0.1:4040", "ftp://x", "http://", "http://x:99999"])
def test_what_is_no_address_is_said(url: str) -> None:
    with pytest.raises(CommandFailed, match="is not a server's address"):
        Address.of(url)


# ── the report ─────────────────────────────────────────────────────────────────────────────────


def test_quantiles_are_of_values_that_were_seen() -> None:
    ordered = [float(n) for n in range(1, 101)]
    assert [quantile(ordered, share) for share in (0.5, 0.9, 0.99, 1.0)] == [50, 90, 99, 100]
    assert quantile([3.0], 0.5) == 3.0
    assert quantile([], 0.99) == 0.0


def test_the_report_says_what_was_never_acknowledged_and_why() -> None:
    tally = LoadTally(sent=10, acknowledged=8, retries=3, bytes=2048)
    tally.waits_s.extend(n / 10 for n in range(8))
    for _ in range(4):
        tally.count_refusal("503", "no writer answers")
    tally.count_refusal("400", "too old")
    found = report(tally, servers=["http://a"], seconds=2.0, planned=10, rate=5.0)
    assert found.never_acknowledged == 2
    assert found.rate_reached == 4.0
    assert found.latency_s == {"p50": 0.3, "p90": 0.7, "p99": 0.7, "max": 0.7}
    assert found.refusals == {"503": 4, "400": 1}
    told = "\n".join(lines(found))
    for part in (
        "8 of 10 pushes acknowledged in 2.00 s: 4.0 a second (5.0 asked), 2.0 KiB",
        "p50 300.0 ms, p90 700.0 ms",
        "retries: 3; refusals: 503 4, 400 1",
        "4 times 503: no writer answers",
        "NEVER ACKNOWLEDGED: 2",
    ):
        assert part in told, told


def test_a_good_load_says_little_and_a_slow_generator_owns_up() -> None:
    tally = LoadTally(sent=1, acknowledged=1)
    told = list(lines(report(tally, servers=[], seconds=1.0, planned=3, rate=1.0)))
    assert len(told) == 3
    assert "refusals: none" in told[2]
    tally.late_s = 3.0
    assert "the generator fell 3.00 s behind at worst and left 2 pushes out" in "\n".join(
        lines(report(tally, servers=[], seconds=1.0, planned=3, rate=1.0))
    )


def test_only_a_few_different_sentences_are_kept() -> None:
    tally = LoadTally()
    for number in range(50):
        tally.count_refusal("503", f"shard {number}")
        tally.count_refusal("503", "shard 0")
    assert len(tally.sentences) == SENTENCES_MAX
    assert tally.sentences["503: shard 0"] == 51
    assert tally.refusals == {"503": 100}
