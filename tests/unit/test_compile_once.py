"""Compiled code is made once, however many processes need it at the same time."""

from __future__ import annotations

import subprocess
import sys
import threading
from pathlib import Path

import pytest

import maar
from maar.app.processes.process import compiled_code
from maar.pprof import compile_once
from maar.pprof.compile_once import doing, once

# Tells when it begins; ends when it is told to, so that no test depends on how long that takes.
COMPILER = """
import sys
from maar.pprof.compile_once import once
def make():
    print("made", flush=True)
    sys.stdin.readline()
once("decoder", sys.argv[1], make)
print("ready", flush=True)
"""


def compiler(cache: Path) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", COMPILER, str(cache)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


def test_the_second_process_waits_until_the_first_has_compiled(tmp_path: Path) -> None:
    with compiler(tmp_path / "new") as first:
        assert first.stdout is not None
        assert first.stdout.readline() == "made\n"
        told: list[str] = []
        second = threading.Thread(
            target=once, args=("decoder", str(tmp_path / "new"), lambda: told.append(doing()))
        )
        second.start()
        while not doing():
            second.join(0.01)
            assert second.is_alive(), "it waits for the lock"
        assert doing() == "waits for another process that compiles maar's decoder code"
        first.communicate("go on\n", timeout=60)
        second.join(60)
    assert told == ["waits for another process that compiles maar's decoder code"], (
        "it found the code compiled, and loaded it"
    )
    assert doing() == ""


def test_a_compiler_that_is_killed_leaves_the_work_to_the_next(tmp_path: Path) -> None:
    with compiler(tmp_path) as first:
        assert first.stdout is not None
        first.stdout.readline()
        first.kill()
    told: list[str] = []
    once("decoder", str(tmp_path), lambda: told.append(doing()))
    assert told == ["is compiling maar's decoder code, once after an installation"]
    once("decoder", str(tmp_path), lambda: told.append(doing()))
    assert told[1:] == [""], "compiled once, it is only loaded"


def test_other_sources_are_compiled_anew_and_the_old_mark_goes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[str] = []
    for version in ("one", "two"):
        monkeypatch.setattr(compile_once, "stamp", lambda version=version: version)
        once("decoder", str(tmp_path), lambda: told.append(doing()))
    assert all("is compiling" in text for text in told)
    assert [mark.name for mark in tmp_path.glob("*.whole")] == ["maar-decoder-two.whole"]


def test_every_source_of_compiled_code_is_watched() -> None:
    package = Path(maar.__file__).parent
    words = ("numba import njit", "pprof.kernel import")
    compiled = {
        source
        for source in package.rglob("*.py")
        if any(word in source.read_text() for word in words)
    }
    assert len(compiled) > 3
    assert compiled <= set(compile_once.sources())


def test_what_fails_to_compile_is_tried_again(tmp_path: Path) -> None:
    def broken() -> None:
        raise RuntimeError("no memory")

    with pytest.raises(RuntimeError):
        once("decoder", str(tmp_path), broken)
    assert doing() == ""
    assert not list(tmp_path.glob("*.whole"))


@pytest.mark.parametrize("cache", ["", None, "/proc/none"])
def test_without_a_place_for_it_every_process_compiles_for_itself(cache: str | None) -> None:
    made: list[str] = []
    once("decoder", cache, lambda: made.append("made"))
    assert made == ["made"]


def test_children_keep_it_in_the_data_directory_when_the_installation_is_read_only(
    tmp_path: Path,
) -> None:
    assert compiled_code(tmp_path, package=tmp_path) == {}
    assert compiled_code(tmp_path, package=Path("/proc/self")) == {
        "NUMBA_CACHE_DIR": str(tmp_path / "compiled")
    }
