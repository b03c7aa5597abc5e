"""One process, any set of roles: each is started, watched and stopped the same way."""

from __future__ import annotations

import asyncio
import logging
import signal
import socket
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from enum import StrEnum
from typing import Any

from maar.app.config import Settings
from maar.app.process import CANNOT_RUN
from maar.model.errors import Corrupt, InvalidInput, MaarError
from maar.ports.runner import RunnerDied

log = logging.getLogger("maar.role")

EXIT_FAILED = 1


class RoleName(StrEnum):
    """In the order in which they are started within one process."""

    METASTORE = "metastore"
    QUERY = "query"
    FRONT = "front"
    WORKER = "worker"


async def run(
    settings: Settings,
    names: tuple[RoleName, ...],
    listener: socket.socket | None,
    *,
    restarts: int = 0,
) -> int:
    """Run the roles until SIGTERM or SIGINT, or until one of them ends; returns the exit code."""
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    stopped = asyncio.create_task(stop.wait())
    try:
        async with AsyncExitStack() as stack:
            lives: list[asyncio.Task[Any]] = [stopped]
            for name in RoleName:
                if name in names and not stop.is_set():
                    # A front answers HTTP for all; a worker does when it is alone.
                    serves = name is RoleName.FRONT or RoleName.FRONT not in names
                    role = _role(name, settings, listener if serves else None, restarts)
                    life = await stack.enter_async_context(role)
                    lives += [life] if life is not None else []
            log.info("started roles=%s", ",".join(names))
            done, _ = await asyncio.wait(lives, return_when=asyncio.FIRST_COMPLETED)
            log.info("stopping roles=%s", ",".join(names))
            for task in done:
                task.result()
    except (InvalidInput, Corrupt) as error:
        log.error("cannot run: %s", error)
        return CANNOT_RUN
    except (MaarError, RunnerDied) as error:
        log.error("failed: %s", error)
        return EXIT_FAILED
    except Exception:  # the edge of the process: whoever restarts it wants to know why
        log.exception("failed by a fault roles=%s", ",".join(names))
        return EXIT_FAILED
    finally:
        stopped.cancel()
    return 0 if stop.is_set() else EXIT_FAILED


def _role(
    name: RoleName, settings: Settings, listener: socket.socket | None, restarts: int
) -> AbstractAsyncContextManager[asyncio.Task[None] | None]:
    """Each role's modules are imported where it runs: the metastore needs no Spark."""
    match name:
        case RoleName.METASTORE:
            from maar.app import role_metastore

            return role_metastore.run(settings)
        case RoleName.QUERY:
            from maar.app import role_query

            return role_query.run(settings)
        case RoleName.FRONT:
            from maar.app import role_front

            assert listener is not None
            return role_front.run(settings, listener)
        case RoleName.WORKER:
            from maar.app import role_worker

            return role_worker.run(settings, listener, restarts=restarts)
