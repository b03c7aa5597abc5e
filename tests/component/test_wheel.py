"""What an installed wheel holds beside the code."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

pytestmark = pytest.mark.component


def test_the_demo_finds_its_programs_in_a_wheel(tmp_path: Path) -> None:
    built = subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(tmp_path)],
        cwd=ROOT,
        capture_output=True,
        check=False,
    )
    assert built.returncode == 0, built.stderr
    (wheel,) = tmp_path.glob("*.whl")
    installed = tmp_path / "installed"
    zipfile.ZipFile(wheel).extractall(installed)
    program = "from maar.tools.demo.processes import find_examples; print(find_examples())"
    found = subprocess.run(
        [sys.executable, "-c", program],
        cwd=tmp_path,
        env={"PYTHONPATH": str(installed)},
        capture_output=True,
        check=True,
        text=True,
    )
    examples = Path(found.stdout.strip())
    assert examples == installed / "maar" / "examples"
    for source in (ROOT / "examples").glob("*.py"):
        assert (examples / source.name).read_bytes() == source.read_bytes()
