"""Notes which functions of maar a process calls in each phase that `tools/house.py` announces.

Python imports this module by itself at the start of every process whose path has this folder. The
phase stands in a file that a thread looks at; what was called in a phase is written down when the
phase ends, one `file:function` a line, in a file of the process and phase.
"""

import os
import sys
import threading
import time
from inspect import CO_OPTIMIZED
from pathlib import Path
from types import CodeType, FrameType

LOOK_S = 0.05

_home = os.environ.get("MAAR_TRACE")


def _begin(home: Path) -> None:
    called: set[tuple[str, str]] = set()
    mark = f"{os.sep}maar{os.sep}"

    def note(frame: FrameType, event: str, _argument: object) -> None:
        code = frame.f_code
        if event == "call" and mark in code.co_filename and _is_function(code):
            called.add((code.co_filename, code.co_qualname))

    def watch() -> None:
        nonlocal called
        phase = _phase(home)
        while True:
            time.sleep(LOOK_S)
            now = _phase(home)
            if now != phase:
                done, called = called, set()
                lines = sorted(f"{file.split(mark)[-1]}:{name}\n" for file, name in done)
                (home / f"{phase}.{os.getpid()}").write_text("".join(lines))
                phase = now

    threading.setprofile(note)
    threading.Thread(target=watch, daemon=True, name="trace").start()
    sys.setprofile(note)


def _is_function(code: CodeType) -> bool:
    """Not the body of a module or a class, which is run by an import, and no comprehension."""
    return bool(code.co_flags & CO_OPTIMIZED) and "<" not in code.co_name


def _phase(home: Path) -> str:
    try:
        return (home / "phase").read_text()
    except FileNotFoundError:
        return "none"


if _home:
    _place = Path(_home)
    _begin(_place)
    os.register_at_fork(after_in_child=lambda: _begin(_place))
