"""Run policies: the peer's vectors, and where ours closes its gaps."""

from __future__ import annotations

import pytest

from maar.metastore.leader.time_zones import offset_of
from maar.model.errors import InvalidInput
from maar.model.ids import TenantId
from maar.model.plan import JobId, PlanKind
from maar.model.schedule import (
    EVERY_JOB,
    RunPolicy,
    check_run_policy,
    parse_minute,
    pattern,
)
from maar.model.time import SECOND_NS, WallTime
from maar.scheduling.windows import Verdict, verdict

JOB = JobId(TenantId("acme"), PlanKind("repair"), "vnode")
DAY_S = 86_400
SUMMER_S = 1_752_537_600  # 2025-07-15 00:00 UTC
WINTER_S = 1_736_899_200  # 2025-01-15 00:00 UTC


def at(clock: str, day_s: int = 20_000 * DAY_S) -> WallTime:
    hours, minutes, *seconds = map(int, clock.split(":"))
    return WallTime((day_s + 3600 * hours + 60 * minutes + sum(seconds)) * SECOND_NS)


def policy(
    start: str, end: str, jobs: JobId = EVERY_JOB, zone: str = "UTC", id_: int = 1
) -> RunPolicy:
    return RunPolicy(id_, jobs, parse_minute(start), parse_minute(end), zone)


def ask(clock: str, *policies: RunPolicy, job: JobId = JOB, day_s: int = 20_000 * DAY_S) -> Verdict:
    return verdict(policies, job, at(clock, day_s), offset_of=offset_of)


@pytest.mark.parametrize(
    ("start", "end", "wait_ms"),
    [("03:00", "05:00", 1_776_000), ("02:00", "04:30", 0), ("06:30", "05:30", 3_576_000)],
)
def test_the_published_vectors(start: str, end: str, wait_ms: int) -> None:
    found = ask("04:30:24", policy(start, end))
    assert (found.allowed, found.wait_ns) == (wait_ms == 0, wait_ms * 1_000_000)


def test_a_window_has_its_first_moment_and_not_its_last() -> None:
    window = policy("03:00", "05:00")
    refused = [
        not ask(clock, window).allowed for clock in ("02:59:59", "03:00", "04:59:59", "05:00")
    ]
    assert refused == [False, True, True, False]


def test_past_midnight() -> None:
    window = policy("22:00", "02:00")
    refused = [
        not ask(clock, window).allowed for clock in ("21:59:59", "23:00", "01:59:59", "02:00")
    ]
    assert refused == [False, True, True, False]


def test_from_midnight_to_midnight_is_a_pause_that_is_asked_again_each_minute() -> None:
    for clock in ("00:00", "12:00", "23:59:59"):
        found = ask(clock, policy("00:00", "00:00"))
        assert not found.allowed
        assert found.wait_ns == 60 * SECOND_NS
        assert "pauses" in found.why


def test_a_pause_is_told_at_once_and_not_minute_by_minute() -> None:
    asked = []

    def counted(zone: str, wall: WallTime) -> int | None:
        asked.append(zone)
        return offset_of(zone, wall)

    policies = [policy("00:00", "00:00", id_=1), policy("01:00", "02:00", id_=2)]
    verdict(policies, JOB, at("12:00"), offset_of=counted)
    assert len(asked) < 10


def test_windows_that_touch_or_overlap_are_waited_out_together() -> None:
    both = (policy("03:00", "04:00", id_=1), policy("04:00", "05:00", id_=2))
    found = ask("03:30", *both)
    assert found.wait_ns == 90 * 60 * SECOND_NS
    assert [each.id for each in found.by] == [1, 2]
    overlapping = (policy("03:00", "05:00", id_=1), policy("04:00", "06:00", id_=2))
    assert ask("03:00", *overlapping).wait_ns == 3 * 3600 * SECOND_NS
    apart = (policy("03:00", "04:00", id_=1), policy("04:01", "05:00", id_=2))
    assert ask("03:30", *apart).wait_ns == 30 * 60 * SECOND_NS


@pytest.mark.parametrize(
    ("tenant", "kind", "type_", "about"),
    [
        ("*", "*", "*", True),
        ("acme", "*", "*", True),  # which the peer lacks
        ("*", "repair", "*", True),
        ("*", "repair", "incremental", False),
        ("globex", "*", "*", False),
        ("acme", "cluster", "*", False),
    ],
)
def test_wildcards_at_every_place(tenant: str, kind: str, type_: str, about: bool) -> None:
    found = ask("03:30", policy("03:00", "04:00", pattern(tenant, kind, type_)))
    assert found.allowed != about


def test_a_time_zone_has_its_own_clock_in_summer_and_winter() -> None:
    window = policy("02:00", "04:00", zone="Europe/Berlin")
    assert not ask("00:30", window, day_s=SUMMER_S).allowed, "02:30 there"
    assert ask("00:30", window, day_s=WINTER_S).allowed, "01:30 there"
    assert not ask("01:30", window, day_s=WINTER_S).allowed


@pytest.mark.parametrize("zone", ["Mars/Olympus", "", "../etc/passwd", "\0"])
def test_a_time_zone_that_nobody_knows_refuses_with_a_sentence(zone: str) -> None:
    found = ask("12:00", policy("02:00", "04:00", zone=zone))
    assert not found.allowed
    assert "time zone" in found.why
    elsewhere = policy("02:00", "04:00", pattern("globex"), zone=zone)
    assert ask("12:00", elsewhere).allowed, "of other tenants it says nothing"


def test_what_cannot_be_meant_is_refused_when_it_is_set() -> None:
    with pytest.raises(InvalidInput, match="00:00 to 00:00"):
        check_run_policy(policy("05:00", "05:00"))
    for text in ("5", "25:00", "12:60", "24:01", "-1:00", "12:0"):
        with pytest.raises(InvalidInput, match="time of day"):
            parse_minute(text)
    assert parse_minute("24:00") == 0
