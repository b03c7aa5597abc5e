"""`maar serve`: a process for every role, restarted when it dies or hangs, ended in order.

The supervisor holds the listening socket, so that connections wait while the front starts again.
Children are killed by the kernel when the supervisor is gone; the worker takes Spark along.
"""

from __future__ import annotations

import asyncio
import logging
import os
import shutil
import signal
import socket
import sys
import tempfile
import time
from asyncio.subprocess import PIPE, STDOUT, Process
from contextlib import suppress
from pathlib import Path

import msgspec

from maar.app.processes import logs, status_file
from maar.app.processes.heart import TICK_S, Heart
from maar.app.processes.process import CANNOT_RUN, compiled_code, lock_directory
from maar.app.processes.status_file import ProcessState
from maar.app.processes.watcher import session_members
from maar.app.roles.replica import replica_place
from maar.app.roles.run import Child, ProcessName, children_of
from maar.app.roles.wiring import RUN, make_new_stores
from maar.app.settings.config import Settings
from maar.app.settings.sections import RoleAddresses
from maar.background import cancel, wait_any
from maar.model.errors import InvalidInput
from maar.runner.java import check_java

log = logging.getLogger("maar.supervisor")

RESTART_FIRST_S = 0.2
RESTART_MAX_S = 10.0
LIVED_LONG_S = 30.0  # a child that ran this long is restarted quickly again
LAST_WORDS_S = 0.5  # for the stacks of a process that hangs
HANG_HELP = "docs/operating.md#a-process-hangs"
KILL_MARGIN_S = 10.0  # beyond the drain time, before SIGKILL
SESSION_END_S = 5.0
BACKLOG = 1024
READY_LOOK_S = 0.3
READY_ANSWER_S = 5.0
RUN_PREFIX = "maar-run-"
SOCKET_PATH_MAX = 100  # the kernel's limit is 108
NOT_STARTED = 71  # in place of the exit code of a child that there was not
EXIT_CANNOT_RUN = 2
EXIT_FORCED = 1  # a process was killed before it had answered all requests


def serve(settings: Settings) -> int:
    """Check what can be checked, then run until a signal; returns the exit code."""
    replica_place(settings.apart())
    with lock_directory(settings.data_dir), listen(settings) as listener:
        check_java()
        run_dir = fresh_run_dir(settings.data_dir)
        try:
            return asyncio.run(Supervisor(with_sockets(settings, run_dir), listener).run())
        finally:
            shutil.rmtree(run_dir, ignore_errors=True)
            (settings.data_dir / RUN).unlink(missing_ok=True)


def listen(settings: Settings) -> socket.socket:
    host, port = settings.listen_address()
    try:
        family, *_, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        return socket.create_server(address[:2], family=family, backlog=BACKLOG)
    except OSError as error:
        raise InvalidInput(
            f"cannot listen on {settings.server.listen}: {error.strerror or error}; stop the "
            "program that holds it, or choose another address with --listen"
        ) from error


def url_of(listener: socket.socket) -> str:
    host, port = listener.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


async def is_ready(listener: socket.socket) -> bool:
    """Whether a front says so. By hand: an HTTP client would be a third of our memory."""
    place = url_of(listener).removeprefix("http://")
    try:
        async with asyncio.timeout(READY_ANSWER_S):
            reader, writer = await asyncio.open_connection(*listener.getsockname()[:2])
            try:
                asked = f"GET /ready HTTP/1.1\r\nhost: {place}\r\nconnection: close\r\n\r\n"
                writer.write(asked.encode())
                return (await reader.readline()).split()[1:2] == [b"200"]
            finally:
                writer.close()
    except (OSError, TimeoutError, ValueError):  # not yet
        return False


def restart_delay_s(failures: int) -> float:
    """How long to wait after the nth quick death in a row: doubling, bounded."""
    return min(RESTART_MAX_S, RESTART_FIRST_S * float(2 ** min(failures - 1, 10)))


def stop_signals() -> list[signal.Signals]:
    """What ends the server; under nohup, the end of a terminal does not."""
    hung_up = [] if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN else [signal.SIGHUP]
    return [signal.SIGTERM, signal.SIGINT, *hung_up]


