"""An honest worker: the real one, on a runner of cheap processes."""

from __future__ import annotations

import asyncio
import logging
import os
import secrets
import signal
from random import Random

from prometheus_client import CollectorRegistry

from maar.adapters.rpc import MetastoreClient
from maar.adapters.system_clock import SystemClock
from maar.app.processes import logs
from maar.model.ids import WorkerId
from maar.worker.service import Worker
from maar.worker.settings import WorkerSettings
from support.soak.orders import Work
from support.soak.runner import ForkServerRunner

SETTINGS = WorkerSettings(
    poll_interval_ms=200,
    call_timeout_ms=2000,
    fault_min_ms=200,
    fault_max_ms=1000,
    drain_ms=4000,
    cancel_ms=4000,
)


def run(work: Work) -> None:
    logs.configure(role=f"{work.name}-{os.getpid()}", form="text", level="info")
    asyncio.run(_run(work))
    logging.shutdown()


async def _run(work: Work) -> None:
    metastore = MetastoreClient(work.around.metastore)
    worker = Worker(
        SETTINGS,
        metastore,
        ForkServerRunner(work.around, slots=work.slots, pause_s=work.pause_s),
        SystemClock(),
        CollectorRegistry(),
        WorkerId(f"{work.name}-{os.getpid()}-{secrets.token_hex(4)}"),
        random=Random(secrets.randbits(64)),
    )
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, worker.stop)
    await worker.run()
    await metastore.close()
