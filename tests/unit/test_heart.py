"""When a process hangs, in virtual time; and what its beats say."""

from __future__ import annotations

import asyncio
import os
import threading
from pathlib import Path

import pytest

from maar.app.processes import status_file
from maar.app.processes.heart import BEAT_S, STARTING_PATIENCE, TICK_S, Beats, Heart
from maar.app.processes.status_file import ProcessState
from maar.model.errors import MaarError
from support.clock.virtual_time import run_virtually

STARTING, RUNNING = b"s", b"r"


def ticks(heart: Heart, seconds: float) -> bool:
    """Whether it hangs after so long, looked at every second."""
    for _ in range(int(seconds / TICK_S)):
        heart.pass_time(TICK_S)
    return heart.hangs()


def test_silence_longer_than_the_setting_is_a_hang() -> None:
    heart = Heart(30)
    heart.on_beat(RUNNING)
    assert not ticks(heart, 30)
    assert ticks(heart, 1)


def test_a_beat_ends_the_silence() -> None:
    heart = Heart(30)
    for _ in range(100):
        heart.on_beat(RUNNING)
        assert not ticks(heart, 29)


def test_a_start_that_takes_minutes_is_no_hang_while_it_beats() -> None:
    heart = Heart(30)
    for _ in range(3600):
        heart.on_beat(STARTING)
        assert not ticks(heart, BEAT_S)
    assert not heart.running


def test_a_start_is_given_more_time_but_not_for_ever() -> None:
    heart = Heart(30)
    heart.on_beat(STARTING)
    assert not ticks(heart, 30 * STARTING_PATIENCE)
    assert ticks(heart, 1)


def test_once_it_runs_it_runs() -> None:
    heart = Heart(30)
    heart.on_beat(STARTING + RUNNING + STARTING)  # the thread's last beat may come late
    heart.on_beat(STARTING)
    assert heart.running
    assert ticks(heart, 31)


@pytest.mark.parametrize("away_s", [60.0, 86_400.0])
def test_a_supervisor_that_was_stopped_itself_blames_nobody(away_s: float) -> None:
    heart = Heart(30)
    heart.on_beat(RUNNING)
    heart.pass_time(away_s)  # stopped, or the machine was suspended
    assert not heart.hangs()
    assert not ticks(heart, 20), "they get nearly all of their time again"
    assert ticks(heart, 20), "but one that stays silent hangs"


def test_zero_means_never() -> None:
    heart = Heart(0)
    heart.on_beat(RUNNING)
    assert not ticks(heart, 100_000)


def test_a_process_tells_that_it_starts_and_then_that_its_loop_goes_round() -> None:
    ours, theirs = os.pipe()
    beats = Beats(theirs)
    assert os.read(ours, 100) == STARTING, "at once, before anything that takes long"
    beats.mark_running()
    assert RUNNING in os.read(ours, 100)

    async def story() -> None:
        going_on = asyncio.create_task(beats.go_on())
        await asyncio.sleep(0)
        going_on.cancel()

    run_virtually(story())
    assert os.read(ours, 100) == RUNNING
    os.close(ours)
    beats.mark_running()  # nobody listens any more: no error, and no end of the process
    os.close(theirs)


def test_a_process_that_nobody_watches_does_not_beat() -> None:
    threads = threading.active_count()
    Beats(-1).mark_running()
    assert threading.active_count() == threads


# ── what is reported ───────────────────────────────────────────────────────────────────────────


def test_word_of_the_processes_is_for_those_of_the_same_supervisor(tmp_path: Path) -> None:
    assert status_file.read(tmp_path, supervisor=os.getpid()) == ()
    states = (ProcessState(process="metastore", restarts=3, hangs=1, hung_at_ns=7),)
    status_file.write(tmp_path, states)
    assert status_file.read(tmp_path, supervisor=os.getpid()) == states
    assert status_file.read(tmp_path, supervisor=1) == (), "of a server that was here before"
    (tmp_path / status_file.FILE).write_bytes(b"{")
    with pytest.raises(MaarError, match="cannot read"):
        status_file.read(tmp_path, supervisor=os.getpid())


def test_metrics_of_the_processes() -> None:
    page = status_file.metrics_page([ProcessState(process="query", restarts=2, hangs=1)])
    assert 'maar_process_restarts_total{process="query"} 2\n' in page
    assert 'maar_process_hangs_total{process="query"} 1\n' in page
    assert status_file.metrics_page(()) == ""
