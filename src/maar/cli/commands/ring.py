"""`maar ring`: the segment writers of each zone, which are alive, and their shards."""

from __future__ import annotations

from typing import Any

import click

from maar.cli.input.options import connect, json_option, refuse_options, server_option
from maar.cli.output.show import duration, print_json, print_table

Json = dict[str, Any]


@click.group("ring", invoke_without_command=True)
@click.option("--zone", default="", help="Only this zone.")
@json_option
@server_option
def command(zone: str, as_json: bool, server: str) -> None:
    """List the segment writers, zone by zone; or remove one that will not come back."""
    context = click.get_current_context()
    if context.invoked_subcommand is not None:
        refuse_options(context)
        return
    zones = connect(server).get("/api/v1/ring")["zones"]
    found = [one for one in zones if zone in ("", one["zone"])]
    if as_json:
        print_json({"zones": found})
        return
    headers = ("zone", "node", "state", "shards", "address", "heard")
    rows = [_row(one, writer) for one in found for writer in one["writers"]]
    if rows:
        print_table(headers, rows, right=("shards", "heard"))
    for one in found:
        click.echo(_sentence(one))
    if not found:
        click.echo(f"no segment writer has registered{f' in zone {zone}' if zone else ''}")


def _row(zone: Json, writer: Json) -> tuple[str, ...]:
    silent_s = writer["silent_s"]
    return (
        zone["zone"],
        writer["node"],
        writer["state"],
        shards_of(writer),
        writer["address"],
        "not yet" if silent_s is None else f"{duration(silent_s)} ago",
    )


def shards_of(writer: Json) -> str:
    """How many shards it has, and how many it asks for if that differs."""
    has, wants = writer["shards"], writer["wants"]
    return str(has) if has == wants else f"{has} of {wants}"


def _sentence(zone: Json) -> str:
    dead = sum(writer["state"] == "dead" for writer in zone["writers"])
    whole = (
        ""
        if zone["complete"]
        else "; the leader is new and does not know yet which writers are dead"
    )
    return (
        f"zone {zone['zone']}: {zone['shards']} shards of {len(zone['writers'])} writers, {dead} "
        f"dead, as of entry {zone['changed_at']}{whole}"
    )


@command.command("remove")
@click.argument("node")
@click.option("--zone", default="", help="Its zone; needed when several zones have such a writer.")
@json_option
@server_option
def remove(node: str, zone: str, as_json: bool, server: str) -> None:
    """Give the shards of NODE, which will not come back, to the other writers of its zone."""
    body = {"node": node, "zone": zone} if zone else {"node": node}
    found = connect(server).order("POST", "/api/v1/ring/remove", body)
    if as_json:
        print_json(found)
        return
    click.echo(
        f"writer {node} is no longer in zone {found['zone']}, which has {found['shards']} shards "
        f"of {found['writers']} writers now"
    )
