"""The schedule under load, on a virtual clock: nobody starves, and nobody rings in vain."""

from __future__ import annotations

import pytest

from maar.scheduling.queue import JobQueue
from maar.scheduling.resources import Room
from maar.tools.simulate.schedule import Scene, ScheduleReport, simulate


@pytest.fixture(scope="module")
def day() -> ScheduleReport:
    """The load at which a peer's users report 91 of 408 schedules blocked."""
    return simulate(Scene(tenants=60, stores=6, copies=3, work_s=48, interval_s=3600, days=1))


def test_sixty_tenants_on_three_of_six_stores_are_never_late(day: ScheduleReport) -> None:
    assert (day.late, day.alarms) == (0, 0)
    assert day.latest < 8 / 7
    assert day.sessions >= 60 * 23, "each of them once an hour"
    assert not any(sample.states["LATE"] or sample.states["OVERDUE"] for sample in day.samples)


def test_stores_are_shared_by_two_sessions_at_most_and_never_overbooked(
    day: ScheduleReport,
) -> None:
    assert day.busy_share == pytest.approx(day.sessions * 48 * 3 / (6 * 86_400))
    assert day.busy_share < 1


def test_408_schedules_of_the_same_work_are_all_on_time() -> None:
    """As many as the peer has for 60 tables on 6 nodes; 7 s each is as much work as 48 s of 60."""
    report = simulate(Scene(tenants=408, work_s=7, days=0.125))
    assert (report.late, report.alarms) == (0, 0)
    assert report.sessions >= 408 * 2
    assert not any(sample.states["LATE"] or sample.states["OVERDUE"] for sample in report.samples)


WIDE = Scene(tenants=300, copies=1, wide=1, days=0.125)


def test_who_needs_every_store_gets_them_while_each_is_busy_with_others() -> None:
    assert simulate(WIDE).late == 0


def test_the_simulation_notices_when_somebody_starves(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody reserves stores, so that those who need few are always faster."""
    monkeypatch.setattr(Room, "reserve", lambda *_: None)
    assert simulate(WIDE).late == 1


def test_the_simulation_notices_when_the_last_to_come_are_served_first(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    fair = JobQueue.candidates
    monkeypatch.setattr(
        JobQueue, "candidates", lambda *given, **more: reversed(list(fair(*given, **more)))
    )
    assert simulate(Scene(days=0.25)).late > 0


def test_after_a_long_pause_everybody_rings_twice_and_then_all_is_well() -> None:
    report = simulate(
        Scene(
            tenants=20,
            work_s=60,
            interval_s=3600,
            days=0.6,
            stopped_from_day=0.1,
            stopped_until_day=0.3,
        )
    )
    assert report.late == 20
    assert report.alarms == 40, "a warning and an error each, and no alarm more than once"
    assert report.samples[-1].states["OVERDUE"] == report.samples[-1].states["LATE"] == 0
