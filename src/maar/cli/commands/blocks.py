"""`maar blocks`: lists live blocks, and gives up one whose objects are lost."""

from __future__ import annotations

from typing import Any

import click

from maar.cli.input.options import (
    connect,
    json_option,
    refuse_options,
    server_option,
    server_options,
)
from maar.cli.output.failure import EXIT_REFUSED, CommandFailed
from maar.cli.output.show import moment, print_json, print_table, say, size

NAMED_MAX = 20  # tenants, services


@click.group("blocks", invoke_without_command=True)
@click.option("--level", type=click.IntRange(min=0), help="Only this level.")
@click.option("--limit", default=50, show_default=True, help="Rows.")
@json_option
@server_options
def command(level: int | None, limit: int, as_json: bool, server: str, tenant: str) -> None:
    """List the live blocks, newest first; or give up one whose objects are lost."""
    context = click.get_current_context()
    if context.invoked_subcommand is not None:
        refuse_options(context)
        return
    params: dict[str, str | int] = {"limit": limit, "tenant": tenant}
    if level is not None:
        params["level"] = level
    found = connect(server, tenant).get("/api/v1/blocks", params)["blocks"]
    if as_json:
        print_json({"blocks": found})
        return
    headers = ("block", "kind", "level", "tenant", "shard", "from", "until", "profiles", "size")
    rows = [_row(block) for block in found]
    print_table(headers, rows, right=("level", "shard", "profiles", "size"))
    click.echo(f"{len(rows)} blocks")


@command.command("lose")
@click.argument("block_id")
@click.option("--reason", default="", help="Why, for the log.")
@click.option("--dry-run", is_flag=True, help="Only show what would be lost.")
@click.option("--force", is_flag=True, help="Give it up although it is intact.")
@click.option("--yes", is_flag=True, help="Do not ask.")
@json_option
@server_option
def lose(
    block_id: str, reason: str, dry_run: bool, force: bool, yes: bool, as_json: bool, server: str
) -> None:
    """Check the objects of BLOCK_ID, show what is lost, and give it up permanently."""
    api = connect(server)
    loss = api.get(f"/api/v1/blocks/{block_id}/loss")
    if dry_run or not as_json:
        print_json(loss) if as_json else _tell(loss)
    if dry_run:
        return
    if not loss["damages"] and not force:
        raise CommandFailed(
            f"block {block_id} is intact and stays; --force gives it up", EXIT_REFUSED
        )
    if not yes and not click.confirm("Give this up permanently?", err=True):
        raise CommandFailed("nothing was changed", EXIT_REFUSED)
    done = api.order("POST", f"/api/v1/blocks/{block_id}/lose", {"reason": reason, "force": force})
    if as_json:
        print_json(done)
        return
    back = len(done["returning"])
    instead = f"; {back:,} blocks that it had replaced are back instead" if back else ""
    click.echo(f"block {block_id} is given up: queries go on without it{instead}")


def _tell(loss: dict[str, Any]) -> None:
    block = loss["block"]
    tenants = sorted({each["tenant"] for each in block["datasets"]})
    services = sorted({each["service"] for each in block["datasets"]})
    say(f"block {block['id']} ({block['kind']}, level {block['level']})")
    for damage in loss["damages"]:
        say(f"  object {damage['key']} {damage['what']}")
    if not loss["damages"]:
        say("  every object exists and is intact")
    say(
        f"  {block['profiles']:,} profiles from {moment(block['min_time_ns'])} until "
        f"{moment(block['max_time_ns'])}"
    )
    say(f"  tenants: {_name_list(tenants)}; services: {_name_list(services)}")
    if loss["plan"]:
        say(f"  plan {loss['plan']} holds it and would be cancelled")
    if loss["returning"]:
        say(
            f"  {len(loss['returning']):,} blocks that it replaced are intact, and would come "
            "back instead: little or nothing would be lost"
        )


def _name_list(names: list[str]) -> str:
    more = f" and {len(names) - NAMED_MAX:,} more" if len(names) > NAMED_MAX else ""
    return ", ".join(names[:NAMED_MAX]) + more


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
