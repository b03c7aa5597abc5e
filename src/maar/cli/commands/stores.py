"""`maar stores`: what each store holds, lacks and has damaged."""

from __future__ import annotations

from typing import Any
from urllib.parse import urlencode

import click

from maar.cli.input.options import connect, json_option, refuse_options, server_option
from maar.cli.output.show import print_json, print_table, size

Json = dict[str, Any]


@click.group("stores", invoke_without_command=True)
@click.option("--tenant", default="", help="Only what belongs to this tenant.")
@json_option
@server_option
def command(tenant: str, as_json: bool, server: str) -> None:
    """List the stores: blocks that each holds, that are missing there, and that are damaged."""
    context = click.get_current_context()
    if context.invoked_subcommand is not None:
        refuse_options(context)
        return
    query = f"?{urlencode({'tenant': tenant})}" if tenant else ""
    found = connect(server).get(f"/api/v1/stores{query}")
    if as_json:
        print_json(found)
        return
    headers = ("store", "region", "home of", "state", "blocks", "bytes", "missing", "damaged")
    rows = [_row(store) for store in found["stores"]]
    print_table(headers, rows, right=("blocks", "bytes", "missing", "damaged"))
    for store in found["stores"]:
        if sentence := _sentence(store):
            click.echo(sentence)


def _row(store: Json) -> tuple[str, ...]:
    return (
        store["name"],
        store["region"],
        ", ".join(store["zones"]),
        state_of(store),
        f"{store['blocks']:,}",
        size(store["bytes"]),
        f"{store['missing']:,}",
        f"{store['damaged']:,}",
    )


def state_of(store: Json) -> str:
    if store["leaving"]:
        return "leaving"
    return "in use" if store["known"] else "not in the settings"


def _sentence(store: Json) -> str:
    """What an operator may have to know or do."""
    name = store["name"]
    if not store["known"]:
        return (
            f"store {name} is not in the settings of the leader, and counts as away: name it "
            "again, or remove it"
        )
    if store["tombstones"]:
        return f"{store['tombstones']:,} copies are still to be deleted in store {name}"
    return ""
