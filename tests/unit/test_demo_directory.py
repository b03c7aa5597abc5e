"""A demo begins with an empty directory, and never empties one that is not its own."""

from __future__ import annotations

from pathlib import Path

import pytest

from maar.model.errors import InvalidInput
from maar.tools.demo.processes import Demo


def test_a_directory_that_no_demo_made_is_not_deleted(tmp_path: Path) -> None:
    lake = tmp_path / "lake"
    (lake / "store").mkdir(parents=True)
    with pytest.raises(InvalidInput, match="not of a demo"):
        Demo(listen="127.0.0.1:0", data_dir=lake).start_server()
    assert [path.name for path in lake.iterdir()] == ["store"]
