"""`maar spark`: what a Spark cluster needs to run maar's plans."""

from __future__ import annotations

from pathlib import Path

import click


@click.group("spark")
def command() -> None:
    """What a Spark cluster needs to run maar's plans; see docs/spark.md."""


@command.command("pack")
@click.option(
    "-o",
    "--output",
    type=click.Path(path_type=Path, dir_okay=False),
    default=Path("maar-spark.tar.gz"),
    show_default=True,
    help="The archive.",
)
def pack(output: Path) -> None:
    """Pack maar and what its tasks need, for executors that have only Python and Spark."""
    from maar.runner import pack as packing

    packed = packing.pack(output)
    for name in packed.distributions:
        click.echo(name, err=True)
    click.echo(f"{packed.path} {packed.size / 1e6:.0f} MB")
