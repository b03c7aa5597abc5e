"""Plants small mistakes in a copy of the tree, one at a time, and tells which test caught each.

    python tools/mutants.py [--jobs N] [--only TEXT] [--list]

The mistakes stand in tools/mutants.toml, each with the tests that must notice it. It exits 1 when
one survives, when its place is not found, or when a test fails without any mistake.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import re
import shutil
import signal
import sys
import tempfile
import time
import tomllib
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from queue import SimpleQueue
from typing import NamedTuple

ROOT = Path(__file__).parent.parent
LIST = Path(__file__).with_suffix(".toml")
# Compiled code comes along: to compile it anew would take longer than all tests.
LEFT_OUT = shutil.ignore_patterns(".git", ".venv", ".maar", "*_cache", ".hypothesis")
TEST_S = 300  # a mistake that makes a test hang is noticed too
PASSED, FAILED = 0, 1  # what pytest exits with
# To import these takes longer than most tests: every run begins as a fork that has them already.
IMPORTED = ["pytest", "numba", "numpy", "pyarrow.parquet", "duckdb", "grpc", "httpx", "msgspec"]
IMPORTED += ["starlette.applications", "obstore", "google.protobuf.message", "rich.table"]
FORKED = multiprocessing.get_context("forkserver")


class Mutant(NamedTuple):
    name: str
    file: str
    old: str
    new: str
    tests: tuple[str, ...]

    def apply(self, text: str) -> str:
        """The file with the mistake in it; ValueError when its place is not there exactly once."""
        found = text.count(self.old)
        if found != 1:
            raise ValueError(f"{self.name!r}: its old text is {found} times in {self.file}")
        return text.replace(self.old, self.new)


class Outcome(NamedTuple):
    mutant: Mutant
    caught: bool
    by: str
    seconds: float


def read(path: Path = LIST) -> list[Mutant]:
    listed = tomllib.loads(path.read_text())["mutant"]
    return [Mutant(**{**each, "tests": tuple(each["tests"])}) for each in listed]


def main() -> int:
    asked = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    asked.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    asked.add_argument("--only", default="", help="those whose name contains this")
    asked.add_argument("--list", action="store_true", help="only say which there are")
    options = asked.parse_args()
    mutants = [each for each in read() if options.only in each.name]
    for each in mutants:
        each.apply((ROOT / each.file).read_text())
    if options.list:
        print("\n".join(each.name for each in mutants))
        return 0
    FORKED.set_forkserver_preload(IMPORTED)
    with tempfile.TemporaryDirectory(prefix="maar-mutants-") as place:
        copies = [_copy(Path(place) / str(number)) for number in range(options.jobs)]
        every = sorted({test for each in mutants for test in each.tests})
        at_once = ["-n", str(options.jobs)]
        code, said = _run(copies[0], [*at_once, *every], seconds=TEST_S * len(every))
        if code != PASSED:
            print(f"the tests fail without any mistake:\n{said}")
            return 1
        return _tell(_all(mutants, copies))


def _all(mutants: Sequence[Mutant], copies: Sequence[Path]) -> list[Outcome]:
    free: SimpleQueue[Path] = SimpleQueue()
    for copy in copies:
        free.put(copy)

    def one(mutant: Mutant) -> Outcome:
        copy = free.get()
        try:
            outcome = _try(copy, mutant)
        finally:
            free.put(copy)
        word = "caught  " if outcome.caught else "SURVIVED"
        print(f"{word} {outcome.seconds:5.1f} s  {mutant.name}  [{outcome.by}]", flush=True)
        return outcome

    with ThreadPoolExecutor(len(copies)) as threads:
        return list(threads.map(one, mutants))


def _try(copy: Path, mutant: Mutant) -> Outcome:
    file = copy / mutant.file
    sound = file.read_text()
    began = time.monotonic()
    file.write_text(mutant.apply(sound))
    try:
        code, said = _run(copy, mutant.tests, seconds=TEST_S)
    finally:
        file.write_text(sound)
    seconds = time.monotonic() - began
    if code == PASSED:
        return Outcome(mutant, False, "nobody", seconds)
    if code != FAILED:  # it does not even run: that says nothing of the tests
        return Outcome(mutant, False, f"pytest exits {code}: {said[-300:]}", seconds)
    by = re.search(r"^FAILED \S+::(\S+)", said, flags=re.M)
    return Outcome(mutant, True, by[1] if by else "a test that did not end", seconds)


def _run(copy: Path, tests: Sequence[str], *, seconds: float) -> tuple[int, str]:
    """What pytest exits with in that copy, and what it says."""
    said = copy / "said.txt"
    running = FORKED.Process(target=_pytest, args=(copy, tuple(tests), said))
    running.start()
    running.join(seconds)
    if running.exitcode is None:
        os.killpg(running.pid or 0, signal.SIGKILL)
        running.join()
        return FAILED, ""
    return running.exitcode, said.read_text(errors="replace")


def _pytest(copy: Path, tests: tuple[str, ...], said: Path) -> None:
    """In a process of its own, which has imported what no mistake can be in."""
    os.setsid()
    with said.open("wb") as out:
        os.dup2(out.fileno(), 1)
        os.dup2(out.fileno(), 2)
    os.chdir(copy)
    os.environ |= {"PYTHONPATH": str(copy / "src"), "PYTHONDONTWRITEBYTECODE": "1"}
    sys.path[:0] = [str(copy / "src"), str(copy)]
    sys.dont_write_bytecode = True
    import pytest

    quiet = ("-q", "--tb=no", "-W", "ignore::pytest.PytestAssertRewriteWarning")
    sys.exit(pytest.main(["-x", *quiet, "-p", "no:cacheprovider", *tests]))


def _copy(to: Path) -> Path:
    shutil.copytree(ROOT, to, ignore=LEFT_OUT)
    return to


def _tell(outcomes: Sequence[Outcome]) -> int:
    survivors = [each.mutant.name for each in outcomes if not each.caught]
    print(f"{len(outcomes) - len(survivors)} of {len(outcomes)} mistakes were caught")
    for name in survivors:
        print(f"survived: {name}")
    return 1 if survivors else 0


if __name__ == "__main__":
    sys.exit(main())
