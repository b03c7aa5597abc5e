"""A connection from a task to its driver: a task that has lost it writes nothing more.

The kernel closes a connection when its process ends, however it ends. So the driver knows, on any
host, that a task has ended. A task also learns that its run is over, and exits; Spark would let its
Python process write on for seconds, or for minutes when its executor is only disconnected.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import socket
import socketserver
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

from maar.model.errors import LeaseLost, Unavailable

CUT_OFF = 75  # the exit code of a Python worker whose driver has closed its connection
GREETING_S = 30.0
GREETING_BYTES_MAX = 512
GREETINGS_MAX = 256  # connections at once that have not said whose they are
_KEEPALIVE = (  # a host that vanished is noticed after a minute
    (socket.TCP_KEEPIDLE, 30),
    (socket.TCP_KEEPINTVL, 10),
    (socket.TCP_KEEPCNT, 3),
)


class Lifelines:
    """The driver's side: it listens where executors reach the driver."""

    def __init__(self, *, bind: str, host: str, port: int) -> None:
        self._lock = threading.Condition()
        self._open: dict[str, Lifeline] = {}
        self._greetings = threading.BoundedSemaphore(GREETINGS_MAX)
        try:
            self._server = _Server((bind, port), self._hold)
        except OSError as error:
            raise Unavailable(
                f"cannot listen on {bind}:{port} for the tasks that Spark runs: {error.strerror}; "
                "set spark.driver.bindAddress in spark.conf, or another spark.lifeline_port"
            ) from error
        self.host = host
        self.port = int(self._server.server_address[1])
        threading.Thread(
            target=self._server.serve_forever, name="maar-lifelines", daemon=True
        ).start()

    def new(self, *, timeout_s: float) -> Lifeline:
        """For a run that is about to be submitted; its tasks write for `timeout_s` from now."""
        line = Lifeline(self, secrets.token_hex(16), until_s=time.monotonic() + timeout_s)
        with self._lock:
            self._open[line.name] = line
        return line

    def close(self) -> None:
        with self._lock:
            lines = list(self._open.values())
        for line in lines:
            line.cut()
        self._server.shutdown()
        self._server.server_close()

    def _hold(self, connection: socket.socket) -> None:
        """In a thread of its own, for as long as the task holds on."""
        if not self._greetings.acquire(blocking=False):
            return
        try:
            name, _, place = _line(connection, within_s=GREETING_S).partition(" ")
        except OSError:
            return
        finally:
            self._greetings.release()
        with self._lock:
            line = self._open.get(name)
            if line is None:  # its run is over, or it never was one of ours
                return
            line._held.add(connection)
            line.places.append(place)
        try:
            left_ms = int((line._until_s - time.monotonic()) * 1000)
            connection.sendall(b"%d\n" % left_ms)
            _wait_for_the_end(connection)
            known = True
        except ConnectionError:  # reset by a process that ended with something unread
            known = True
        except OSError:  # its host does not answer: the task may well go on there
            known = False
        with self._lock:
            line._held.discard(connection)
            line._unknown = line._unknown or not known
            self._lock.notify_all()


class Lifeline:
    """Of one run. Spark may run its task twice, when it believes an executor lost."""

    def __init__(self, lines: Lifelines, name: str, *, until_s: float) -> None:
        self._lines = lines
        self._until_s = until_s
        self._held: set[socket.socket] = set()
        self._unknown = False
        self.name = name
        self.address = f"{lines.host} {lines.port} {name}"
        self.places: list[str] = []  # where its tasks have begun

    def tasks(self) -> int:
        """How many tasks hold it now."""
        with self._lines._lock:
            return len(self._held)

    def cut(self) -> None:
        """Accept no more tasks for this run, and end those that are connected."""
        with self._lines._lock:
            self._lines._open.pop(self.name, None)
            for connection in self._held:
                with contextlib.suppress(OSError):
                    connection.shutdown(socket.SHUT_WR)

    def wait_gone(self, *, wait_s: float) -> bool:
        """After the cut: whether every task that ever held it was seen to end."""
        with self._lines._lock:
            self._lines._lock.wait_for(lambda: not self._held, wait_s)
            return not self._held and not self._unknown


