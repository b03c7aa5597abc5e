"""The process that makes a snapshot: however it ends, the metastore knows, and nothing is left."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path

import pytest

from maar.app.roles.metastore import snapshot_in_another_process
from maar.app.settings.config import Settings
from maar.model.errors import Unavailable

Program = Callable[[str], None]


@pytest.fixture
def program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Program:
    """Have a shell script run in place of the snapshotter."""

    def put(script: str) -> None:
        path = tmp_path / "program"
        path.write_text(f"#!/bin/sh\n{script}\n")
        path.chmod(0o755)
        monkeypatch.setattr(sys, "executable", str(path))

    return put


def taken(timeout_s: float = 60.0) -> int:
    return asyncio.run(_take(timeout_s))


async def _take(timeout_s: float = 60.0) -> int:
    return await snapshot_in_another_process(Settings(), timeout_s=timeout_s)()


def test_the_index_that_it_prints_is_the_snapshots(program: Program) -> None:
    program("cat > /dev/null; echo 7")
    assert taken() == 7


@pytest.mark.parametrize(
    ("script", "said"),
    [
        ("exit 3", "ended with code 3"),
        ("exec 0<&-; exit 3", "ended with code 3"),
        ("kill -9 $$", "ended with code -9"),
        ("cat > /dev/null; echo nonsense", "ended with code 0"),
    ],
)
def test_one_that_ends_otherwise_is_known_by_its_code(
    program: Program, script: str, said: str
) -> None:
    program(script)
    with pytest.raises(Unavailable, match=said):
        taken()


def test_one_that_takes_too_long_is_killed(program: Program, tmp_path: Path) -> None:
    program(f"echo $$ > {tmp_path}/pid; exec sleep 60")
    with pytest.raises(Unavailable, match=r"took over 0\.3 s"):
        taken(0.3)
    assert gone(tmp_path)


def test_one_that_nobody_waits_for_any_more_is_killed(program: Program, tmp_path: Path) -> None:
    program(f"echo $$ > {tmp_path}/pid; exec sleep 60")

    async def cancelled() -> None:
        task = asyncio.create_task(_take())
        while not (tmp_path / "pid").exists():
            await asyncio.sleep(0.01)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(cancelled())
    assert gone(tmp_path)


def gone(directory: Path) -> bool:
    return not Path(f"/proc/{(directory / 'pid').read_text().strip()}").exists()


def test_nothing_of_ours_runs_in_the_copy_of_a_process_with_threads(
    program: Program, tmp_path: Path
) -> None:
    """What runs there ends with a crash now and then: here it always does."""
    program("cat > /dev/null; echo 7")
    script = """
        import os, sys, uvloop
        from maar.app.settings.config import Settings
        from maar.app.roles.metastore import snapshot_in_another_process

        os.register_at_fork(after_in_child=os.abort)
        sys.executable = sys.argv[1]
        print(uvloop.run(snapshot_in_another_process(Settings())()))
    """
    python = Path(sys.prefix, "bin", "python")
    shown = subprocess.run(
        [python, "-c", textwrap.dedent(script), str(tmp_path / "program")],
        capture_output=True,
        text=True,
        check=False,
    )
    assert shown.stdout == "7\n", shown.stderr
