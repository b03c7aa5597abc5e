"""Scratch directories: locks that tell who lives, doors that tell whether a task has ended."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from maar.spark.scratch import Door, WorkerScratch


def test_a_new_worker_wipes_what_dead_workers_left(tmp_path: Path) -> None:
    """The other worker is a real process that dies without cleaning up."""
    program = (
        "import os, sys; from pathlib import Path; from maar.spark.scratch import WorkerScratch\n"
        "scratch = WorkerScratch(Path(sys.argv[1]))\n"
        "(scratch.path / 'spill').write_bytes(b'x' * 1000)\n"
        "os._exit(9)"
    )
    subprocess.run([sys.executable, "-c", program, str(tmp_path)], check=False, timeout=60)
    assert len(list(tmp_path.glob("worker-*/spill"))) == 1
    scratch = WorkerScratch(tmp_path)
    assert list(tmp_path.glob("worker-*")) == [scratch.path]
    scratch.close()


def test_a_new_worker_leaves_the_living_alone(tmp_path: Path) -> None:
    first = WorkerScratch(tmp_path)
    second = WorkerScratch(tmp_path)
    assert first.path.exists()
    assert first.path != second.path
    first.close()
    second.close()
    assert list(tmp_path.glob("worker-*")) == []


def test_a_directory_without_its_lock_is_wiped(tmp_path: Path) -> None:
    (tmp_path / "worker-1-half").mkdir(parents=True)
    scratch = WorkerScratch(tmp_path)
    assert not (tmp_path / "worker-1-half").exists()
    scratch.close()


def test_a_scratch_is_private(tmp_path: Path) -> None:
    scratch = WorkerScratch(tmp_path)
    assert scratch.path.stat().st_mode & 0o077 == 0
    scratch.close()


@pytest.fixture
def door(tmp_path: Path) -> Door:
    return WorkerScratch(tmp_path).door("1.0-token")


def test_a_door_cannot_be_shut_while_somebody_is_inside(door: Door) -> None:
    with door.entered() as directory:
        assert not door.shut(wait_s=0)
        assert directory.exists()
    assert door.shut(wait_s=0)
    assert not door.directory.exists()


def test_nobody_enters_a_door_that_was_shut(door: Door) -> None:
    assert door.shut(wait_s=0)
    with pytest.raises(FileNotFoundError), door.entered():
        pass


def test_two_cannot_be_inside_at_once(door: Door) -> None:
    with door.entered(), pytest.raises(FileNotFoundError), door.entered():
        pass


def test_whoever_fails_inside_leaves_the_door_open_to_be_shut(door: Door) -> None:
    with pytest.raises(ValueError, match="spill"), door.entered():
        raise ValueError("spill")
    assert door.shut(wait_s=0)