class Supervisor:
    """Keeps processes alive; the fronts, or else the worker, serve the listening socket.

    Several fronts share that one socket: a connection that one has not taken, since it died, waits
    for the others.
    """

    def __init__(
        self,
        settings: Settings,
        listener: socket.socket,
        *,
        roles: tuple[Child, ...] = (),  # none: all
    ) -> None:
        self._listener = listener
        self._url = url_of(listener)
        self._settings = settings
        self._roles = roles = roles or children_of(settings.server.fronts)
        self._serves = any(role.process is ProcessName.FRONT for role in roles)
        self._listens = ProcessName.FRONT if self._serves else ProcessName.WORKER
        self.children: dict[Child, Process] = {}
        self._stopping = asyncio.Event()
        self._forced = asyncio.Event()
        self._exit_code = 0
        self.states = {role: ProcessState(process=str(role)) for role in roles}

    async def run(self) -> int:
        loop = asyncio.get_running_loop()
        for number in stop_signals():
            loop.add_signal_handler(number, self._on_signal, number)
        log.info("maar starts url=%s data=%s", self._url, self._settings.data_dir)
        make_new_stores(self._settings)
        async with asyncio.TaskGroup() as group:
            keepers = [group.create_task(self._keep(role)) for role in self._roles]
            announcer = group.create_task(self._announce())
            await self._stopping.wait()
            announcer.cancel()
            await self._end_all()
            await asyncio.gather(*keepers)
        log.info("maar has stopped exit_code=%d", self._exit_code)
        return self._exit_code

    def stop(self) -> None:
        """End all processes in good order; `run` returns when they have."""
        self._stopping.set()

    def _on_signal(self, number: int) -> None:
        if self._stopping.is_set():
            log.warning("second signal, ending at once signal=%s", signal.Signals(number).name)
            self._exit_code = EXIT_FORCED
            self._forced.set()
            for role in self.children:
                self._send(role, signal.SIGKILL)
            return
        log.info("stopping signal=%s", signal.Signals(number).name)
        self.stop()

    async def _keep(self, role: Child) -> None:
        """Run a role's process, again and again, until maar stops."""
        failures = restarts = 0
        while not self._stopping.is_set():
            began = time.monotonic()
            self._tell(role, restarts=restarts, runs=True)
            code = await self.live(role, restarts)
            self._tell(role, runs=False)
            restarts += 1
            if self._stopping.is_set():
                break
            if code == CANNOT_RUN and not (role.process is ProcessName.WORKER and restarts > 1):
                # A worker that ran before is restarted: pushes and queries work without it.
                log.error("role cannot run with these settings, stopping maar child=%s", role)
                self._exit_code = EXIT_CANNOT_RUN
                self._stopping.set()
                break
            failures = 1 if time.monotonic() - began > LIVED_LONG_S else failures + 1
            delay_s = restart_delay_s(failures)
            log.warning("role ended child=%s code=%d restart_in_s=%.1f", role, code, delay_s)
            await wait_any(delay_s, self._stopping)

    async def live(self, role: Child, restarts: int) -> int:
        """Run a role's process once; its exit code."""
        try:
            process, beats = await self._start_with_pipe(role, restarts)
        except OSError as error:  # out of memory, files or processes: that may pass
            log.error("role not started child=%s cause=%s", role, error)
            return NOT_STARTED
        pump = asyncio.create_task(self._pump(role, process))
        watch = asyncio.create_task(self._watch(role, beats))
        code = await process.wait()
        await cancel(watch)
        await self._session_ends(process.pid)
        await pump
        return code

    async def _start_with_pipe(self, role: Child, restarts: int) -> tuple[Process, int]:
        """The process, and the end of the pipe that its heartbeats come from."""
        ours, theirs = os.pipe()
        try:
            return await self._start(role, restarts, theirs), ours
        except OSError:
            os.close(ours)
            raise
        finally:
            os.close(theirs)

    async def _watch(self, role: Child, pipe: int) -> None:
        """Kill the role's process when it sends no heartbeat for too long; it is then restarted."""
        heart = Heart(self._settings.server.hung_after_s)
        loop = asyncio.get_running_loop()

        def hear() -> None:
            if beats := os.read(pipe, 1 << 16):
                heart.on_beat(beats)
            else:
                loop.remove_reader(pipe)  # it has ended

        loop.add_reader(pipe, hear)
        try:
            last = time.monotonic()
            while not heart.hangs():
                await asyncio.sleep(TICK_S)
                now = time.monotonic()
                heart.pass_time(now - last)
                last = now
            if not self._stopping.is_set():  # then _end() gives it its time
                await self._end_of_a_hang(role, heart)
        finally:
            loop.remove_reader(pipe)
            os.close(pipe)

    async def _end_of_a_hang(self, role: Child, heart: Heart) -> None:
        log.error(
            "role hangs: no heartbeat for %.0f s, it is restarted; nothing that was "
            "acknowledged is lost. Unless it was stopped, its stacks follow. See %s child=%s",
            heart.silent_s,
            HANG_HELP,
            role,
        )
        state = self.states[role]
        self._tell(role, hangs=state.hangs + 1, hung_at_ns=time.time_ns())
        self._send(role, signal.SIGUSR2)
        await asyncio.sleep(LAST_WORDS_S)
        self._send(role, signal.SIGKILL)

    def _tell(self, role: Child, **changes: int) -> None:
        """Write the status file for the front, which answers `maar status`."""
        self.states[role] = msgspec.structs.replace(self.states[role], **changes)
        if not self._serves:
            return
        try:
            status_file.write(self._settings.data_dir, list(self.states.values()))
        except OSError as error:
            log.warning("status file of the processes not written cause=%s", error)

    async def _start(self, role: Child, restarts: int, beats: int) -> Process:
        fd = self._listener.fileno() if role.process is self._listens else -1
        # A session of its own: Ctrl-C in a terminal reaches the supervisor alone.
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            *("-m", "maar.app.processes.child", str(role)),
            *map(str, (os.getpid(), fd, beats, restarts)),
            stdin=PIPE,
            stdout=PIPE,
            stderr=STDOUT,
            pass_fds=(beats, fd) if fd >= 0 else (beats,),
            start_new_session=True,
            env={
                **compiled_code(self._settings.data_dir),
                "MALLOC_ARENA_MAX": "2",  # else every thread keeps what it has freed
                "ARROW_DEFAULT_MEMORY_POOL": "system",  # its own one keeps as much again
                **os.environ,
                "GRPC_ENABLE_FORK_SUPPORT": "0",
                "PYTHONUNBUFFERED": "1",
            },
        )
        self.children[role] = process
        log.info("role started child=%s pid=%d", role, process.pid)
        if self._stopping.is_set():  # the stop signal came before the process existed
            self._send(role, signal.SIGTERM)
        assert process.stdin is not None
        with suppress(OSError):  # it may be dead already
            process.stdin.write(msgspec.json.encode(self._settings))
            await process.stdin.drain()
            process.stdin.close()
        return process

    async def _pump(self, role: Child, process: Process) -> None:
        """Pass a child's lines on; those that are not ours (the JVM's) get our form."""
        assert process.stdout is not None
        rest = b""
        while chunk := await process.stdout.read(1 << 16):
            *lines, rest = (rest + chunk).split(b"\n")
            for raw in lines:
                self._emit(role, raw)
            if len(rest) > 1 << 20:
                self._emit(role, rest)
                rest = b""
        if rest:
            self._emit(role, rest)

    def _emit(self, role: Child, raw: bytes) -> None:
        text = raw.decode(errors="replace").rstrip()
        if not text:
            return
        if not logs.is_structured(text):
            text = logs.line(
                text,
                time_s=time.time(),
                level="info",
                role=str(role),
                logger="output",
                form=self._settings.server.log_format,
            )
        with suppress(OSError):  # nobody reads our log any more; that is no reason to stop
            sys.stderr.write(text + "\n")
            sys.stderr.flush()

    async def _announce(self) -> None:
        while not await is_ready(self._listener):
            await asyncio.sleep(READY_LOOK_S)
        log.info("maar is ready url=%s", self._url)

    async def _end_all(self) -> None:
        """Whoever needs another process ends before it; the metastore goes last."""
        self._listener.close()
        for processes in (
            (ProcessName.FRONT, ProcessName.WORKER),
            (ProcessName.SEGMENT_WRITER,),  # it writes what the fronts have handed over
            (ProcessName.QUERY,),
            (ProcessName.METASTORE,),
        ):
            ending = [role for role in self.children if role.process in processes]
            await asyncio.gather(*map(self._end, ending))

    async def _end(self, role: Child) -> None:
        process = self.children[role]
        self._send(role, signal.SIGKILL if self._forced.is_set() else signal.SIGTERM)
        try:
            await asyncio.wait_for(process.wait(), self._settings.server.drain_s + KILL_MARGIN_S)
        except TimeoutError:
            log.warning("role did not end in time, killed child=%s", role)
            if role.process is not ProcessName.WORKER:  # no client waits for the worker
                self._exit_code = self._exit_code or EXIT_FORCED
            self._send(role, signal.SIGKILL)
            await process.wait()

    def _send(self, role: Child, number: int) -> None:
        process = self.children[role]
        if process.returncode is None:
            with suppress(ProcessLookupError):
                process.send_signal(number)

    async def _session_ends(self, session: int) -> None:
        """Wait until child processes of a role (Spark's JVM) are gone."""
        deadline = time.monotonic() + SESSION_END_S
        while session_members(session) and time.monotonic() < deadline:
            await asyncio.sleep(0.05)
        for member in session_members(session):
            with suppress(ProcessLookupError):
                os.kill(member, signal.SIGKILL)


def with_sockets(settings: Settings, run_dir: Path) -> Settings:
    """Sockets that only we reach; a metastore that others are to reach keeps its address."""
    addresses = RoleAddresses(
        metastore=settings.metastore_addresses or f"unix:{run_dir}/metastore.sock",
        query=f"unix:{run_dir}/query.sock",
        worker=f"unix:{run_dir}/worker.sock",
        segment_writer=settings.roles.segment_writer or f"unix:{run_dir}/segment-writer.sock",
    )
    return msgspec.structs.replace(settings, roles=addresses)


def fresh_run_dir(data_dir: Path) -> Path:
    """A private directory for sockets; that of a killed predecessor is removed."""
    link = data_dir / RUN
    if link.is_symlink():
        old = link.readlink()
        if old.name.startswith(RUN_PREFIX):
            shutil.rmtree(old, ignore_errors=True)
        link.unlink()
    fresh = Path(tempfile.mkdtemp(prefix=RUN_PREFIX))
    if len(str(fresh)) + len("/segment-writer.sock") > SOCKET_PATH_MAX:
        fresh.rmdir()
        fresh = Path(tempfile.mkdtemp(prefix=RUN_PREFIX, dir="/tmp"))
    link.symlink_to(fresh)
    return fresh
