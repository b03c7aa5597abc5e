"""What the supervisor decides without any process."""

from __future__ import annotations

import asyncio
import signal
import socket
from asyncio.subprocess import Process
from itertools import pairwise
from pathlib import Path

import pytest

from maar.app.config import Settings, load
from maar.app.process import CANNOT_RUN, lock_directory
from maar.app.roles import RoleName
from maar.app.supervisor import (
    EXIT_CANNOT_RUN,
    NOT_STARTED,
    RESTART_MAX_S,
    Supervisor,
    listen,
    restart_delay_s,
    stop_signals,
)
from maar.model.errors import InvalidInput


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

    def __init__(self, directory: Path, codes: dict[RoleName, list[int]]) -> None:
        listener = listen(settings(MAAR_SERVER__LISTEN="127.0.0.1:0"))
        super().__init__(settings(), listener, directory)
        self.codes = codes

    async def _start(self, role: RoleName, restarts: int) -> Process:
        del restarts
        if not self.codes.get(role):
            await self._stopping.wait()
        raise BlockingIOError(11, "Resource temporarily unavailable")

    async def _live(self, role: RoleName, restarts: int) -> int:
        code = await super()._live(role, restarts)
        code = self.codes[role].pop(0) if self.codes.get(role) else code
        if not any(self.codes.values()):
            self._stopping.set()
        return code


def lived(directory: Path, role: RoleName, *codes: int) -> int:
    return asyncio.run(Childless(directory, {role: list(codes)}).run())


def test_a_role_that_cannot_be_started_just_now_is_started_later(tmp_path: Path) -> None:
    assert lived(tmp_path, RoleName.FRONT, NOT_STARTED, NOT_STARTED) == 0


def test_a_role_that_cannot_run_ends_the_server(tmp_path: Path) -> None:
    assert lived(tmp_path, RoleName.METASTORE, 1, CANNOT_RUN, 1) == EXIT_CANNOT_RUN
    assert lived(tmp_path, RoleName.WORKER, CANNOT_RUN, 1) == EXIT_CANNOT_RUN


def test_a_worker_that_could_run_before_does_not_take_the_server_along(tmp_path: Path) -> None:
    assert lived(tmp_path, RoleName.WORKER, 1, CANNOT_RUN, 1) == 0


def test_nohup_is_heeded() -> None:
    assert signal.SIGHUP in stop_signals()
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
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
