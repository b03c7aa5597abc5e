"""The processes of the demo: a server, and sample programs that push to it. None outlives it."""

from __future__ import annotations

import importlib.util
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import IO

import maar
from maar.app.processes.process import lock_directory
from maar.app.processes.run_with_parent import command_under
from maar.model.errors import InvalidInput

PROGRAMS = ("checkout", "search", "images")
UPLOAD_INTERVAL_S = 5
STOP_S = 30.0

# Blocks of a demo are merged after seconds, so that there is something to see.
_SERVER_SETTINGS = (
    "compaction.level_ages_s=8,25,60",
    "compaction.level_counts=20,4,4",
    "spark.slots=2",
)


class Demo:
    """Starts and ends the processes. The caller decides when."""

    def __init__(self, *, listen: str, data_dir: Path) -> None:
        self.url = f"http://{listen}"
        self.data_dir = data_dir.absolute()
        self.log_file = self.data_dir / "server.log"
        self._listen = listen
        self._examples = find_examples()
        self._server: subprocess.Popen[bytes] | None = None
        self._programs: dict[str, subprocess.Popen[bytes]] = {}
        self._logs: list[IO[bytes]] = []

    def start_server(self) -> None:
        """Start with an empty directory: an earlier demo's data would count as this one's."""
        self._check_port()
        self._check_directory()
        lock_directory(self.data_dir).close()
        shutil.rmtree(self.data_dir)
        self.data_dir.mkdir(parents=True)
        settings = [text for pair in _SERVER_SETTINGS for text in ("--set", pair)]
        self._server = self._start(
            "server",
            *("-m", "maar.cli.main", "serve", "--listen", self._listen),
            *("--data", str(self.data_dir), *settings),
        )

    def start_programs(self) -> None:
        for name in PROGRAMS:
            script = str(self._examples / f"{name}.py")
            self._programs[name] = self._start(name, script, self.url, str(UPLOAD_INTERVAL_S))

    def server_ended(self) -> int | None:
        """The server's exit code, when it has one."""
        return self._server.poll() if self._server else None

    def dead_programs(self) -> list[str]:
        return [name for name, process in self._programs.items() if process.poll() is not None]

    def last_words(self) -> str:
        """The last line that the server logged."""
        lines = self.log_file.read_text(errors="replace").strip().splitlines()
        return lines[-1] if lines else "its log is empty"

    def stop_programs(self) -> None:
        for process in self._programs.values():
            _stop(process, STOP_S / 3)

    def stop(self) -> None:
        """Programs first, so that the server has no push to refuse."""
        self.stop_programs()
        if self._server is not None:
            _stop(self._server, STOP_S)
        for file in self._logs:
            file.close()

    def _check_directory(self) -> None:
        """Delete only data of an earlier demo: the directory may be that of a real server."""
        if not self.data_dir.exists() or self.log_file.exists():
            return
        if not self.data_dir.is_dir() or any(self.data_dir.iterdir()):
            raise InvalidInput(
                f"{self.data_dir} holds data that is not of a demo, and a demo begins by deleting "
                "its directory; choose another with --data"
            )

    def _check_port(self) -> None:
        """Another server on the port would be mistaken for ours."""
        host, _, port = self._listen.rpartition(":")
        try:
            socket.create_server((host, int(port))).close()
        except OSError as error:
            raise InvalidInput(
                f"cannot listen on {self._listen}: {error.strerror}; stop the program that holds "
                "it, or choose another port with --port"
            ) from error

    def _start(self, name: str, *arguments: str) -> subprocess.Popen[bytes]:
        log = open(self.data_dir / f"{name}.log", "wb")  # noqa: SIM115 - closed by stop()
        self._logs.append(log)
        # A session of its own: Ctrl-C reaches us alone, and we end the others in order.
        return subprocess.Popen(
            command_under(os.getpid(), sys.executable, *arguments),
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )


def find_examples() -> Path:
    """The sample programs: in the package, or in the source tree that it is installed from."""
    if importlib.util.find_spec("pyroscope") is None:
        raise InvalidInput(
            "the demo needs the profiling agent pyroscope-io; install maar with its demo extra: "
            "pip install 'maar[demo]'"
        )
    package = Path(maar.__file__).parent
    for root in (package, package.parents[1]):
        if all((root / "examples" / f"{name}.py").is_file() for name in PROGRAMS):
            return root / "examples"
    raise InvalidInput(f"the sample programs are missing from {package}; install maar again")


def _stop(process: subprocess.Popen[bytes], patience_s: float) -> None:
    if process.poll() is None:
        process.send_signal(signal.SIGTERM)
    deadline = time.monotonic() + patience_s
    try:
        process.wait(max(0.1, deadline - time.monotonic()))
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
