"""What the supervisor decides without any process."""

from __future__ import annotations

import asyncio
import signal
import socket
from asyncio.subprocess import Process
from itertools import pairwise
from pathlib import Path

import pytest

from maar.app.processes.process import CANNOT_RUN, lock_directory
from maar.app.processes.supervisor import (
    EXIT_CANNOT_RUN,
    NOT_STARTED,
    RESTART_MAX_S,
    Supervisor,
    is_ready,
    listen,
    restart_delay_s,
    stop_signals,
    with_sockets,
)
from maar.app.roles.marker import check
from maar.app.roles.run import Child, ProcessName
from maar.app.settings.config import METASTORE_ADDRESS, Settings, load
from maar.metastore.leader.stores.claim import mark
from maar.model.errors import InvalidInput
from maar.model.ids import Incarnation
from support.clock.virtual_time import run_virtually
from support.stores.memory_store import MemoryStore


def settings(**variables: str) -> Settings:
    return load(file=None, environ=variables)


def test_restarts_wait_longer_and_longer_but_not_for_ever() -> None:
    delays = [restart_delay_s(failures) for failures in range(1, 12)]
    assert delays[0] < 0.5
    assert all(later >= sooner for sooner, later in pairwise(delays))
    assert delays[-1] == RESTART_MAX_S
    assert restart_delay_s(10_000) == RESTART_MAX_S


class Childless(Supervisor):
    """Every life of a role ends at once, with the next of its codes; then it is time to stop."""

    def __init__(self, codes: dict[Child, list[int]]) -> None:
        listener = listen(settings(MAAR_SERVER__LISTEN="127.0.0.1:0"))
        super().__init__(settings(MAAR_SERVER__DATA_DIR="/proc/nowhere"), listener)
        self.codes = codes

    async def _start(self, role: Child, restarts: int, beats: int) -> Process:
        del restarts, beats
        if not self.codes.get(role):
            await self._stopping.wait()
        raise BlockingIOError(11, "Resource temporarily unavailable")

    async def live(self, role: Child, restarts: int) -> int:
        code = await super().live(role, restarts)
        code = self.codes[role].pop(0) if self.codes.get(role) else code
        if not any(self.codes.values()):
            self._stopping.set()
        return code


def lived(role: ProcessName, *codes: int) -> int:
    return run_virtually(Childless({Child(role): list(codes)}).run())


def test_a_role_that_cannot_be_started_just_now_is_started_later() -> None:
    assert lived(ProcessName.FRONT, NOT_STARTED, NOT_STARTED) == 0


def test_a_role_that_cannot_run_ends_the_server() -> None:
    assert lived(ProcessName.METASTORE, 1, CANNOT_RUN, 1) == EXIT_CANNOT_RUN
    assert lived(ProcessName.WORKER, CANNOT_RUN, 1) == EXIT_CANNOT_RUN


def test_a_worker_that_could_run_before_does_not_take_the_server_along() -> None:
    assert lived(ProcessName.WORKER, 1, CANNOT_RUN, 1) == 0


def test_roles_meet_at_private_sockets(tmp_path: Path) -> None:
    roles = with_sockets(settings(), tmp_path).roles
    assert {roles.metastore, roles.query, roles.worker} == {
        f"unix:{tmp_path}/{name}.sock" for name in ("metastore", "query", "worker")
    }


def test_a_metastore_that_workers_elsewhere_are_to_reach_keeps_its_address(tmp_path: Path) -> None:
    given = settings(MAAR_ROLES__METASTORE="127.0.0.1:4041")
    assert with_sockets(given, tmp_path).roles.metastore == "127.0.0.1:4041"


def test_roles_that_run_by_themselves_have_addresses_in_any_case() -> None:
    assert settings().apart().roles.metastore == METASTORE_ADDRESS
    given = settings(MAAR_ROLES__METASTORE="127.0.0.1:5000").apart()
    assert given.roles.metastore == "127.0.0.1:5000"


def test_a_worker_may_call_a_metastore_on_another_machine_but_not_listen_there_unasked() -> None:
    far = {"MAAR_ROLES__METASTORE": "10.1.2.3:4041"}
    with pytest.raises(InvalidInput, match=r"roles\.metastore.*--allow-remote"):
        load(file=None, environ=far)
    assert load(file=None, environ=far, roles_here=False).roles.metastore == "10.1.2.3:4041"
    with pytest.raises(InvalidInput, match=r"server\.listen.*--allow-remote"):
        load(file=None, environ={"MAAR_SERVER__LISTEN": "10.1.2.3:1"}, roles_here=False)


def test_a_store_is_known_by_the_marker_of_its_log() -> None:
    store, log = MemoryStore(), Incarnation("0badcafe")
    mark(store, log)
    mark(store, log)  # at the next start
    check(store, log, metastore="127.0.0.1:4041")
    for stranger in (MemoryStore(), store):
        with pytest.raises(InvalidInput, match="is not the store of the metastore"):
            check(stranger, Incarnation("deadbeef"), metastore="127.0.0.1:4041")


def test_nohup_is_heeded() -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)  # the suite itself may run under nohup
    try:
        assert signal.SIGHUP in stop_signals()
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
        assert stop_signals() == [signal.SIGTERM, signal.SIGINT]
    finally:
        signal.signal(signal.SIGHUP, before)


def test_a_directory_has_one_server(tmp_path: Path) -> None:
    held = lock_directory(tmp_path / "data")
    with pytest.raises(InvalidInput, match="another maar server is using"):
        lock_directory(tmp_path / "data")
    held.close()
    lock_directory(tmp_path / "data").close()


def test_a_directory_that_cannot_be_is_said_to_be_none(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(InvalidInput, match="choose another with --data"):
        lock_directory(tmp_path / "file" / "data")


def test_a_taken_port_is_a_sentence() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        with pytest.raises(InvalidInput, match=f"cannot listen on {address}.*--listen"):
            listen(settings(MAAR_SERVER__LISTEN=address))


def test_port_zero_takes_a_free_one() -> None:
    with listen(settings(MAAR_SERVER__LISTEN="127.0.0.1:0")) as listener:
        assert listener.getsockname()[1] > 0


@pytest.mark.parametrize(
    ("answer", "ready"),
    [
        (b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n", True),
        (b"HTTP/1.1 503 Service Unavailable\r\n\r\nHTTP/1.1 200 OK\r\n\r\n", False),
        (b"200\r\n", False),
        (b"", False),
    ],
)
def test_maar_is_ready_when_a_front_says_so(answer: bytes, *, ready: bool) -> None:
    asked: list[bytes] = []

    async def answers(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        asked.append(await reader.readuntil(b"\r\n\r\n"))
        writer.write(answer)
        writer.close()

    async def ask(listener: socket.socket) -> bool:
        async with await asyncio.start_server(answers, sock=listener):
            return await is_ready(listener)

    listener = listen(settings(MAAR_SERVER__LISTEN="127.0.0.1:0"))
    port = listener.getsockname()[1]
    assert asyncio.run(ask(listener)) is ready
    assert asked[0].startswith(b"GET /ready HTTP/1.1\r\n")
    assert f"host: 127.0.0.1:{port}\r\n".encode() in asked[0]


def test_maar_is_not_ready_while_nobody_listens() -> None:
    with listen(settings(MAAR_SERVER__LISTEN="127.0.0.1:0")) as listener:
        listener.shutdown(socket.SHUT_RDWR)
        assert not asyncio.run(is_ready(listener))
