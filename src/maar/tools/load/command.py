"""`maar load`: pushes as many services would, and reports latencies and refusals."""

from __future__ import annotations

import asyncio
import json
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import IO

import click
import msgspec
import uvloop
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

from maar.cli.input.options import DEFAULT_SERVER, json_option
from maar.cli.output.failure import EXIT_INTERRUPTED, EXIT_REFUSED, EXIT_UNAVAILABLE, CommandFailed
from maar.cli.output.show import print_json
from maar.model.errors import MaarError
from maar.tools.load.http import Address, Broken, ConnectionPool
from maar.tools.load.plan import Crowd, Program
from maar.tools.load.profiles import Template, synthetic, template_of
from maar.tools.load.report import LoadReport, LoadTally, lines, report
from maar.tools.load.run import Acknowledged, LoadRun

PROGRAMS_MAX = 64  # synthetic ones; more services than that share them
SHOW_EVERY_S = 0.25

_COUNT = click.IntRange(min=1)
_POSITIVE = click.FloatRange(min=0, min_open=True)


@click.command("load")
@click.option("--services", type=_COUNT, default=8, show_default=True, help="Of each tenant.")
@click.option("--pods", type=_COUNT, default=4, show_default=True, help="Of each service.")
@click.option("--tenants", type=_COUNT, default=1, show_default=True, help="1: the default tenant.")
@click.option(
    "--prefix",
    default="load",
    show_default=True,
    help="What the names of services, pods and tenants begin with.",
)
@click.option(
    "--rate", type=_POSITIVE, default=20.0, show_default=True, help="Profiles a second, in all."
)
@click.option("--seconds", type=_POSITIVE, default=30.0, show_default=True, help="How long.")
@click.option(
    "--file",
    "files",
    multiple=True,
    type=click.Path(path_type=Path),
    help="A pprof to push, dated anew each time; repeat it. Without: synthetic ones.",
)
@click.option(
    "--samples", type=_COUNT, default=160, show_default=True, help="Of a synthetic profile."
)
@click.option(
    "--patience",
    type=click.FloatRange(min=0),
    default=60.0,
    show_default=True,
    help="Seconds for which a push is retried when it is refused temporarily or not answered.",
)
@click.option(
    "--timeout", type=_POSITIVE, default=30.0, show_default=True, help="Seconds for one try."
)
@click.option(
    "--under-way", type=_COUNT, default=2000, show_default=True, help="Pushes at once, at most."
)
@click.option("--seed", default=1, show_default=True, help="Another order, other programs.")
@click.option(
    "--record",
    type=click.Path(path_type=Path),
    help="A file for a line of JSON per acknowledged profile: id, tenant, service, time, total.",
)
@json_option
@click.option(
    "--server",
    "servers",
    multiple=True,
    default=[DEFAULT_SERVER],
    envvar="MAAR_SERVER",
    show_default=True,
    show_envvar=True,
    help="Where to push; repeat it to take several by turns.",
)
def command(
    services: int,
    pods: int,
    tenants: int,
    prefix: str,
    rate: float,
    seconds: float,
    files: tuple[Path, ...],
    samples: int,
    patience: float,
    timeout: float,
    under_way: int,
    seed: int,
    record: Path | None,
    as_json: bool,
    servers: tuple[str, ...],
) -> None:
    """Push profiles of SERVICES times PODS for a while; every one is new and dated now.

    A push is sent when it is due, whether or not earlier ones were answered. One that is refused
    temporarily (429, 503) or not answered is sent again, with the same bytes, to the next server.
    Exits 1 when a push was never acknowledged, 3 when no server answers.
    """
    crowd = Crowd(
        tenants=tenants, services=services, pods=pods, rate=rate, seconds=seconds, prefix=prefix
    )
    doors = [ConnectionPool(Address.of(url), timeout_s=timeout) for url in servers]
    if files:
        shelves = [[_template(file) for file in files]]
    else:
        programs = range(min(PROGRAMS_MAX, tenants * services))
        shelves = [[synthetic(seed * PROGRAMS_MAX + n, samples=samples)] for n in programs]
    with ExitStack() as stack:
        told = stack.enter_context(_recording(record)) if record else _untold
        found, interrupted = uvloop.run(
            _run(crowd, doors, shelves, told, patience, under_way, seed, show=not as_json)
        )
    if as_json:
        print_json(msgspec.to_builtins(found))
    else:
        for line in lines(found):
            click.echo(line)
    if interrupted:
        raise SystemExit(EXIT_INTERRUPTED)
    raise SystemExit(EXIT_REFUSED if found.never_acknowledged else 0)


