"""A connection between driver and task: what each learns from its end."""

from __future__ import annotations

import errno
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator

import pytest

from maar.model.errors import LeaseLost, Unavailable
from maar.runner import lifeline
from maar.runner.lifeline import CUT_OFF, Lifelines, hold_lifeline

pytestmark = pytest.mark.component

PATIENCE_S = 60.0
LONG_S = 3600.0

HOLDER = (
    "import sys, time; from maar.runner.lifeline import hold_lifeline\n"
    "with hold_lifeline(sys.argv[1]):\n"
    "    print('held', flush=True)\n"
    "    time.sleep(600)\n"
)


@pytest.fixture
def lines() -> Iterator[Lifelines]:
    lines = Lifelines(bind="127.0.0.1", host="127.0.0.1", port=0)
    yield lines
    lines.close()


@pytest.fixture
def processes() -> Iterator[list[subprocess.Popen[bytes]]]:
    started: list[subprocess.Popen[bytes]] = []
    yield started
    for process in started:
        process.kill()
        process.wait()
        if process.stdout is not None:
            process.stdout.close()


def holder(address: str, processes: list[subprocess.Popen[bytes]]) -> subprocess.Popen[bytes]:
    """A process that holds a line and does nothing else."""
    process = subprocess.Popen([sys.executable, "-c", HOLDER, address], stdout=subprocess.PIPE)
    processes.append(process)
    assert process.stdout is not None
    assert process.stdout.readline() == b"held\n"
    return process


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.005)


def test_a_task_that_ended_in_order_is_gone(lines: Lifelines) -> None:
    line = lines.new(timeout_s=LONG_S)
    with hold_lifeline(line.address) as hold:
        hold.check()
        assert not line.wait_gone(wait_s=0)
        assert line.places == [lifeline.place()]
    assert line.wait_gone(wait_s=PATIENCE_S)


def test_a_task_that_let_go_writes_nothing_more(lines: Lifelines) -> None:
    with hold_lifeline(lines.new(timeout_s=LONG_S).address) as hold:
        pass
    with pytest.raises(LeaseLost):
        hold.check()


def test_a_killed_process_is_seen_to_be_gone(
    lines: Lifelines, processes: list[subprocess.Popen[bytes]]
) -> None:
    line = lines.new(timeout_s=LONG_S)
    process = holder(line.address, processes)
    process.kill()
    assert line.wait_gone(wait_s=PATIENCE_S)


def test_a_frozen_process_is_not_gone(
    lines: Lifelines, processes: list[subprocess.Popen[bytes]]
) -> None:
    line = lines.new(timeout_s=LONG_S)
    process = holder(line.address, processes)
    process.send_signal(signal.SIGSTOP)
    os.waitpid(process.pid, os.WUNTRACED)  # a signal takes a moment
    line.cut()
    assert not line.wait_gone(wait_s=0.2)
    process.send_signal(signal.SIGCONT)
    assert line.wait_gone(wait_s=PATIENCE_S)
    assert process.wait(PATIENCE_S) == CUT_OFF


def test_a_host_that_does_not_answer_may_run_its_task_for_ever(
    lines: Lifelines, monkeypatch: pytest.MonkeyPatch
) -> None:
    def unreachable(_: socket.socket) -> bool:
        raise TimeoutError(errno.ETIMEDOUT, "no answer to any keep-alive")

    monkeypatch.setattr(lifeline, "_wait_for_the_end", unreachable)
    line = lines.new(timeout_s=LONG_S)
    with hold_lifeline(line.address, lambda: None):
        pass
    assert not line.wait_gone(wait_s=PATIENCE_S)


def test_a_run_is_gone_only_with_all_its_tasks(
    lines: Lifelines, processes: list[subprocess.Popen[bytes]]
) -> None:
    """Spark may run a task twice, when it believes an executor lost."""
    line = lines.new(timeout_s=LONG_S)
    first, second = holder(line.address, processes), holder(line.address, processes)
    second.kill()
    assert not line.wait_gone(wait_s=0.2)
    first.kill()
    assert line.wait_gone(wait_s=PATIENCE_S)
    assert len(line.places) == 2


def test_a_task_that_is_let_go_learns_of_it_and_writes_nothing_more(lines: Lifelines) -> None:
    line = lines.new(timeout_s=LONG_S)
    told = threading.Event()
    with hold_lifeline(line.address, told.set) as hold:
        line.cut()
        assert told.wait(PATIENCE_S)
        with pytest.raises(LeaseLost):
            hold.check()


def test_a_task_whose_driver_is_gone_ends(processes: list[subprocess.Popen[bytes]]) -> None:
    driver = subprocess.Popen(
        [
            sys.executable,
            "-c",
            "import time; from maar.runner.lifeline import Lifelines\n"
            "lines = Lifelines(bind='127.0.0.1', host='127.0.0.1', port=0)\n"
            "print(lines.new(timeout_s=3600).address, flush=True); time.sleep(600)",
        ],
        stdout=subprocess.PIPE,
    )
    processes.append(driver)
    assert driver.stdout is not None
    task = holder(driver.stdout.readline().decode().strip(), processes)
    driver.kill()
    assert task.wait(PATIENCE_S) == CUT_OFF


def test_nobody_takes_hold_after_the_cut(lines: Lifelines) -> None:
    line = lines.new(timeout_s=LONG_S)
    line.cut()
    with pytest.raises(LeaseLost, match="before its task began"), hold_lifeline(line.address):
        pass
    assert line.places == []


def test_a_task_has_the_time_that_its_run_has_left(lines: Lifelines) -> None:
    line = lines.new(timeout_s=0.05)
    with hold_lifeline(line.address) as hold:
        until(lambda: _refuses(hold))
        with pytest.raises(LeaseLost, match="time is over"):
            hold.check()


def _refuses(hold: lifeline.LifelineHold) -> bool:
    try:
        hold.check()
    except LeaseLost:
        return True
    return False


def test_a_driver_that_cannot_be_reached_is_one_sentence() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # bound and not listening: nobody answers there
        port = taken.getsockname()[1]
        with (
            pytest.raises(Unavailable, match=r"cannot reach the worker.*spark\.lifeline_port"),
            hold_lifeline(f"127.0.0.1 {port} x"),
        ):
            pass


def test_a_port_that_is_taken_is_one_sentence(lines: Lifelines) -> None:
    with pytest.raises(Unavailable, match=r"cannot listen on 127\.0\.0\.1"):
        Lifelines(bind="127.0.0.1", host="127.0.0.1", port=lines.port)


@pytest.mark.parametrize("greeting", [b"", b"GET / HTTP/1.1\r\n\r\n", b"x" * 5000, b"\xff\n"])
def test_strangers_get_nothing_and_harm_nothing(lines: Lifelines, greeting: bytes) -> None:
    line = lines.new(timeout_s=LONG_S)
    assert _answer_to(greeting, lines.port) == b""
    assert line.wait_gone(wait_s=0)
    with hold_lifeline(line.address) as hold:
        hold.check()


def _answer_to(greeting: bytes, port: int) -> bytes:
    with socket.create_connection(("127.0.0.1", port), timeout=PATIENCE_S) as stranger:
        try:
            stranger.sendall(greeting)
            stranger.shutdown(socket.SHUT_WR)
            return stranger.recv(100)
        except OSError:  # they have hung up on us already
            return b""


def test_the_place_tells_executors_of_a_host_apart() -> None:
    assert lifeline.place() == f"{socket.gethostname()}/{os.getppid()}"
