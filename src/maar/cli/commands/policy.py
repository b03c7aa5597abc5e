"""`maar policy`: at which times of day jobs of the schedule do not run."""

from __future__ import annotations

from typing import Any

import click

from maar.cli.commands.schedule import pattern_options
from maar.cli.input.options import connect, json_option, now_ms, server_option
from maar.cli.input.times import parse_time_ms
from maar.cli.output.show import print_json, print_table, say

PATH = "/api/v1/policies"


@click.group("policy")
def command() -> None:
    """At which times of day jobs of the schedule do not run."""


@command.command("list")
@json_option
@server_option
def list_(as_json: bool, server: str) -> None:
    """All run policies, oldest first."""
    found = connect(server).get(PATH)
    if as_json:
        print_json(found)
        return
    headers = ("id", "tenant", "kind", "type", "not from", "until", "zone", "note")
    rows = [_row(policy) for policy in found["policies"]]
    if rows:
        print_table(headers, rows, right=("id",))
    else:
        click.echo("there are no run policies: jobs run at any time")


def _row(policy: dict[str, Any]) -> tuple[str, ...]:
    when = ("always", "") if policy["pauses"] else (policy["start"], policy["end"])
    names = (policy["tenant"], policy["kind"], policy["type"])
    return (str(policy["id"]), *names, *when, policy["zone"], policy["note"])


@command.command("add")
@pattern_options
@click.option("--from", "start", required=True, help="A time of day: 22:00.")
@click.option("--until", "end", required=True, help="Its end; 00:00 to 00:00 is a pause.")
@click.option("--zone", default="UTC", show_default=True, help="A time zone: Europe/Berlin.")
@click.option("--note", default="", help="Why; it is shown with the jobs.")
@json_option
@server_option
def add(as_json: bool, server: str, **wish: str) -> None:
    """Keep jobs from running at a time of day."""
    found = connect(server).order("POST", PATH, wish)
    print_json(found) if as_json else say(f"run policy {found['id']}")


@command.command("remove")
@click.argument("policy", type=int)
@json_option
@server_option
def remove(policy: int, as_json: bool, server: str) -> None:
    """Let jobs run again that POLICY kept from it."""
    found = connect(server).order("POST", f"{PATH}/{policy}/remove", {})
    print_json(found) if as_json else say(f"run policy {found['id']} is removed")


@command.command("test")
@click.option("--tenant", default="", help="Whose job; none: that of the whole lake.")
@click.option("--kind", required=True, help="repair, cluster or clean.")
@click.option("--type", default="", help="Of repair: vnode or incremental.")
@click.option("--at", default="now", show_default=True, help="When: a time as for queries.")
@json_option
@server_option
def test(tenant: str, kind: str, type: str, at: str, as_json: bool, server: str) -> None:
    """Whether a job may run at a time, and which policies say no."""
    params: dict[str, str | int] = {"tenant": tenant, "kind": kind, "type": type}
    params["at_ms"] = parse_time_ms(at, now_ms=now_ms())
    found = connect(server).get(f"{PATH}/test", params)
    if as_json:
        print_json(found)
    else:
        say("it may run" if found["allowed"] else f"it may not run: {found['why']}")