class LifelineHold:
    """The task's side: `check` before every write."""

    def __init__(self, until_s: float) -> None:
        self._until_s = until_s
        self.lost = False

    def check(self) -> None:
        if self.lost:
            raise LeaseLost("The run is over, so that its task writes nothing more")
        if _clock_s() > self._until_s:
            raise LeaseLost("The task's time is over, so that it writes nothing more")


@contextlib.contextmanager
def hold_lifeline(address: str, on_cut: Callable[[], None] | None = None) -> Iterator[LifelineHold]:
    """Hold a run's lifeline; LeaseLost when the run is over, Unavailable without a way to it."""
    host, port, name = address.split(" ")
    try:
        connection = socket.create_connection((host, int(port)), timeout=GREETING_S)
    except OSError as error:
        raise Unavailable(
            f"The executor on {socket.gethostname()} cannot reach the worker at {host}:{port}: "
            f"{error}; open that way, or set spark.driver.host and spark.lifeline_port"
        ) from error
    with connection:
        try:
            connection.sendall(f"{name} {place()}\n".encode())
            left_ms = _line(connection, within_s=GREETING_S)
        except OSError as error:
            raise LeaseLost("The run was over before its task began") from error
        _keep_alive(connection)
        connection.settimeout(None)
        hold = LifelineHold(_clock_s() + int(left_ms) / 1000)
        watch = threading.Thread(target=_watch, args=(connection, hold, on_cut or _end_process))
        watch.daemon = True
        watch.start()
        try:
            yield hold
        finally:
            ours, hold.lost = not hold.lost, True
            if ours:
                with contextlib.suppress(OSError):
                    connection.shutdown(socket.SHUT_RDWR)
            watch.join()


def place() -> str:
    """Tasks of the same executor are children of the same process."""
    return f"{socket.gethostname()}/{os.getppid()}"


def _watch(connection: socket.socket, hold: LifelineHold, on_cut: Callable[[], None]) -> None:
    with contextlib.suppress(OSError):
        connection.recv(1)
    if not hold.lost:
        hold.lost = True
        on_cut()


def _end_process() -> None:
    os._exit(CUT_OFF)  # at once: the main thread may be deep in a merge


def _clock_s() -> float:
    """Unlike the monotonic clock, this one runs on while a virtual machine is suspended."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def _line(connection: socket.socket, *, within_s: float) -> str:
    """One short line, or OSError."""
    connection.settimeout(within_s)
    got = b""
    while not got.endswith(b"\n"):
        piece = connection.recv(GREETING_BYTES_MAX)
        if not piece or len(got) + len(piece) > GREETING_BYTES_MAX:
            raise ConnectionAbortedError("no line came")
        got += piece
    return got.decode(errors="replace").strip()


def _wait_for_the_end(connection: socket.socket) -> None:
    _keep_alive(connection)
    connection.settimeout(None)
    while connection.recv(GREETING_BYTES_MAX):
        pass


def _keep_alive(connection: socket.socket) -> None:
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, value in _KEEPALIVE:
        connection.setsockopt(socket.IPPROTO_TCP, option, value)


class _Server(socketserver.ThreadingTCPServer):
    daemon_threads = True
    block_on_close = False
    request_queue_size = 128

    def __init__(self, address: tuple[str, int], hold: Callable[[socket.socket], None]) -> None:
        self._hold_connection = hold
        self.address_family = socket.AF_INET6 if ":" in address[0] else socket.AF_INET
        super().__init__(address, socketserver.BaseRequestHandler)

    def finish_request(self, request: Any, client_address: Any) -> None:  # noqa: ARG002
        self._hold_connection(request)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Ignore errors of connections that are not of our tasks."""
