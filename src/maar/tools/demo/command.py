"""`maar demo`: runs a server and sample programs, and shows their profiles."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

import click
from rich.console import Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from maar.cli.client import Server
from maar.cli.commands.query import CPU, plain_graph
from maar.cli.input.options import now_ms
from maar.cli.output.failure import EXIT_INTERRUPTED, EXIT_UNAVAILABLE, CommandFailed
from maar.cli.output.show import console, duration, print_table, quantity, size
from maar.tools.demo.processes import PROGRAMS, Demo

READY_S = 180.0
PLAIN_EVERY_S = 5.0


@dataclass(frozen=True, slots=True)
class DemoProgress:
    """The numbers of the server's status that the demo shows."""

    profiles: int = 0
    blocks: tuple[tuple[int, str, int, int], ...] = ()  # level, kind, blocks, bytes
    compactions: int = 0
    running: int = 0

    @classmethod
    def of(cls, status: dict[str, Any]) -> DemoProgress:
        return cls(
            profiles=status["profiles_added"],
            blocks=tuple(
                (level["level"], level["kind"], level["blocks"], level["bytes"])
                for level in status["levels"]
            ),
            compactions=status["completed"],
            running=status["running"],
        )

    def line(self) -> str:
        levels = ", ".join(
            f"{count} at level {level}" for level, _, count, _ in self.blocks if level and count
        )
        segments = sum(count for _, kind, count, _ in self.blocks if kind == "segment")
        return (
            f"profiles received {self.profiles}, segments {segments}, "
            f"blocks {levels or 'none yet'}, compactions done {self.compactions}"
        )


@dataclass(frozen=True, slots=True)
class SeenProgram:
    """What the flame graph of one program shows."""

    program: str
    total: int
    top: str
    top_share: float


class Stop(Exception):
    """The demo was asked to end."""


@click.command("demo")
@click.option("--seconds", type=click.FloatRange(min=1), help="End by itself, with a summary.")
@click.option("--port", default=4040, show_default=True, help="Where the server listens.")
@click.option(
    "--data",
    type=click.Path(path_type=Path),
    default=Path(".maar/demo"),
    show_default=True,
    help="Its data; deleted first.",
)
def command(seconds: float | None, port: int, data: Path) -> None:
    """Start a server and sample programs under a real agent, and watch.

    Ctrl-C ends it. With --seconds, the exit code is 0 only if there was a compaction and a flame
    graph of every program.
    """
    demo = Demo(listen=f"127.0.0.1:{port}", data_dir=data)
    began_ms = now_ms()
    api = Server(demo.url)
    missing: list[str] = []
    interrupted = False
    try:
        with _stoppable():
            click.echo(f"Starting maar on {demo.url} (log in {demo.log_file})")
            demo.start_server()
            _wait_until_ready(demo, api)
            demo.start_programs()
            click.echo(f"Ready. Sample programs: {', '.join(PROGRAMS)}")
            click.echo(f"  Page         {demo.url}/")
            click.echo(f"  Commands     maar status --server {demo.url}")
            click.echo(f"  Flame graph  maar query flamegraph --service checkout "
                       f"--server {demo.url}")  # fmt: skip
            progress = _watch(demo, api, seconds)
            if seconds is not None:
                missing = _summary(api, progress, began_ms)
    except Stop:
        interrupted = True
    finally:
        with _ignore_interrupts():
            click.echo("Stopping: programs, then the server")
            api.close()
            demo.stop()
            click.echo("Stopped; no process is left")
    if interrupted:
        raise SystemExit(EXIT_INTERRUPTED if seconds is not None else 0)
    for sentence in missing:
        click.echo(f"missing: {sentence}", err=True)
    raise SystemExit(1 if missing else 0)


def _wait_until_ready(demo: Demo, api: Server) -> None:
    deadline = time.monotonic() + READY_S
    told = ""
    while time.monotonic() < deadline:
        code = demo.server_ended()
        if code is not None:
            raise CommandFailed(
                f"the server ended with code {code}: {demo.last_words()}", max(code, 1)
            )
        try:
            api.get_bytes("/ready")
            return
        except CommandFailed as error:
            if "compiling" in str(error) and str(error) != told:
                told = str(error)
                click.echo(f"  {told}")
            time.sleep(0.3)
    raise CommandFailed(f"the server was not ready within {READY_S:.0f} s; see {demo.log_file}")


