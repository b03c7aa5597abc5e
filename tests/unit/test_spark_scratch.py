"""Scratch directories: locks that tell who lives."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from maar.runner.scratch import WorkerScratch


def test_a_new_worker_wipes_what_dead_workers_left(tmp_path: Path) -> None:
    """The other worker is a real process that dies without cleaning up."""
    program = (
        "import os, sys; from pathlib import Path; from maar.runner.scratch import WorkerScratch\n"
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
