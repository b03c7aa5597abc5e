"""The real Go agent, built where Go and the agent's module are already on this machine."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

SOURCE = Path(__file__).parent / "go_flush"
GO_DEFAULT = "/usr/local/go/bin/go"
BUILD_S = 300


def build_go_agent(directory: Path) -> Path | None:
    """The program that starts the agent, works and flushes; None where it cannot be had offline."""
    go = shutil.which("go") or shutil.which(GO_DEFAULT)
    if go is None:
        return None
    source = shutil.copytree(SOURCE, directory / "go_flush")
    built = subprocess.run(
        [go, "build", "-o", "flush", "."],
        cwd=source,
        env={
            **os.environ,
            "GOPROXY": "off",
            "GOSUMDB": "off",
            "GOFLAGS": "-mod=mod",
            "GOTOOLCHAIN": "local",
        },
        capture_output=True,
        text=True,
        timeout=BUILD_S,
        check=False,
    )
    if built.returncode == 0:
        return source / "flush"
    absent = ("module lookup disabled", "requires go >=", "toolchain not available")
    assert any(words in built.stderr for words in absent), built.stderr
    return None
