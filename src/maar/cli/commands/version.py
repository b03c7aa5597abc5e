"""`maar version`."""

from __future__ import annotations

import platform

import click

from maar import __version__
from maar.cli.input.options import json_option
from maar.cli.output.show import print_json


@click.command("version")
@json_option
def command(as_json: bool) -> None:
    """Print the version."""
    if as_json:
        print_json({"maar": __version__, "python": platform.python_version()})
    else:
        click.echo(f"maar {__version__} (Python {platform.python_version()})")
