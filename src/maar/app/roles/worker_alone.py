"""`maar worker`: a worker for a metastore elsewhere; it restarts its Spark engine when needed."""

from __future__ import annotations

import asyncio
import time

from maar.adapters.rpc import MetastoreClient
from maar.app.processes import logs, supervisor
from maar.app.roles import marker
from maar.app.roles.run import Child, ProcessName
from maar.app.roles.wiring import build_store
from maar.app.settings.config import Settings
from maar.model.errors import Retryable, Unavailable
from maar.model.ids import Incarnation
from maar.ports.metastore.log_time import GetNow
from maar.runner.java import check_java

METASTORE_ANSWERS_S = 10.0  # a server that was started with us needs a moment
ASK_AGAIN_S = 0.2


def serve(settings: Settings) -> int:
    """Check what can be checked, then work until a signal; returns the exit code."""
    settings = settings.apart()
    check_java()
    store = build_store(settings)
    incarnation = asyncio.run(find_incarnation(settings.roles.metastore))
    marker.check(store, incarnation, metastore=settings.roles.metastore)
    server = settings.server
    logs.configure(role="worker", form=server.log_format, level=server.log_level)
    with supervisor.listen(settings) as listener:
        keeper = supervisor.Supervisor(settings, listener, roles=(Child(ProcessName.WORKER),))
        return asyncio.run(keeper.run())


async def find_incarnation(
    addresses: str, *, patience_s: float = METASTORE_ANSWERS_S
) -> Incarnation:
    """Which log the metastore leads."""
    client = MetastoreClient(addresses)
    deadline = time.monotonic() + patience_s
    try:
        while True:
            try:
                return (await client.call(GetNow())).incarnation
            except Retryable as error:
                if time.monotonic() > deadline:
                    raise Unavailable(
                        f"no metastore answers at {addresses}; start `maar serve --set "
                        f"roles.metastore={addresses}` there, or name another with --metastore"
                    ) from error
            await asyncio.sleep(ASK_AGAIN_S)
    finally:
        await client.close()
