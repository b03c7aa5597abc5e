"""A process that is stopped for good is noticed, killed and started again."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
from pathlib import Path

import pytest

from maar.adapters.rpc import MetastoreClient
from maar.app.processes.heart import Heart
from maar.app.processes.supervisor import HANG_HELP, Supervisor, listen, with_sockets
from maar.app.roles.run import Child, ProcessName
from maar.app.settings.config import load
from maar.model.errors import Retryable
from maar.ports.metastore.log_time import GetNow, Now

METASTORE = Child(ProcessName.METASTORE)

pytestmark = [pytest.mark.component, pytest.mark.timeout(120)]


async def answered(client: MetastoreClient) -> Now:
    while True:
        try:
            return await client.call(GetNow())
        except Retryable:
            await asyncio.sleep(0.05)


def test_a_metastore_that_is_stopped_is_started_again(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    running = asyncio.Event()
    heard = Heart.on_beat

    def told(heart: Heart, beats: bytes) -> None:
        heard(heart, beats)
        if heart.running:
            running.set()

    monkeypatch.setattr(Heart, "on_beat", told)
    environ = {
        "MAAR_SERVER__LISTEN": "127.0.0.1:0",
        "MAAR_SERVER__DATA_DIR": str(tmp_path / "data"),
        "MAAR_SERVER__HUNG_AFTER_S": "5",
    }
    settings = with_sockets(load(file=None, environ=environ), tmp_path)
    listener = listen(settings)
    keeper = Supervisor(settings, listener, roles=(METASTORE,))

    async def story() -> None:
        served = asyncio.create_task(keeper.run())
        client = MetastoreClient(settings.roles.metastore, deadline_s=2)
        async with asyncio.timeout(100):
            before = await answered(client)
            await running.wait()
            stopped = keeper.children[METASTORE].pid
            os.kill(stopped, signal.SIGSTOP)
            while keeper.states[METASTORE].hangs == 0:
                await asyncio.sleep(0.1)
            after = await answered(client)
            assert after.incarnation == before.incarnation
            assert keeper.children[METASTORE].pid != stopped
        await client.close()
        keeper.stop()
        assert await served == 0

    with caplog.at_level(logging.ERROR, logger="maar.supervisor"):
        asyncio.run(story())
    assert keeper.states[METASTORE].hangs == 1, "what replaced it is well"
    assert f"See {HANG_HELP} child=metastore" in caplog.text
