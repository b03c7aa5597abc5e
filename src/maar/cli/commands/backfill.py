"""`maar backfill`: writes many old profiles at once, as blocks of their days."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

from maar.cli.commands.execution import own_settings
from maar.cli.executing import carry_out, exit_code_of
from maar.cli.input.options import json_option, label_pair, server_options
from maar.cli.input.settings import config_option, set_option
from maar.cli.output.show import print_json, say

if TYPE_CHECKING:
    from maar.adapters.http_board import HttpBoard
    from maar.app.backfill import Backfilled
    from maar.app.execution import Executor

SHOWN_MAX = 20  # files that are named without --json


@click.command("backfill")
@click.argument("source", nargs=-1, required=True)
@click.option("--service", required=True, help="The service they belong to.")
@click.option("--label", "labels", multiple=True, metavar="NAME=VALUE", help="More labels.")
@click.option("--spark-master", help="Where it runs: local[*], spark://host:port, yarn.")
@click.option("--data", help="A directory for scratch files.")
@config_option
@set_option("Any other setting, such as credentials of the store.")
@json_option
@server_options
def command(
    source: tuple[str, ...],
    service: str,
    labels: tuple[str, ...],
    config: Path | None,
    others: tuple[str, ...],
    as_json: bool,
    server: str,
    tenant: str,
    **flags: Any,
) -> None:
    """Write the pprof files of SOURCE, each with its own time, as blocks of their UTC days.

    SOURCE is files, directories or patterns of this host, or one s3://bucket/folder/*.pb.gz. All of
    it shows at once, or, when the command fails, nothing. Run again, it adds nothing.
    """
    from maar.app.backfill import Backfill, BulkEngine, backfill, list_files, whose_files
    from maar.app.processes.process import take_the_session_along
    from maar.runner.java import check_java

    settings = own_settings(config, others, **flags)
    whose = whose_files(tenant=tenant, service=service, labels=[*map(label_pair, labels)])
    listed = list_files(source, settings.store_settings())
    check_java()
    take_the_session_along()
    wish = Backfill(listed, whose, settings.limits)
    engine = BulkEngine(settings.spark, settings.scratch_dir)

    async def work(executor: Executor, board: HttpBoard) -> Backfilled:
        with progress(len(listed.files)) as watch:
            return await backfill(
                wish,
                board=board,
                executor=executor,
                engine=engine,
                watch=watch,
            )

    done = carry_out(server, settings, work)
    print_json(done.plain()) if as_json else _tell(done)
    raise SystemExit(exit_code_of(done.outcome.outcome))


def _tell(done: Backfilled) -> None:
    told = done.told
    if told is None:
        outcome = done.outcome
        why = outcome.why or outcome.cause or f"plan {outcome.plan}"
        say(f"maar: {outcome.outcome}: {why}", err=True)
        return
    say(
        f"plan {done.outcome.plan}: {told.kept:,} profiles of {told.files:,} files, "
        f"{told.duplicates:,} were there already"
    )
    for word, named in (("quarantined", told.quarantined), ("refused", told.refused)):
        for each in named[:SHOWN_MAX]:
            say(f"{word}: {each.file}: {each.cause}", err=True)
        if len(named) > SHOWN_MAX:
            more = len(named) - SHOWN_MAX
            say(f"{word}: {more:,} more; --json names them all", err=True)


@contextmanager
def progress(files: int) -> Iterator[Callable[[float], None]]:
    """A progress bar on a terminal, by the tasks that have ended."""
    if not sys.stderr.isatty():
        yield lambda _: None
        return
    bar = Progress(
        TextColumn(f"{files:,} files"),
        BarColumn(),
        TaskProgressColumn(),
        TimeRemainingColumn(),
        console=Console(stderr=True),
        transient=True,
    )
    with bar:
        task = bar.add_task("", total=1.0)
        yield lambda done: bar.update(task, completed=done)