async def _run(
    crowd: Crowd,
    doors: Sequence[ConnectionPool],
    shelves: Sequence[Sequence[Template]],
    told: Acknowledged,
    patience_s: float,
    under_way_max: int,
    seed: int,
    *,
    show: bool,
) -> tuple[LoadReport, bool]:
    await _somebody_answers(doors)
    load = LoadRun(
        crowd,
        doors,
        shelves,
        told,
        patience_s=patience_s,
        under_way_max=under_way_max,
        seed=seed,
    )
    interrupted = asyncio.Event()
    began = time.monotonic()
    running = asyncio.create_task(load.run())
    loop = asyncio.get_running_loop()

    def interrupt() -> None:
        """The first signal stops new pushes, the second gives up those in flight."""
        if interrupted.is_set():
            running.cancel()
        interrupted.set()
        load.stop()

    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, interrupt)
    with _view(crowd, load.tally, show=show) as refresh:
        while not running.done():
            await asyncio.wait([running], timeout=SHOW_EVERY_S)
            refresh()
    if not running.cancelled():
        running.result()
    for door in doors:
        door.close()
    seconds = time.monotonic() - began
    urls = [door.address.url for door in doors]
    return (
        report(load.tally, servers=urls, seconds=seconds, planned=crowd.pushes, rate=crowd.rate),
        interrupted.is_set(),
    )


async def _somebody_answers(doors: Sequence[ConnectionPool]) -> None:
    """Check the addresses first, so that a wrong one fails at once instead of after retries."""
    causes = []
    for door in doors:
        try:
            door.keep(await door.connect())
            return
        except Broken as error:
            causes.append(f"{door.address.url} ({error})")
    raise CommandFailed(
        f"no maar server answers at {', '.join(causes)}; start one with `maar serve`, or name "
        "another with --server",
        EXIT_UNAVAILABLE,
    )


@contextmanager
def _view(crowd: Crowd, tally: LoadTally, *, show: bool) -> Iterator[Callable[[], None]]:
    """A bar on a terminal, nothing elsewhere."""
    page = Console(stderr=True)
    if not (show and page.is_terminal):
        yield lambda: None
        return
    bar = Progress(
        BarColumn(),
        TextColumn("{task.completed:,.0f} of {task.total:,.0f} acknowledged"),
        TextColumn("{task.description}", style="dim"),
        TimeRemainingColumn(),
        console=page,
        auto_refresh=False,
        transient=True,
    )
    with bar:
        task = bar.add_task("", total=crowd.pushes)
        yield lambda: bar.update(
            task, completed=tally.acknowledged, description=_now(tally), refresh=True
        )


def _now(tally: LoadTally) -> str:
    refused = sum(tally.refusals.values())
    return f"{tally.sent - tally.acknowledged:,} under way, {refused:,} refusals"


def _template(file: Path) -> Template:
    try:
        return template_of(file.read_bytes())
    except OSError as error:
        raise CommandFailed(f"{file} cannot be read: {error.strerror}") from None
    except MaarError as error:
        raise CommandFailed(f"{file} is not a profile that could be pushed: {error}") from None


@contextmanager
def _recording(file: Path) -> Iterator[Acknowledged]:
    try:
        with file.open("w", buffering=1) as out:
            yield lambda *what: _write(out, *what)
    except OSError as error:
        raise CommandFailed(f"cannot write {file}: {error.strerror}") from None


def _write(
    out: IO[str], source: Program, template: Template, time_ns: int, ids: tuple[str, ...]
) -> None:
    for identity in ids:
        line = {
            "id": identity,
            "tenant": source.tenant,
            "service": source.service,
            "pod": source.pod,
            "time_ns": time_ns,
            "total": template.total,
        }
        out.write(f"{json.dumps(line)}\n")


def _untold(_source: Program, _template: Template, _time_ns: int, _ids: tuple[str, ...]) -> None:
    """Nobody asked for a record."""
