"""`maar blocks`: what is live in the index."""

from __future__ import annotations

from typing import Any

import click

from maar.cli.options import connected, json_option, server_options
from maar.cli.show import moment, print_json, print_table, size


@click.command("blocks")
@click.option("--level", type=click.IntRange(min=0), help="Only this level.")
@click.option("--limit", default=50, show_default=True, help="Rows.")
@json_option
@server_options
def command(level: int | None, limit: int, as_json: bool, server: str, tenant: str) -> None:
    """List the live blocks, newest first."""
    params: dict[str, str | int] = {"limit": limit, "tenant": tenant}
    if level is not None:
        params["level"] = level
    found = connected(server, tenant).get("/api/v1/blocks", params)["blocks"]
    if as_json:
        print_json({"blocks": found})
        return
    headers = ("block", "kind", "level", "tenant", "shard", "from", "until", "profiles", "size")
    rows = [_row(block) for block in found]
    print_table(headers, rows, right=("level", "shard", "profiles", "size"))
    click.echo(f"{len(rows)} blocks")


def _row(block: dict[str, Any]) -> tuple[str, ...]:
    return (
        block["id"],
        block["kind"],
        str(block["level"]),
        block["tenant"] or "(all)",
        str(block["shard"]),
        moment(block["min_time_ns"]),
        moment(block["max_time_ns"]),
        f"{block['profiles']:,}",
        size(block["size"]),
    )
