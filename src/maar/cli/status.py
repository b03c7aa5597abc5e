"""`maar status`: the state of the lake on one page."""

from __future__ import annotations

from typing import Any

import click

from maar.cli.options import connected, json_option, server_options
from maar.cli.plans import print_plans
from maar.cli.show import duration, moment, print_json, print_table, size


@click.command("status")
@json_option
@server_options
def command(as_json: bool, server: str, tenant: str) -> None:
    """Blocks by level, backlog, running jobs, failures."""
    status = connected(server, tenant).get("/api/v1/status")
    if as_json:
        print_json(status)
        return
    click.echo(
        f"as of {moment(status['wall_time_ns'])} UTC, index {status['index']}, "
        f"term {status['term']}, incarnation {status['incarnation']}"
    )
    click.echo(
        f"{status['profiles_added']:,} profiles added, "
        f"{status['duplicates_removed']:,} duplicates removed, "
        f"{status['profiles_quarantined']:,} quarantined"
    )
    click.echo("")
    headers = ("level", "kind", "blocks", "size", "profiles", "queued", "oldest", "held")
    rows = [_level(level) for level in status["levels"]]
    print_table(headers, rows, right=("level", "blocks", "size", "profiles", "queued", "oldest"))
    click.echo("")
    states = ", ".join(f"{count} {state}" for state, count in status["plans"].items() if count)
    click.echo(f"plans: {states or 'none'}; {status['completed']:,} completed since the beginning")
    click.echo(
        f"{status['retired']:,} replaced blocks wait for deletion; log from "
        f"{status['log_first']}, snapshot at {status['snapshot_index']}"
    )
    for title, name in (("running", "leased"), ("with failures", "failed")):
        if status[name]:
            click.echo(f"\n{title}:")
            print_plans(status[name])


def _level(level: dict[str, Any]) -> tuple[str, ...]:
    return (
        str(level["level"]),
        level["kind"],
        f"{level['blocks']:,}",
        size(level["bytes"]),
        f"{level['profiles']:,}",
        f"{level['queued']:,}",
        duration(level["oldest_queued_s"]) if level["queued"] else "-",
        f"{level['held']:,}",
    )
