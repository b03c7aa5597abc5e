"""The `maar` command. Every failure ends in one sentence on stderr and an exit code."""

from __future__ import annotations

import io
import os
import sys
from typing import TYPE_CHECKING, TextIO

import click

from maar import __version__
from maar.cli.output.failure import (
    EXIT_INTERRUPTED,
    EXIT_REFUSED,
    EXIT_UNAVAILABLE,
    EXIT_USAGE,
    CommandFailed,
)
from maar.model.errors import InvalidInput, MaarError, MalformedProfile, Retryable
from maar.model.text import visible_lines

if TYPE_CHECKING:
    from typing_extensions import Buffer

# One module per command, imported when it is called, since `maar push` needs no Spark.
_COMMANDS = {
    "serve": ("cli.commands.serve", "Run the server: all roles, or some of them."),
    "worker": ("cli.commands.worker", "Run one more compaction worker for a server elsewhere."),
    "spark": ("cli.commands.spark", "Pack maar for the executors of a Spark cluster."),
    "push": ("cli.commands.push", "Send profiles: pprof (gzip or not) or folded stacks."),
    "backfill": ("cli.commands.backfill", "Write many old profiles at once, as blocks."),
    "load": ("tools.load.command", "Push as many services would, and report how it went."),
    "get": ("cli.commands.get", "Fetch one profile as pprof."),
    "query": ("cli.commands.query", "Ask: flamegraph, top, types, labels, series."),
    "status": ("cli.commands.status", "Blocks by level, backlog, running jobs, failures."),
    "blocks": ("cli.commands.blocks", "List the live blocks."),
    "plans": (
        "cli.commands.plans",
        "List the plans; schedule, execute, roll back, show or set aside one.",
    ),
    "clean": ("cli.commands.clean", "Roll back what nobody finished."),
    "repair": ("cli.commands.repair", "Check and heal the copies of blocks; how far that is."),
    "delete": ("cli.commands.delete", "Delete what was pushed so far of a service."),
    "placement": ("cli.commands.placement", "Shards of each dataset, and the rates behind them."),
    "explain": ("cli.commands.explain", "Say why a block is not compacted yet."),
    "ring": ("cli.commands.ring", "List the segment writers and their shards; remove one."),
    "stores": ("cli.commands.stores", "List the stores and their copies of blocks; remove one."),
    "metastore": (
        "cli.commands.metastore",
        "The replicas and their log: status, backup, repair, move.",
    ),
    "dead-letters": ("cli.commands.dead_letters", "List the dead letters; show one, retry some."),
    "retention": (
        "cli.commands.retention",
        "How long profiles are kept, and what would expire now.",
    ),
    "schedule": (
        "cli.commands.schedule",
        "Jobs of repair, cluster and clean: how each stands, and when it is due.",
    ),
    "policy": ("cli.commands.policy", "At which times of day jobs do not run."),
    "alarms": ("cli.commands.alarms", "What has not succeeded for too long, and what is lost."),
    "simulate": (
        "tools.simulate.command",
        "A load on a virtual clock: what placement and the schedule do.",
    ),
    "demo": ("tools.demo.command", "Start a server and sample programs that push to it."),
    "version": ("cli.commands.version", "Print the version."),
}


class Commands(click.Group):
    """A group whose commands are imported when they are used."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002
        return list(_COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002
        if cmd_name not in _COMMANDS:
            return None
        module = __import__(f"maar.{_COMMANDS[cmd_name][0]}", fromlist=["command"])
        command: click.Command = module.command
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        try:
            return super().resolve_command(ctx, args)
        except click.exceptions.NoSuchCommand as error:  # click knows only those it has imported
            raise click.exceptions.NoSuchCommand(
                error.command_name, possibilities=_COMMANDS, ctx=ctx
            ) from None

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002
        with formatter.section("Commands"):
            formatter.write_dl([(name, text) for name, (_, text) in _COMMANDS.items()])


@click.group(cls=Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="maar")
def cli() -> None:
    """maar: a profiling lake. Push profiles, ask for flame graphs."""


def main() -> None:
    # NumPy's threads for linear algebra, which nothing here does, would take a tenth of a second of
    # CPU in this process and in each one that it starts.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # noqa: TID251  # before NumPy is loaded
    for name in ("stdout", "stderr"):
        setattr(sys, name, _deaf_to_hanging_up(getattr(sys, name)))
    sys.exit(run(sys.argv[1:]))


class _Patient(io.FileIO):
    """Ignore a closed pipe: `maar push … | head` still pushes every file."""

    def write(self, data: Buffer, /) -> int:
        try:
            return super().write(data)
        except BrokenPipeError:
            return memoryview(data).nbytes


def _deaf_to_hanging_up(stream: TextIO | None) -> TextIO | None:
    if not isinstance(stream, io.TextIOWrapper):  # closed by whoever started us
        return stream
    stream.flush()
    return io.TextIOWrapper(
        io.BufferedWriter(_Patient(stream.fileno(), "w", closefd=False)),
        encoding=stream.encoding,
        errors=stream.errors,
        line_buffering=stream.line_buffering,
    )


def run(arguments: list[str]) -> int:
    """Carry out one command line; returns the exit code."""
    try:
        cli.main(arguments, prog_name="maar", standalone_mode=False)
    except SystemExit as ended:
        return ended.code if isinstance(ended.code, int) else EXIT_REFUSED if ended.code else 0
    except click.ClickException as error:
        error.show()
        return error.exit_code
    except (click.Abort, KeyboardInterrupt):
        return EXIT_INTERRUPTED
    except CommandFailed as error:
        click.echo(f"maar: {visible_lines(str(error))}", err=True)
        return error.exit_code
    except MaarError as error:
        click.echo(f"maar: {visible_lines(str(error))}", err=True)
        return exit_code_of(error)
    return 0


def exit_code_of(error: MaarError) -> int:
    """The exit code of an error, as documented in docs/cli.md."""
    match error:
        case Retryable():
            return EXIT_UNAVAILABLE
        case InvalidInput() if not isinstance(error, MalformedProfile):
            return EXIT_USAGE
        case _:
            return EXIT_REFUSED


if __name__ == "__main__":
    main()
