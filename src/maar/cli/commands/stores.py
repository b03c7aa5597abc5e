"""`maar stores`: what each store holds, lacks and has damaged; and how one is removed."""

from __future__ import annotations

from typing import Any
from urllib.parse import quote, urlencode

import click

from maar.cli.input.options import connect, json_option, refuse_options, server_option
from maar.cli.output.failure import EXIT_REFUSED, CommandFailed
from maar.cli.output.show import print_json, print_table, say, size

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


@command.command("remove")
@click.argument("name")
@click.option("--lost", is_flag=True, help="It cannot be read any more: give up what it had.")
@click.option("--keep", is_flag=True, help="Stop draining it: it stays after all.")
@click.option("--yes", is_flag=True, help="Do not ask before something is lost for good.")
@json_option
@server_option
def remove(name: str, lost: bool, keep: bool, yes: bool, as_json: bool, server: str) -> None:
    """Drain the store NAME: its copies go when all others that are wanted were read again."""
    if lost and keep:
        raise click.UsageError("--lost and --keep exclude each other")
    api, path = connect(server), f"/api/v1/stores/{quote(name, safe='')}/remove"
    found = api.order("POST", path, {"lost": lost, "keep": keep})
    while not found["done"]:  # again, when it is another list by then: nothing unseen is given up
        if not (as_json and yes):
            _tell_loss(found, err=as_json)
        if not yes and not click.confirm(f"Give the store {name} up for good?", err=True):
            raise CommandFailed("nothing was changed", EXIT_REFUSED)
        found = api.order("POST", path, {"lost": True, "seen": found["list_id"]})
    if as_json:
        print_json(found)
        return
    click.echo(_done_sentence(found, lost=lost, keep=keep))


def _tell_loss(found: Json, *, err: bool) -> None:
    say(
        f"store {found['store']} holds copies of {found['copies']:,} blocks that others hold too",
        err=err,
    )
    say(
        f"  only it has {found['only_here']:,} blocks, with {found['profiles']:,} profiles", err=err
    )
    for block in found["named"]:
        say(f"  block {block}", err=err)
    if len(found["named"]) < found["only_here"]:
        say(f"  and {found['only_here'] - len(found['named']):,} more", err=err)


def _done_sentence(found: Json, *, lost: bool, keep: bool) -> str:
    name = found["store"]
    if keep:
        return f"store {name} stays, and is filled again where it lacks copies"
    if lost:
        gone = f"{found['only_here']:,} blocks with {found['profiles']:,} profiles are lost with it"
        return f"store {name} is given up; {gone if found['only_here'] else 'nothing is lost'}"
    return (
        f"store {name} is being drained of {found['copies']:,} blocks: maar stores shows how far "
        "it is; take it out of the settings when it holds nothing any more"
    )
