"""`maar get`: one profile, as it was pushed."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from maar.cli.input.options import connect, server_options, time_range
from maar.cli.output.failure import CommandFailed
from maar.model.ids import parse_profile_id


@click.command("get")
@click.argument("profile_id")
@click.option(
    "-o", "--output", default="-", show_default=True, help="A file for the gzip pprof; - is stdout."
)
@click.option("--from", "start", default="", help="Search only from this time on: faster.")
@click.option("--until", default="", help="Search only until this time.")
@server_options
def command(profile_id: str, output: str, start: str, until: str, server: str, tenant: str) -> None:
    """Fetch PROFILE_ID as gzip pprof, equal to what was pushed."""
    parse_profile_id(profile_id)
    params: dict[str, str | int] = {}
    if start or until:
        params["from"], params["until"] = time_range(start or "0", until or "now")
    body = connect(server, tenant).get_bytes(f"/api/v1/profiles/{profile_id.lower()}", params)
    if output == "-":
        sys.stdout.buffer.write(body)
        return
    try:
        Path(output).write_bytes(body)
    except OSError as error:
        raise CommandFailed(f"cannot write {output}: {error.strerror}") from None
    click.echo(f"{output}: {len(body)} bytes", err=True)
