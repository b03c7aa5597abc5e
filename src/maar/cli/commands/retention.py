"""`maar retention`: how long profiles are kept, and what would expire now."""

from __future__ import annotations

import sys
from typing import Any
from urllib.parse import quote

import click

from maar.cli.input.options import connect, json_option, server_option
from maar.cli.input.times import parse_duration_s
from maar.cli.output.failure import EXIT_REFUSED, CommandFailed
from maar.cli.output.show import duration, moment, print_json, print_table, say, size

FOREVER, DEFAULT = "forever", "default"


@click.group("retention")
def command() -> None:
    """How long profiles are kept: for all, for a tenant; and what would expire now."""


@command.command("get")
@click.argument("tenant", default="")
@json_option
@server_option
def get(tenant: str, as_json: bool, server: str) -> None:
    """How long the profiles of TENANT are kept; without it, of everybody."""
    api = connect(server)
    found = api.get(_path(tenant) if tenant else "/api/v1/retention")
    if as_json:
        print_json(found)
        return
    if tenant:
        _say(found)
    else:
        click.echo(f"default: {period(found['default_s'])}")
        own = [(name, period(seconds)) for name, seconds in found["tenants"].items()]
        if own:
            print_table(("tenant", "kept"), own)
        click.echo(f"the clock that retention goes by shows {moment(found['now_ns'])} UTC")
    if found.get("expired_blocks"):
        click.echo(
            f"{found['expired_blocks']:,} blocks that it took can be brought back, each for "
            f"{duration(found['expired_delay_s'])}: maar retention undo"
        )
    if found["trouble"]:
        say(f"trouble: {found['trouble']}")


@command.command("set")
@click.argument("tenant")
@click.argument("kept", metavar="30d|forever|default")
@click.option("--yes", is_flag=True, help="Do not ask before a shorter period.")
@json_option
@server_option
def change(tenant: str, kept: str, yes: bool, as_json: bool, server: str) -> None:
    """Keep the profiles of TENANT for so long, for ever, or as long as everybody else's."""
    special: dict[str, float | None] = {FOREVER: 0, DEFAULT: None}
    seconds = special[kept] if kept in special else parse_duration_s(kept)
    if seconds == 0 and kept != FOREVER:
        raise click.BadParameter(
            f"{kept!r} would keep nothing; use {FOREVER} to keep profiles for ever"
        )
    api = connect(server)
    if not yes and sys.stdin.isatty():  # a script cannot be asked
        _confirm(api.get("/api/v1/retention"), tenant, seconds)
    found = api.order("PUT", _path(tenant), {"period_s": seconds})
    print_json(found) if as_json else _say(found)


@command.command("preview")
@click.option("--tenant", default="", help="Only blocks of this tenant.")
@click.option("--limit", default=1000, show_default=True, help="Rows.")
@json_option
@server_option
def preview(tenant: str, limit: int, as_json: bool, server: str) -> None:
    """Show which blocks retention would take now; nothing is changed."""
    params: dict[str, str | int] = {"tenant": tenant, "limit": limit}
    found = connect(server).get("/api/v1/retention/preview", params)
    if as_json:
        print_json(found)
        return
    headers = ("block", "level", "tenant", "newest profile", "boundary", "profiles", "size", "ends")
    rows = [_row(block) for block in found["blocks"]]
    if rows:
        print_table(headers, rows, right=("level", "profiles", "size"))
    click.echo(
        f"{len(rows):,} blocks would go, with {found['profiles']:,} profiles and "
        f"{size(found['bytes'])}; {len(found['cancels']):,} plans would be cancelled"
    )
    if found["more"]:
        click.echo("there are more: raise --limit")


@command.command("hold")
@click.option("--reason", default="", help="Why; it is shown while retention is on hold.")
@json_option
@server_option
def hold(reason: str, as_json: bool, server: str) -> None:
    """Put retention on hold: take and delete nothing until it is released."""
    found = connect(server).order("POST", "/api/v1/retention/hold", {"reason": reason})
    print_json(found) if as_json else say(found["paused"] or "retention continues")


@command.command("release")
@json_option
@server_option
def release(as_json: bool, server: str) -> None:
    """Release retention; this confirms that the clock and the periods are right."""
    found = connect(server).order("POST", "/api/v1/retention/release", {})
    print_json(found) if as_json else say(found["paused"] or "retention continues")


@command.command("undo")
@click.option("--tenant", default="", help="Only blocks that this tenant has a part in.")
@click.option("--reason", default="", help="Why; it is shown while retention is on hold.")
@json_option
@server_option
def undo(tenant: str, reason: str, as_json: bool, server: str) -> None:
    """Bring back what retention took and has not deleted yet, and put it on hold."""
    asked = {"tenant": tenant, "reason": reason or "an operator brought back what it took"}
    found = connect(server).order("POST", "/api/v1/retention/undo", asked)
    if as_json:
        print_json(found)
        return
    click.echo(
        f"{found['blocks']:,} blocks with {found['profiles']:,} profiles are back; retention takes "
        "nothing until `maar retention release`"
    )


def _confirm(found: dict[str, Any], tenant: str, seconds: float | None) -> None:
    """Ask before a shorter period, since no other confirmation follows (S2)."""
    default_s = found["default_s"]
    now_s = found["tenants"].get(tenant, default_s)
    then_s = default_s if seconds is None else seconds
    if not then_s or (now_s and then_s >= now_s):
        return
    say(
        f"{tenant}: {period(now_s)} until now. With {period(then_s)}, older profiles expire; for "
        f"{duration(found['expired_delay_s'])} `maar retention undo` brings them back",
        err=True,
    )
    if not click.confirm("Keep them for a shorter time?", err=True):
        raise CommandFailed("nothing was changed", EXIT_REFUSED)


def period(seconds: float) -> str:
    return duration(seconds) if seconds else "for ever"


def _path(tenant: str) -> str:
    return f"/api/v1/retention/{quote(tenant, safe='')}"


def _say(found: dict[str, Any]) -> None:
    whose = " (the default)" if found["is_default"] else ""
    click.echo(f"{found['tenant']}: {period(found['period_s'])}{whose}")


def _row(block: dict[str, Any]) -> tuple[str, ...]:
    return (
        block["id"],
        str(block["level"]),
        block["tenant"] or "(all)",
        moment(block["max_time_ns"]),
        moment(block["before_ns"]),
        f"{block['profiles']:,}",
        size(block["size"]),
        f"plan {block['cancels']}" if block["cancels"] else "",
    )