def _watch(demo: Demo, api: Server, seconds: float | None) -> DemoProgress:
    """Show progress until time is up; returns the last that was seen."""
    began = time.monotonic()
    progress = DemoProgress()
    with _view() as show:
        while seconds is None or time.monotonic() - began < seconds:
            code = demo.server_ended()
            if code is not None:
                raise CommandFailed(f"the server ended with code {code}: {demo.last_words()}")
            dead = demo.dead_programs()
            if dead:
                raise CommandFailed(
                    f"sample programs ended: {', '.join(dead)}; see {demo.data_dir}"
                )
            try:
                progress = DemoProgress.of(api.get("/api/v1/status"))
            except CommandFailed as error:
                if error.exit_code != EXIT_UNAVAILABLE:
                    raise
            show(progress, time.monotonic() - began)
            time.sleep(1)
    return progress


@contextmanager
def _view() -> Iterator[Callable[[DemoProgress, float], None]]:
    """A live table on a terminal, a line now and then otherwise."""
    page = console()
    if page.is_terminal:
        with Live(console=page, transient=False, auto_refresh=False) as live:
            yield lambda progress, age_s: live.update(_table(progress, age_s), refresh=True)
        return
    last = -PLAIN_EVERY_S

    def line(progress: DemoProgress, age_s: float) -> None:
        nonlocal last
        if age_s - last >= PLAIN_EVERY_S:
            last = age_s
            click.echo(f"{age_s:4.0f} s  {progress.line()}")

    yield line


def _table(progress: DemoProgress, age_s: float) -> Group:
    table = Table(box=None, pad_edge=False)
    for header, side in (
        ("level", "right"),
        ("kind", "left"),
        ("blocks", "right"),
        ("size", "right"),
    ):
        table.add_column(header, justify="right" if side == "right" else "left")
    for level, kind, count, total in progress.blocks:
        table.add_row(str(level), kind, f"{count:,}", size(total))
    head = Text.assemble(
        ("profiles received ", "dim"), (f"{progress.profiles:,}", "bold"),
        ("   compactions done ", "dim"), (f"{progress.compactions:,}", "bold green"),
        ("   running ", "dim"), (f"{progress.running}", "bold"),
        (f"   {duration(age_s)}", "dim"),
    )  # fmt: skip
    return Group(Text(), head, table, Text("Ctrl-C ends the demo", style="dim"))


def _summary(api: Server, progress: DemoProgress, began_ms: int) -> list[str]:
    """Print the summary; returns what is missing, as sentences."""
    found = [_look_at(api, program, began_ms) for program in PROGRAMS]
    click.echo(f"Summary: {progress.line()}")
    rows = [
        (one.program, quantity(one.total, "nanoseconds"), one.top, f"{100 * one.top_share:.0f}%")
        for one in found
    ]
    print_table(("program", "cpu", "top function", "share"), rows, right=("cpu", "share"))
    missing = [f"a flame graph of {one.program}" for one in found if not one.total]
    if not progress.compactions:
        missing.append("a compaction")
    return missing


def _look_at(api: Server, program: str, began_ms: int) -> SeenProgram:
    which: dict[str, str | int] = {
        "profileTypeID": CPU,
        "labelSelector": f'{{service_name="{program}"}}',
        "start": began_ms,
        "end": now_ms(),
    }
    graph = plain_graph(api.querier("SelectMergeStacktraces", {**which, "maxNodes": 1024}))
    rows = api.get("/api/v1/top", {**which, "limit": 1})["rows"]
    total = graph["total"] if len(graph["levels"]) > 1 else 0
    name, own, _ = rows[0] if rows else ("-", 0, 0)
    return SeenProgram(program, total, name, own / total if total else 0.0)


@contextmanager
def _stoppable() -> Iterator[None]:
    """SIGINT and SIGTERM end the demo in order."""

    def stop(_number: int, _frame: FrameType | None) -> None:
        raise Stop

    numbers = (signal.SIGINT, signal.SIGTERM)
    before = [signal.signal(number, stop) for number in numbers]
    try:
        yield
    finally:
        for number, handler in zip(numbers, before, strict=True):
            signal.signal(number, handler)


@contextmanager
def _ignore_interrupts() -> Iterator[None]:
    """An impatient second Ctrl-C must not leave processes behind; the wait is bounded."""
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
