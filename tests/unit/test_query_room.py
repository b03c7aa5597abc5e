"""What the query role spills goes with it, or with its successor."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from maar.app.roles.query import room_to_spill
from maar.app.settings.config import Settings, load

KILLED = """
import os, signal, sys
from pathlib import Path
from maar.runner.scratch import WorkerScratch
(WorkerScratch(Path(sys.argv[1])).path / "spilled").write_bytes(b"x")
os.kill(os.getpid(), signal.SIGKILL)
"""


def settings(directory: Path, **variables: str) -> Settings:
    return load(file=None, environ={"MAAR_SERVER__DATA_DIR": str(directory), **variables})


def test_what_a_killed_query_role_spilled_is_gone_when_the_next_one_starts(tmp_path: Path) -> None:
    parent = settings(tmp_path).scratch_dir / "query"
    subprocess.run([sys.executable, "-c", KILLED, str(parent)], check=False)
    assert len(list(parent.glob("*/spilled"))) == 1
    with room_to_spill(settings(tmp_path)) as query:
        assert [path for path in parent.iterdir() if path.is_dir()] == [Path(query.spill_dir)]
    assert not [path for path in parent.iterdir() if path.is_dir()]


def test_a_named_directory_is_left_as_it_is(tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    named = settings(tmp_path, MAAR_QUERY__SPILL_DIR=str(tmp_path / "mine"))
    with room_to_spill(named) as query:
        assert query.spill_dir == str(tmp_path / "mine")
    assert os.listdir(tmp_path) == ["mine"]
