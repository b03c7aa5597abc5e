"""Runs a command that is killed with the process that started it: … PARENT COMMAND."""

from __future__ import annotations

import os
import sys

from maar.app.processes.process import die_with


def command_under(parent: int, *command: str) -> list[str]:
    return [sys.executable, "-m", "maar.app.processes.run_with_parent", str(parent), *command]


if __name__ == "__main__":
    die_with(int(sys.argv[1]))  # the kernel remembers it across exec
    os.execv(sys.argv[2], sys.argv[2:])
