"""`maar schedule`: which jobs there are, how each stands, why, and when they are due."""

from __future__ import annotations

from typing import Any

import click

from maar.cli.input.options import connect, json_option, refuse_options, server_option
from maar.cli.input.times import parse_duration_s
from maar.cli.output.show import print_json, print_table, say

PATH = "/api/v1/schedule"
SPANS = ("interval", "initial_delay", "warning", "error", "backoff")


def pattern_options(command: Any) -> Any:
    """Which jobs; what is not named is everything."""
    for name, told in (
        ("--type", "Of repair: vnode or incremental."),
        ("--kind", "repair, cluster or clean."),
        ("--tenant", "Whose jobs."),
    ):
        command = click.option(name, default="*", show_default=True, help=told)(command)
    return command


@click.group("schedule", invoke_without_command=True)
@click.option("--tenant", default="", help="Only jobs of this tenant.")
@click.option("--kind", default="", help="Only jobs of this kind.")
@click.option("--limit", default=1000, show_default=True, help="Rows.")
@json_option
@server_option
@click.pass_context
def command(
    context: click.Context, tenant: str, kind: str, limit: int, as_json: bool, server: str
) -> None:
    """Which jobs there are, the most urgent first; set when they are due, pause them."""
    if context.invoked_subcommand is None:
        _show(tenant, kind, limit, as_json, server)
    else:
        refuse_options(context)


@command.command("list")
@click.option("--tenant", default="", help="Only jobs of this tenant.")
@click.option("--kind", default="", help="Only jobs of this kind.")
@click.option("--limit", default=1000, show_default=True, help="Rows.")
@json_option
@server_option
def list_(tenant: str, kind: str, limit: int, as_json: bool, server: str) -> None:
    """How each job stands, the most urgent first."""
    _show(tenant, kind, limit, as_json, server)


def _show(tenant: str, kind: str, limit: int, as_json: bool, server: str) -> None:
    params: dict[str, str | int] = {"tenant": tenant, "kind": kind, "limit": limit}
    found = connect(server).get(PATH, params)
    if as_json:
        print_json(found)
        return
    headers = ("tenant", "kind", "type", "state", "priority", "last success", "next", "why")
    rows = [
        (
            job["tenant"] or "(all)",
            job["kind"],
            job["type"],
            job["state"],
            str(job["priority"]) if job["priority"] >= 0 else "-",
            job["last_success"] or "never",
            job["next"] or "-",
            f"{job['running']} works on it" if job["running"] else job["why"],
        )
        for job in found["schedules"]
    ]
    if rows:
        print_table(headers, rows, right=("priority",))
    else:
        click.echo("there are no jobs")
    for rule in found["set"]:
        given = ", ".join(f"{name} {value}" for name, value in rule.items() if name not in _PARTS)
        say(f"set for {_name_of(rule)}: {given or 'nothing'}")


@command.command("explain")
@click.option("--tenant", default="", help="Whose job; none: that of the whole lake.")
@click.option("--kind", required=True, help="repair, cluster or clean.")
@click.option("--type", "type_", default="", help="Of repair: vnode or incremental.")
@json_option
@server_option
def explain(tenant: str, kind: str, type_: str, as_json: bool, server: str) -> None:
    """Say why a job runs, or why it does not and which others come before it."""
    params: dict[str, str | int] = {"tenant": tenant, "kind": kind, "type": type_}
    found = connect(server).get(f"{PATH}/explain", params)
    print_json(found) if as_json else say("\n".join(found["sentences"]))


@command.command("set")
@pattern_options
@click.option("--interval", default=None, help="How long after a success the next is due: 7d; 0s.")
@click.option("--initial-delay", default=None, help="A new job is not due before.")
@click.option("--warning", default=None, help="An alarm after so long without a success.")
@click.option("--error", default=None, help="A worse alarm after so long.")
@click.option("--backoff", default=None, help="How long a session that failed waits.")
@click.option("--unwind-ratio", type=float, default=None, help="Rest, as a multiple of the work.")
@click.option("--lock-level", type=click.Choice(["store", "region"]), default=None)
@click.option("--size-target", type=int, default=None, help="Bytes of a sub-range; 0: whole.")
@click.option("--weight", type=int, default=None, help="How fast its priority grows, from 1.")
@json_option
@server_option
def change(
    tenant: str, kind: str, type: str, as_json: bool, server: str, **given: Any
) -> None:  # `type` is the option's own name
    """Set when jobs are due, in place of what was set for the same tenant, kind and type."""
    wish: dict[str, Any] = {"tenant": tenant, "kind": kind, "type": type}
    for name, value in given.items():
        if value is not None:
            span = name in SPANS
            wish[f"{name}_s" if span else name] = parse_duration_s(value) if span else value
    found = connect(server).order("PUT", PATH, wish)
    print_json(found) if as_json else say(f"set for {_name_of(found)}")


@command.command("remove")
@pattern_options
@json_option
@server_option
def remove(tenant: str, kind: str, type: str, as_json: bool, server: str) -> None:
    """Take back what was set for this tenant, kind and type."""
    wish = {"tenant": tenant, "kind": kind, "type": type}
    found = connect(server).order("POST", f"{PATH}/remove", wish)
    print_json(found) if as_json else say(f"nothing is set any more for {_name_of(found)}")


@command.command("pause")
@pattern_options
@click.option("--reason", default="", help="Why; it is shown with the jobs.")
@json_option
@server_option
def pause(tenant: str, kind: str, type: str, reason: str, as_json: bool, server: str) -> None:
    """Begin no session of these jobs until they are resumed."""
    wish = {"tenant": tenant, "kind": kind, "type": type, "note": reason}
    found = connect(server).order("POST", f"{PATH}/pause", wish)
    print_json(found) if as_json else say(f"paused by run policy {found['id']}: {_name_of(found)}")


@command.command("resume")
@pattern_options
@json_option
@server_option
def resume(tenant: str, kind: str, type: str, as_json: bool, server: str) -> None:
    """End the pause of exactly this tenant, kind and type."""
    wish = {"tenant": tenant, "kind": kind, "type": type}
    found = connect(server).order("POST", f"{PATH}/resume", wish)
    print_json(found) if as_json else say(f"resumed: {_name_of(found)}")


_PARTS = ("tenant", "kind", "type")


def _name_of(found: dict[str, Any]) -> str:
    return "/".join(found[name] or "-" for name in _PARTS)
