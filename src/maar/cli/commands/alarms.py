"""`maar alarms`: what has not succeeded for too long, and what is lost."""

from __future__ import annotations

import click

from maar.cli.input.options import connect, json_option, server_option
from maar.cli.output.show import print_json, print_table


@click.command("alarms")
@json_option
@server_option
def command(as_json: bool, server: str) -> None:
    """What has not succeeded for longer than its thresholds, and blocks that are lost."""
    found = connect(server).get("/api/v1/alarms")
    if as_json:
        print_json(found)
        return
    rows = [
        (
            each["level"],
            each["tenant"] or "(all)",
            each["kind"],
            each["type"],
            each["since"] or "",
            each["note"],
        )
        for each in found["alarms"]
    ]
    if rows:
        print_table(("level", "tenant", "kind", "type", "since", "what"), rows)
    else:
        click.echo("there are no alarms")
