"""One process, any set of roles: each is started, watched and stopped the same way."""

from __future__ import annotations

import asyncio
import logging
import signal
import socket
from collections.abc import Callable, Iterator
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from enum import StrEnum
from typing import Any, NamedTuple

from maar.app.processes.process import CANNOT_RUN
from maar.app.roles.wiring import ALONE, Fronts, Here, make_new_stores
from maar.app.settings.config import Settings
from maar.model.errors import Corrupt, InvalidInput, MaarError
from maar.ports.plans.runner import RunnerDied

log = logging.getLogger("maar.role")

EXIT_FAILED = 1


class RoleName(StrEnum):
    """In the order in which they are started within one process."""

    METASTORE = "metastore"
    QUERY = "query"
    SEGMENT_WRITER = "segment-writer"
    DISTRIBUTOR = "distributor"  # agents push to it by HTTP and gRPC
    API = "api"  # people, Grafana and the command line ask it by HTTP
    WORKER = "worker"


class ProcessName(StrEnum):
    """What `maar serve` runs, each in a process of its own, in the order of their start."""

    METASTORE = "metastore"
    QUERY = "query"
    SEGMENT_WRITER = "segment-writer"  # beside several fronts; a single one has it in its process
    FRONT = "front"
    WORKER = "worker"


class Child(NamedTuple):
    """One process of `maar serve`. Fronts that share the port are numbered from 1."""

    process: ProcessName
    number: int = 0  # 0: there is only one

    def __str__(self) -> str:
        return f"{self.process}-{self.number}" if self.number else str(self.process)

    @property
    def roles(self) -> tuple[RoleName, ...]:
        if self.process is not ProcessName.FRONT:
            return (RoleName(self.process),)
        return _HTTP if self.number else FRONT


FRONT = (RoleName.SEGMENT_WRITER, RoleName.DISTRIBUTOR, RoleName.API)
_HTTP = (RoleName.DISTRIBUTOR, RoleName.API)  # they share one server in a process


def children_of(fronts: int) -> tuple[Child, ...]:
    """The processes of `maar serve` with so many fronts: several leave the shards to one writer."""
    found: list[Child] = []
    for process in ProcessName:
        if process is ProcessName.FRONT:
            numbers = range(1, fronts + 1) if fronts > 1 else (0,)
            found += [Child(process, number) for number in numbers]
        elif process is not ProcessName.SEGMENT_WRITER or fronts > 1:
            found.append(Child(process))
    return tuple(found)


def child_named(text: str) -> Child:
    """ValueError when there is none of that name."""
    if text in tuple(ProcessName):
        return Child(ProcessName(text))
    process, _, number = text.rpartition("-")
    return Child(ProcessName(process), int(number))


def roles_named(text: str) -> tuple[RoleName, ...]:
    """Roles by their names with commas between; `front` stands for the three that it has.

    ValueError when a name is not known.
    """
    names: list[RoleName] = []
    for name in (part.strip() for part in text.split(",")):
        names += FRONT if name == ProcessName.FRONT else (RoleName(name),)
    return tuple(dict.fromkeys(names))


async def run(
    settings: Settings,
    names: tuple[RoleName, ...],
    listener: socket.socket | None,
    *,
    restarts: int = 0,
    started: Callable[[], None] = lambda: None,
    fronts: Fronts = ALONE,
) -> int:
    """Run the roles until SIGTERM or SIGINT, or until one of them ends; returns the exit code.

    `started` is called when all of them run and the event loop is responsive. `fronts` says how
    many share the port, and which of them this is.
    """
    make_new_stores(settings)
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    stopped = asyncio.create_task(stop.wait())
    try:
        async with AsyncExitStack() as stack:
            lives: list[asyncio.Task[Any]] = [stopped]
            for start in _starts(settings, names, listener, restarts, stop, fronts):
                if not stop.is_set():
                    life = await stack.enter_async_context(start())
                    lives += [life] if life is not None else []
            log.info("started roles=%s", ",".join(names))
            started()
            done, _ = await asyncio.wait(lives, return_when=asyncio.FIRST_COMPLETED)
            log.info("stopping roles=%s", ",".join(names))
            for task in done:
                task.result()
    except (InvalidInput, Corrupt) as error:
        log.error("cannot run cause=%s", error)
        return CANNOT_RUN
    except (MaarError, RunnerDied) as error:
        log.error("failed cause=%s", error)
        return EXIT_FAILED
    except Exception:  # log the cause before the process exits
        log.exception("failed because of a bug in maar roles=%s", ",".join(names))
        return EXIT_FAILED
    finally:
        stopped.cancel()
    return 0 if stop.is_set() else EXIT_FAILED


Role = AbstractAsyncContextManager[asyncio.Task[None] | None]


def _starts(
    settings: Settings,
    names: tuple[RoleName, ...],
    listener: socket.socket | None,
    restarts: int,
    stop: asyncio.Event,
    fronts: Fronts,
) -> Iterator[Callable[[], Role]]:
    """Each role's modules are imported where it runs: the metastore needs no Spark.

    Distributor and API share the HTTP server; without them, the writer, the metastore or the worker
    serves its health there.
    """
    http = any(name in names for name in _HTTP)
    writes = RoleName.SEGMENT_WRITER in names
    here = Here(fronts=fronts)
    if RoleName.METASTORE in names:
        from maar.app.roles import metastore

        tells = None if http or writes else listener
        yield lambda: metastore.run(settings, stop, tells)
    if RoleName.QUERY in names:
        from maar.app.roles import query

        yield lambda: query.run(settings)
    if RoleName.SEGMENT_WRITER in names:
        from maar.app.roles import segment

        yield lambda: segment.run(settings, here, None if http else listener)
    if http:
        from maar.app.roles import front

        assert listener is not None
        pushes, asks = (name in names for name in _HTTP)
        yield lambda: front.run(settings, here, listener, pushes=pushes, asks=asks)
    if RoleName.WORKER in names:
        from maar.app.roles import worker

        alone = None if http or writes or RoleName.METASTORE in names else listener
        yield lambda: worker.run(settings, alone, restarts=restarts)
