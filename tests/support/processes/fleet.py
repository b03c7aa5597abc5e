"""Roles as processes of their own around one store that can be filled, and a load on them."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import httpx

from support.network.ports import free_port
from support.processes.serving import Served, wait_for

PATIENCE_S = 60.0
SMALL = (
    "ring.beat_ms=500",
    "ring.dead_after_ms=4000",
    "ring.refresh_ms=200",
    "segment.flush_interval_ms=100",
    "segment.flush_interval_max_ms=300",
)


class Fleet:
    """Started by role and name; each has ports, a directory and a log of its own."""

    def __init__(self, directory: Path, *, room: str) -> None:
        self.directory = directory
        self.members: dict[str, Served] = {}
        self.store = directory / "store"
        self.store.mkdir()
        self._filler = Path()
        self.metastore_address = f"127.0.0.1:{free_port()}"
        self.query_address = f"127.0.0.1:{free_port()}"
        # A disk of its own in a namespace of its own: it can be full, and needs no cleaning up.
        self._disk = subprocess.Popen(
            [
                *("unshare", "--map-root-user", "--mount", "sh", "-c"),
                f'mount -t tmpfs -o size={room} tmpfs "{self.store}" && echo mounted && exec cat',
            ],
            stdin=subprocess.PIPE,  # its end is the disk's
            stdout=subprocess.PIPE,
        )
        assert self._disk.stdout is not None
        assert self._disk.stdout.readline() == b"mounted\n"

    # who is there

    def launch(self, name: str, roles: str, *settings: str) -> Served:
        """Begin to start one; `settle` waits for all."""
        home = self.directory / name
        home.mkdir()
        namespace = ("nsenter", "--user", "--mount", "--preserve-credentials", "--target")
        member = Served(
            home,
            f"store.url={self.store.as_uri()}",
            f"roles.metastore={self.metastore_address}",
            f"roles.query={self.query_address}",
            *SMALL,
            *settings,
            roles=roles,
            wrapper=(*namespace, str(self._disk.pid)),
        )
        self.members[name] = member
        member.launch()
        return member

    def writer(self, name: str, zone: str, *settings: str) -> Served:
        address = f"roles.segment_writer=127.0.0.1:{free_port()}"
        place = (address, f"ring.node={name}", f"ring.zone={zone}")
        return self.launch(name, "segment-writer", *place, *settings)

    def distributor(self, name: str, zone: str, *settings: str) -> Served:
        return self.launch(name, "distributor", f"ring.zone={zone}", *settings)

    def settle(self) -> None:
        for member in self.members.values():
            member.settle()

    # what is done to them

    def kill(self, name: str) -> None:
        self._signal(name, signal.SIGKILL)
        self.members[name].wait(PATIENCE_S)

    @contextlib.contextmanager
    def pause(self, name: str) -> Iterator[None]:
        self._signal(name, signal.SIGSTOP)
        try:
            yield
        finally:
            self._signal(name, signal.SIGCONT)

    @contextlib.contextmanager
    def full_store(self) -> Iterator[None]:
        """Take all the room there is, to the last page."""
        filler = self.inside() / "filler"
        with filler.open("wb", buffering=0) as file, contextlib.suppress(OSError):
            while True:
                file.write(b"\0" * 4096)
        try:
            yield
        finally:
            filler.unlink()

    def inside(self) -> Path:
        """The store as its processes see it."""
        return Path(f"/proc/{self._disk.pid}/root{self.store}")

    # what they say

    def metric(self, name: str, metric: str, **labels: str) -> float:
        """The sum of a member's samples of this name with these labels."""
        member = self.members[name]
        page = httpx.get(f"{member.url}/metrics", trust_env=False, verify=False, timeout=30).text
        total = 0.0
        for line in page.splitlines():
            found = re.fullmatch(rf"{metric}(?:_total)?(?:{{(.*)}})? (\S+)", line)
            if found and set(labels.items()) <= set(re.findall(r'(\w+)="([^"]*)"', found[1] or "")):
                total += float(found[2])
        return total

    def log(self) -> str:
        """The last of everyone's words."""
        return "\n".join(
            f"── {name} ({member.exit_code()}) ──\n{member.log()[-2500:]}"
            for name, member in self.members.items()
        )

    def close(self) -> None:
        for name, member in self.members.items():
            if member.exit_code() is None:
                with contextlib.suppress(ProcessLookupError):
                    self.kill(name)
        self._disk.communicate(timeout=PATIENCE_S)

    def _signal(self, name: str, number: signal.Signals) -> None:
        os.kill(self.members[name].pid, number)


@contextlib.contextmanager
def fleet(directory: Path, *, room: str = "64m") -> Iterator[Fleet]:
    running = Fleet(directory, room=room)
    try:
        yield running
    finally:
        running.close()


class Acknowledged(NamedTuple):
    """A line of the record of a load."""

    id: str
    service: str
    total: int


class Loading:
    """`maar load` in a process of its own; what it got acknowledged can be read meanwhile."""

    def __init__(self, directory: Path, servers: list[str], *options: str, prefix: str) -> None:
        self._record = directory / f"{prefix}.jsonl"
        chosen = [text for url in servers for text in ("--server", url)]
        self._process = subprocess.Popen(
            [
                *(sys.executable, "-m", "maar.cli.main", "load", "--json"),
                *("--prefix", prefix, "--record", str(self._record), *chosen, *options),
            ],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def read_acknowledged(self) -> list[Acknowledged]:
        text = self._record.read_text() if self._record.exists() else ""
        whole = text[: text.rfind("\n") + 1]
        rows = map(json.loads, whole.splitlines())
        return [Acknowledged(row["id"], row["service"], row["total"]) for row in rows]

    def count(self) -> int:
        return len(self.read_acknowledged())

    def goes_on(self, more: int, fleet: Fleet) -> float:
        """Wait until so many more are acknowledged; how long it took."""
        began, before = time.monotonic(), self.count()
        wait_for(lambda: self.count() >= before + more or self._dead(), PATIENCE_S, fleet.log)
        return time.monotonic() - began

    def end(self) -> Any:
        """Begin no more, wait for the rest; the report."""
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGINT)
        return self.wait()

    def wait(self) -> Any:
        """Wait until it ends by itself; the report."""
        out, err = self._process.communicate(timeout=2 * PATIENCE_S)
        assert out, err
        return json.loads(out)

    def close(self) -> None:
        self._process.kill()
        self._process.communicate()

    def _dead(self) -> bool:
        assert self._process.poll() is None, self._process.communicate()
        return False


def totals(acknowledged: list[Acknowledged]) -> Counter[str]:
    """What queries must say of each service."""
    found: Counter[str] = Counter()
    for one in acknowledged:
        found[one.service] += one.total
    return found
