"""`maar demo`: it shows what it promises, says what is missing, and leaves no process."""

from __future__ import annotations

import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from support.network.ports import free_port
from support.processes.serving import processes, wait_for

pytestmark = [pytest.mark.component, pytest.mark.long(60), pytest.mark.timeout(200)]


def demo(directory: Path, port: int, *options: str) -> list[str]:
    place = ("--port", str(port), "--data", str(directory / "demo"))
    return [sys.executable, "-m", "maar.cli.main", "demo", *place, *options]


def left(directory: Path) -> list[str]:
    return [command for command in processes().values() if str(directory) in command]


def test_it_ends_by_itself_with_a_compaction_and_a_flame_graph_of_each_program(
    tmp_path: Path,
) -> None:
    result = subprocess.run(
        demo(tmp_path, free_port(), "--seconds", "35"),
        capture_output=True,
        text=True,
        timeout=150,
        check=False,
    )
    assert result.returncode == 0, result.stdout + result.stderr
    for words in ("profiles received", "compactions done", "checkout", "search", "images"):
        assert words in result.stdout
    assert left(tmp_path) == []


def test_too_short_a_demo_says_what_is_missing_and_a_taken_port_is_a_sentence(
    tmp_path: Path,
) -> None:
    port = free_port()
    process = subprocess.Popen(
        demo(tmp_path, port, "--seconds", "1"), stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    wait_for(lambda: _listens(port), 60)
    second = subprocess.run(
        demo(tmp_path / "other", port), capture_output=True, text=True, timeout=60, check=False
    )
    assert second.returncode == 2
    assert "--port" in second.stderr
    _, said = process.communicate(timeout=90)
    assert process.returncode == 1
    assert b"missing: a compaction" in said
    assert left(tmp_path) == []


def test_ctrl_c_ends_it_cleanly(tmp_path: Path) -> None:
    process = subprocess.Popen(
        demo(tmp_path, free_port()), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    while not process.stdout.readline().startswith("Ready"):
        assert process.poll() is None
    time.sleep(0.5)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 0, out + err
    assert left(tmp_path) == []


def _listens(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), timeout=1).close()
    except OSError:
        return False
    return True
