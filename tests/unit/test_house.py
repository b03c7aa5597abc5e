"""Names keep their promise: a function says what it does, and a class name stands for one thing."""

from __future__ import annotations

import runpy
from pathlib import Path

ROOT = Path(__file__).parents[2]
TOOL = runpy.run_path(str(ROOT / "tools" / "house.py"))
PACKAGE = ROOT / "src" / "maar"


def test_no_function_is_named_by_a_past_participle() -> None:
    files = [
        file
        for folder in (PACKAGE, ROOT / "tests" / "support", ROOT / "tools")
        for file in folder.rglob("*.py")
    ]
    found = {str(file): TOOL["participles"](file) for file in files}
    assert {file: names for file, names in found.items() if names} == {}


def test_no_class_name_stands_for_two_things() -> None:
    assert TOOL["repeated_classes"](PACKAGE) == []


def test_a_participle_and_a_second_meaning_would_be_noticed(tmp_path: Path) -> None:
    (tmp_path / "one.py").write_text("class Copy: ...\ndef merged(): ...\ndef merge(): ...\n")
    (tmp_path / "two.py").write_text("class Copy: ...\nclass Other: ...\n")
    assert TOOL["participles"](tmp_path / "one.py") == ["merged"]
    assert TOOL["repeated_classes"](tmp_path) == ["Copy"]
