"""`maar push`: pushes profiles from files, and prints an id for each."""

from __future__ import annotations

import hashlib
import itertools
import queue
import re
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from pathlib import Path
from random import Random
from typing import TypeVar

import click
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from maar.cli.client import Server
from maar.cli.input.options import connect, label_pair, now_ms, server_options
from maar.cli.input.times import parse_time_ms
from maar.cli.output.failure import EXIT_REFUSED, EXIT_UNAVAILABLE, CommandFailed
from maar.cli.retry import pause_s
from maar.model.errors import MaarError
from maar.model.labels import PROFILE_NAME, SERVICE_NAME
from maar.model.text import visible_lines
from maar.pprof.folded import TYPES, parse_groups
from maar.pprof.gzip import compress, gunzip

GZIP_MAGIC = b"\x1f\x8b"
RAW_BYTES_MAX = 512 << 20
AT_ONCE = 8
RETRIES_MAX = 5  # of one file: a few seconds, unless the server asks for more
_FOLDED_LINE = re.compile(rb"\s*\S.*\s\d{1,19}\s*")

Done = Callable[[], None]
T = TypeVar("T")
R = TypeVar("R")


@click.command("push")
@click.argument("files", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option("--service", required=True, help="The service they belong to.")
@click.option("--label", "labels", multiple=True, metavar="NAME=VALUE", help="More labels.")
@click.option(
    "--format",
    "form",
    type=click.Choice(["auto", "pprof", "folded"]),
    default="auto",
    show_default=True,
    help="What the files are.",
)
@click.option(
    "--counts",
    type=click.Choice(sorted(TYPES)),
    default="cpu",
    show_default=True,
    help="What folded stacks count.",
)
@click.option("--sample-rate", default=100, show_default=True, help="Folded ticks per second.")
@click.option("--time", "when", default="now", show_default=True, help="When folded stacks began.")
@server_options
def command(
    files: tuple[Path, ...],
    service: str,
    labels: tuple[str, ...],
    form: str,
    counts: str,
    sample_rate: int,
    when: str,
    server: str,
    tenant: str,
) -> None:
    """Send FILES: pprof (gzip or not) or folded stacks. Prints a profile id a line.

    A pprof keeps its own time. Pushed twice it is stored once, even when it has no time.
    """
    api = connect(server, tenant)
    pairs = [(SERVICE_NAME, service), *map(label_pair, labels)]
    kind = TYPES[counts]
    time_ns = parse_time_ms(when, now_ms=now_ms()) * 1_000_000

    def push(file: Path) -> list[str]:
        body = _read(file)
        if form == "folded" or (form == "auto" and is_folded(body)):
            text = gunzip(body, limit=RAW_BYTES_MAX)
            body = parse_groups(text, kind=kind, sample_rate=sample_rate, time_ns=time_ns)
            return _insist(api, [*pairs, (PROFILE_NAME, kind.name)], body)
        return _insist(api, pairs, body)

    with progress(len(files)) as advance:
        raise SystemExit(_report(files, in_order(push, files, at_once=AT_ONCE), advance))


def _report(
    files: Sequence[Path], outcomes: Iterator[list[str] | MaarError | CommandFailed], done: Done
) -> int:
    """Print ids and failures in the order of the files; the exit code."""
    worst = 0
    for number, (file, outcome) in enumerate(zip(files, outcomes, strict=True), start=1):
        done()
        if isinstance(outcome, list):
            for profile in outcome:
                click.echo(profile)
            continue
        click.echo(visible_lines(f"{file}: {outcome}"), err=True)
        code = outcome.exit_code if isinstance(outcome, CommandFailed) else EXIT_REFUSED
        worst = max(worst, code)
        if code == EXIT_UNAVAILABLE:  # the next file would fail in the same way
            if left := len(files) - number:
                click.echo(
                    f"{left:,} more files may not have arrived; push all again: what has arrived "
                    "is not stored twice",
                    err=True,
                )
            break
    return worst


def in_order(
    work: Callable[[T], R], items: Sequence[T], *, at_once: int
) -> Iterator[R | MaarError | CommandFailed]:
    """The result of each item, in order, with a number of them in flight at once.

    It uses daemon threads, so that Ctrl-C does not wait for answers.
    """
    waiting = queue.SimpleQueue[tuple[T, Future[R | MaarError | CommandFailed]]]()
    outcomes = [Future[R | MaarError | CommandFailed]() for _ in items]
    for pair in zip(items, outcomes, strict=True):
        waiting.put(pair)

    def carry_out() -> None:
        with suppress(queue.Empty):
            while True:
                item, outcome = waiting.get_nowait()
                try:
                    outcome.set_result(work(item))
                except (MaarError, CommandFailed) as error:
                    outcome.set_result(error)
                except BaseException as error:  # noqa: BLE001 - raised where it is waited for
                    outcome.set_exception(error)

    for _ in range(min(at_once, len(items))):
        threading.Thread(target=carry_out, daemon=True).start()
    try:
        for outcome in outcomes:
            yield outcome.result()
    finally:
        with suppress(queue.Empty):
            while True:
                waiting.get_nowait()


def is_folded(body: bytes) -> bool:
    """Whether it reads as text whose lines end in a count; a pprof never does."""
    if body[:2] == GZIP_MAGIC:
        try:
            body = gunzip(body, limit=RAW_BYTES_MAX)
        except MaarError:
            return False
    lines = [line for line in body.split(b"\n", 100)[:100] if line.strip()]
    return b"\0" not in body[:4096] and bool(lines) and all(map(_FOLDED_LINE.fullmatch, lines[:99]))


def _insist(api: Server, labels: list[tuple[str, str]], body: bytes) -> list[str]:
    """Retry a push that was refused temporarily; with the same id it stays one profile."""
    packed = body if body[:2] == GZIP_MAGIC else compress(body)
    identity = id_of(body)
    for tries in itertools.count():
        try:
            return api.push(labels, packed, client_id=identity)
        except CommandFailed as error:
            if error.retry_after_s is None or tries == RETRIES_MAX:
                raise
            api.pause(pause_s(tries, told_s=error.retry_after_s, chance=Random()))
    raise AssertionError("unreachable")


@contextmanager
def progress(files: int) -> Iterator[Done]:
    """A progress bar below the ids, on a terminal with enough files."""
    shown, told = sys.stdout.isatty(), sys.stderr.isatty()
    if files < 2 or not (shown or told):
        yield lambda: None
        return
    bar = Progress(
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("files"),
        TimeRemainingColumn(),
        console=Console(stderr=not shown),
        redirect_stdout=shown,
        redirect_stderr=told,
        transient=True,
    )
    with bar:
        task = bar.add_task("", total=files)
        yield lambda: bar.advance(task)


def id_of(body: bytes) -> str:
    """The id that a file is pushed under, the same in every try. Without it, a profile that has no
    time would become a new one in each try, since the server dates it on arrival.
    """
    raw = gunzip(body, limit=RAW_BYTES_MAX)  # another compression of it is the same profile
    return f"maar-push-{hashlib.blake2b(raw, digest_size=16).hexdigest()}"


def _read(file: Path) -> bytes:
    try:
        return file.read_bytes()
    except OSError as error:
        raise CommandFailed(f"cannot be read: {error.strerror}") from None
