"""A whole server in processes of its own, for tests that kill, push and look."""

from __future__ import annotations

import contextlib
import io
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import httpx

from maar.cli.main import run
from support.network.ports import free_port

READY_S = 90.0
LOOK_S, LOOK_MAX_S = 0.05, 0.5  # between two looks at whether something has happened
NO_HTTP = ("metastore", "query", "metastore,query")


class Said(NamedTuple):
    returncode: int
    stdout: str
    stderr: str


class Served:
    """`maar serve` on a port of its own; the log is kept for failures."""

    def __init__(
        self, directory: Path, *settings: str, roles: str = "all", wrapper: tuple[str, ...] = ()
    ) -> None:
        self._wrapper = wrapper  # a command that becomes the server, such as unshare
        self.directory = directory
        self.log_file = directory / "server.log"
        self.settings = (*private_addresses(directory, roles, settings), *settings)
        self.roles = roles
        self._process: subprocess.Popen[bytes] | None = None
        self.url = ""
        self._mark = 0  # where in the log this life of it begins

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def start(self) -> None:
        self.launch()
        self.settle()

    def launch(self) -> None:
        """Begin to start."""
        port = self.url.rpartition(":")[2] or str(free_port())
        chosen = [text for pair in self.settings for text in ("--set", pair)]
        self._mark = len(self.log())
        with self.log_file.open("ab") as log:
            self._process = subprocess.Popen(
                [
                    *self._wrapper,
                    *(sys.executable, "-m", "maar.cli.main", "serve", "--roles", self.roles),
                    *("--listen", f"127.0.0.1:{port}", "--data", str(self.directory / "data")),
                    *chosen,
                ],
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def settle(self) -> None:
        """Wait until it is ready; what answers no HTTP, until it has started."""
        if self.roles in NO_HTTP:
            wait_for(lambda: self._has_said('event="started"'), READY_S, self.log)
            return
        wait_for(lambda: self._has_said('event="maar starts"'), READY_S, self.log)
        line = next(x for x in self.log()[self._mark :].splitlines() if "maar starts" in x)
        self.url = line.partition("url=")[2].split()[0]
        wait_for(self.is_ready, READY_S, self.log)

    def _has_said(self, text: str) -> bool:
        self.must_live()
        return text in self.log()[self._mark :]

    @property
    def launched(self) -> bool:
        return self._process is not None

    def exit_code(self) -> int | None:
        assert self._process is not None
        return self._process.poll()

    def wait(self, patience_s: float) -> int:
        assert self._process is not None
        return self._process.wait(patience_s)

    def must_live(self) -> None:
        assert self.exit_code() is None, f"it ended with {self.exit_code()}\n{self.log()[-8000:]}"

    def log(self) -> str:
        return self.log_file.read_text(errors="replace") if self.log_file.exists() else ""

    def children(self) -> dict[str, int]:
        """Role names to process ids."""
        found = {}
        for pid, command in processes().items():
            if "maar.app.processes.child" in command and f" {self.pid} " in f"{command} ":
                words = command.split()
                found[words[words.index("maar.app.processes.child") + 1]] = pid
        return found

    def everyone(self) -> set[int]:
        """The server and all that descends from it, by session or parent."""
        parents = {pid: _stat(pid) for pid in processes()}
        found = {self.pid}
        sessions = {self.pid, *self.children().values()}
        grown = True
        while grown:
            grown = False
            for pid, stat in parents.items():
                if stat is not None and pid not in found:
                    parent, session = stat
                    if parent in found or session in sessions:
                        found.add(pid)
                        grown = True
        return found

    def stop(self, number: int = signal.SIGINT, patience_s: float = 120.0) -> int:
        assert self._process is not None
        if self._process.poll() is None:
            self._process.send_signal(number)
        return self._process.wait(patience_s)

    def get(self, path: str, **params: Any) -> Any:
        # Without verify=False httpx reads all certificates for each call: 20 ms of CPU.
        asked = httpx.get(
            f"{self.url}{path}", params=params, trust_env=False, verify=False, timeout=60
        )
        return asked.json()

    def cli(self, *arguments: str) -> Said:
        """A command in this process: what it said and how it ended."""
        out, err = io.StringIO(), io.StringIO()
        before = os.environ.get("MAAR_SERVER")
        os.environ["MAAR_SERVER"] = self.url
        try:
            with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
                code = run(list(arguments))
        finally:
            os.environ.pop("MAAR_SERVER")
            os.environ |= {"MAAR_SERVER": before} if before is not None else {}
        return Said(code, out.getvalue(), err.getvalue())

    def command(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """The same in a process of its own."""
        return subprocess.run(
            [sys.executable, "-m", "maar.cli.main", *arguments],
            env={**os.environ, "MAAR_SERVER": self.url, "COLUMNS": "160"},
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )

    def is_ready(self) -> bool:
        self.must_live()
        with contextlib.suppress(httpx.HTTPError):
            return (
                httpx.get(
                    f"{self.url}/ready", trust_env=False, verify=False, timeout=30
                ).status_code
                == 200
            )
        return False


def private_addresses(directory: Path, roles: str, given: tuple[str, ...]) -> list[str]:
    """Where the roles of one process meet, unless it is given: tests run side by side."""
    if "front" not in roles:
        return []
    names = ("metastore", "query", "segment_writer")
    unnamed = [name for name in names if not any(f"roles.{name}=" in text for text in given)]
    return [f"roles.{name}=unix:{directory}/{name}" for name in unnamed]


@contextlib.contextmanager
def run_server(
    directory: Path, *settings: str, roles: str = "all", wrapper: tuple[str, ...] = ()
) -> Iterator[Served]:
    server = Served(directory, *settings, roles=roles, wrapper=wrapper)
    server.start()
    try:
        yield server
    finally:
        if server.exit_code() is None:
            everyone = server.everyone()
            server.stop(signal.SIGTERM)
            wait_for(lambda: not living(everyone), 60)


def wait_for(
    condition: Callable[[], Any],
    patience_s: float,
    log: Callable[[], str] = lambda: "",
    *,
    look_s: float = LOOK_S,
) -> None:
    """Look often at what is cheap to see, and at most a fifth of the time at what is not."""
    deadline = time.monotonic() + patience_s
    looked = time.monotonic()
    while not condition():
        now = time.monotonic()
        assert now < deadline, f"not within {patience_s} s{_end_of(log)}\n{log()[-8000:]}"
        time.sleep(min(max(look_s, 4 * (now - looked)), LOOK_MAX_S))
        looked = time.monotonic()


def _end_of(log: Callable[[], str]) -> str:
    """Whose log it is may have died while somebody waited for it."""
    server = getattr(log, "__self__", None)
    if not isinstance(server, Served) or not server.launched or server.exit_code() is None:
        return ""
    return f"; it had ended with {server.exit_code()}"


def processes() -> dict[int, str]:
    """Process ids to command lines."""
    found = {}
    for name in os.listdir("/proc"):
        if name.isdigit():
            with contextlib.suppress(OSError):
                found[int(name)] = (
                    Path(f"/proc/{name}/cmdline").read_bytes().replace(b"\0", b" ").decode().strip()
                )
    return found


def living(pids: set[int]) -> set[int]:
    return {pid for pid in pids if _stat(pid) is not None}


def _stat(pid: int) -> tuple[int, int] | None:
    """Parent and session of a process that is not a zombie."""
    with contextlib.suppress(OSError):
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        if fields[0] not in ("Z", "X"):
            return int(fields[1]), int(fields[3])
    return None
