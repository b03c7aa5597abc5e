"""The supervisor's view of its processes, in a file that the front reads for `maar status`."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from maar.model.errors import MaarError

FILE = "processes.json"


class ProcessState(msgspec.Struct, frozen=True, kw_only=True):
    """One process of `maar serve`, since that was started."""

    process: str
    restarts: int = 0  # for whatever reason
    hangs: int = 0  # of these, because it sent no heartbeat
    hung_at_ns: int = 0  # wall time of the last one
    runs: bool = True  # False: it has ended, and is about to be started again


class SupervisorStatus(msgspec.Struct, frozen=True):
    supervisor: int  # its process id: a file of another supervisor does not count
    processes: tuple[ProcessState, ...]


def write(data_dir: Path, processes: Sequence[ProcessState]) -> None:
    """OSError when the disk does not take it."""
    half = data_dir / f".{FILE}"
    half.write_bytes(msgspec.json.encode(SupervisorStatus(os.getpid(), tuple(processes))))
    half.replace(data_dir / FILE)


def read(data_dir: Path, *, supervisor: int) -> tuple[ProcessState, ...]:
    """Nothing, when this supervisor has written nothing."""
    try:
        told = msgspec.json.decode((data_dir / FILE).read_bytes(), type=SupervisorStatus)
    except FileNotFoundError:
        return ()
    except (OSError, msgspec.MsgspecError) as error:
        raise MaarError(f"cannot read {data_dir / FILE}: {error}") from error
    return told.processes if told.supervisor == supervisor else ()


def plain(processes: Sequence[ProcessState]) -> list[dict[str, Any]]:
    return [msgspec.to_builtins(each) for each in processes]


def metrics_page(processes: Sequence[ProcessState]) -> str:
    """As a page of metrics."""
    lines = []
    for name, meaning, field in (
        ("restarts", "Starts of a process after its first, since maar serve began.", "restarts"),
        (
            "hangs",
            "Processes killed because they sent no heartbeat for server.hung_after_s.",
            "hangs",
        ),
    ):
        metric = f"maar_process_{name}_total"
        lines += [f"# HELP {metric} {meaning}", f"# TYPE {metric} counter"]
        lines += [
            f'{metric}{{process="{each.process}"}} {getattr(each, field)}' for each in processes
        ]
    return "".join(f"{line}\n" for line in lines) if processes else ""
