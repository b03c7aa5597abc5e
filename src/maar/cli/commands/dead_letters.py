"""`maar dead-letters`: segments that were acknowledged and are not in the index yet."""

from __future__ import annotations

from typing import Any
from urllib.parse import quote

import click

from maar.cli.client import Server
from maar.cli.input.options import connect, json_option, refuse_options, server_option
from maar.cli.output.failure import EXIT_REFUSED, CommandFailed
from maar.cli.output.show import duration, moment, print_json, print_table, say, size

PATH = "/api/v1/dead-letters"
LIMIT = click.IntRange(min=1, max=1000)

Json = dict[str, Any]


@click.group("dead-letters", invoke_without_command=True)
@click.option("--limit", type=LIMIT, default=100, show_default=True, help="Rows.")
@json_option
@server_option
def command(limit: int, as_json: bool, server: str) -> None:
    """List the dead letters, those that need attention first; or show one, or retry some."""
    context = click.get_current_context()
    if context.invoked_subcommand is not None:
        refuse_options(context)
        return
    _list(limit, as_json, server)


@command.command("list")
@click.option("--limit", type=LIMIT, default=100, show_default=True, help="Rows.")
@json_option
@server_option
def list_letters(limit: int, as_json: bool, server: str) -> None:
    """List the dead letters, those that need attention first."""
    _list(limit, as_json, server)


def _list(limit: int, as_json: bool, server: str) -> None:
    found: Json = connect(server).get(PATH, {"limit": limit})
    if as_json:
        print_json(found)
        return
    if found["letters"]:
        headers = ("letter", "standing", "profiles", "size", "written", "why")
        rows = [_row(letter) for letter in found["letters"]]
        print_table(headers, rows, right=("profiles", "size"))
    click.echo(summary(found["status"]))
    if found["status"]["trouble"]:
        say(f"trouble: {found['status']['trouble']}")
    if found["more"]:
        click.echo("there are more: raise --limit")


def summary(status: Json) -> str:
    oldest = f", the oldest for {duration(status['oldest_s'])}" if status["waiting"] else ""
    line = f"dead letters: {status['waiting']:,} wait to be delivered{oldest}"
    line += f"; {status['held']:,} held" if status["held"] else ""
    line += f"; {status['foreign']:,} of other logs" if status["foreign"] else ""
    line += f"; {status['delivered']:,} delivered by this leader" if status["delivered"] else ""
    return line


@command.command("show")
@click.argument("letter")
@json_option
@server_option
def show(letter: str, as_json: bool, server: str) -> None:
    """Show LETTER: where it is, what it is about, and why it is not delivered."""
    found: Json = connect(server).get(f"{PATH}/{quote(letter)}")
    if as_json:
        print_json(found)
        return
    facts = [
        ("letter", found["name"]),
        ("object", f"{found['key']}, {size(found['size'])}"),
        ("standing", found["standing"]),
        ("why", found["cause"] or "it is delivered at the leader's next scan"),
    ]
    meta = found["meta"]
    if meta:
        facts += [
            ("segment", meta["files"][0]["locations"][0]["key"]),
            ("size", f"{meta['profiles']:,} profiles, {size(meta['size'])}, shard {meta['shard']}"),
            ("times", f"{moment(meta['min_time_ns'])} to {moment(meta['max_time_ns'])} UTC"),
            ("written", f"{moment(meta['created_at_ns'])} UTC by {meta['created_by']}"),
        ]
    for name, text in facts:
        say(f"{name:<9} {text}")
    if meta:
        click.echo("")
        rows = [(one["tenant"], one["service"], f"{one['profiles']:,}") for one in meta["datasets"]]
        print_table(("tenant", "service", "profiles"), rows, right=("profiles",))


@command.command("retry")
@click.argument("letters", nargs=-1, required=True)
@server_option
def retry(letters: tuple[str, ...], server: str) -> None:
    """Deliver held LETTERS, after what was wrong with them has been fixed."""
    api = connect(server)
    refused = [letter for letter in letters if not _retry(api, letter)]
    if refused:
        raise CommandFailed(f"{len(refused)} of {len(letters)} letters were not delivered")


def _retry(api: Server, letter: str) -> bool:
    """Deliver each; one that fails does not stop the others."""
    try:
        done = api.order("POST", f"{PATH}/{quote(letter)}/retry", {})
    except CommandFailed as error:
        if error.exit_code != EXIT_REFUSED:
            raise
        say(f"maar: {error}", err=True)
        return False
    how = f"as block {done['block']}, written again" if done["rewritten"] else "into the index"
    click.echo(f"{letter} is delivered {how}")
    return True


def _row(letter: Json) -> tuple[str, ...]:
    meta = letter["meta"]
    return (
        letter["name"],
        letter["standing"],
        f"{meta['profiles']:,}" if meta else "-",
        size(meta["size"]) if meta else "-",
        moment(meta["created_at_ns"]) if meta else "-",
        letter["cause"],
    )
