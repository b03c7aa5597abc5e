"""The commands of docs/runbook.md, taken from the page and carried out."""

from __future__ import annotations

import contextlib
import io
import re
import shlex
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from maar.cli.main import run
from maar.cli.output.failure import EXIT_UNAVAILABLE
from support.processes.serving import Said

MORE_TRIES = 5
PAGE = (Path(__file__).parents[3] / "docs" / "runbook.md").read_text()


def section(title: str) -> list[str]:
    """The command lines under a heading, in their order."""
    parts = re.split(r"^## (.+)$", PAGE, flags=re.MULTILINE)
    texts = dict(zip(parts[1::2], parts[2::2], strict=True))
    blocks = re.findall(r"```sh\n(.*?)```", texts[title], flags=re.DOTALL)
    return [line for block in blocks for line in block.splitlines()]


def sections() -> list[str]:
    """Those that have commands."""
    return [title for title in re.findall(r"^## (.+)$", PAGE, re.MULTILINE) if section(title)]


class Runbook:
    """Names on the page stand for those of a test; what is not maar is done by the test itself."""

    def __init__(
        self, names: Mapping[str, str], others: Mapping[str, Callable[[], object]]
    ) -> None:
        self._names = names
        self._others = others  # by how a line begins
        self.said: list[str] = []  # what each command of maar printed

    def follow(self, title: str) -> None:
        for line in section(title):
            self.carry_out(line)

    def carry_out(self, line: str) -> None:
        for beginning, act in self._others.items():
            if line.startswith(beginning):
                act()
                return
        for name, real in self._names.items():
            line = line.replace(name, real)
        assert line.startswith("maar metastore "), f"nobody knows how to do: {line}"
        self.said.append(maar(*shlex.split(line)[1:]).stdout)


def maar(*arguments: str, code: int = 0) -> Said:
    """A command in this process: starting another takes longer than what it does.

    When nobody answers (exit code 3) it is run again, as a person would: the processes asked share
    a busy machine with other tests.
    """
    said = _once(arguments)
    for _ in range(MORE_TRIES):
        if said.returncode == EXIT_UNAVAILABLE:
            said = _once(arguments)
    assert said.returncode == code, f"maar {' '.join(arguments)}\n{said.stdout}\n{said.stderr}"
    return said


def _once(arguments: Sequence[str]) -> Said:
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        ended = run(list(arguments))
    return Said(ended, out.getvalue(), err.getvalue())
