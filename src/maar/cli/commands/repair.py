"""`maar repair`: reads copies of blocks again, and makes those anew that are not whole."""

from __future__ import annotations

from typing import Any

import click

from maar.cli.client import Server
from maar.cli.input.options import connect, json_option, server_option, server_options
from maar.cli.output.failure import EXIT_REFUSED
from maar.cli.output.show import duration, print_json, print_table, say, size
from maar.model.repair import RepairType

Json = dict[str, Any]
ROUTE = "/api/v1/repairs"
SCHEDULE = "/api/v1/schedule"
KIND, EVERY = "repair", "*"
ASK_AGAIN_S = 0.5
TOLD = ("job", "outcome", "ranges", "checked", "copied", "damaged", "lost")

type_option = click.option(
    "--type",
    "type_",
    type=click.Choice([str(each) for each in RepairType]),
    default=str(RepairType.VNODE),
    show_default=True,
    help="All copies, range by range; or only blocks that are not at all their stores yet.",
)


@click.group("repair")
def command() -> None:
    """Read copies of blocks again, and make those anew that are missing or damaged."""


@command.command("run")
@type_option
@click.option("--wait", is_flag=True, help="Until all of it is done.")
@click.option("--dry-run", is_flag=True, help="Say what would be read, and change nothing.")
@json_option
@server_options
def run(type_: str, wait: bool, dry_run: bool, as_json: bool, server: str, tenant: str) -> None:
    """Repair a tenant now, whatever was repaired lately.

    It goes before everything that is only due, and goes on after restarts until all is done.
    """
    api = connect(server, tenant)
    asked = {"tenant": tenant, "type": type_, "dry_run": dry_run}
    found = api.order("POST", ROUTE, asked)
    if wait and not dry_run:
        found = _wait(api, found)
    if as_json:
        names = (*TOLD, "blocks", "bytes") if dry_run else TOLD
        print_json({name: found[name] for name in names} | _why(found))
    else:
        _tell(found)
    if wait and found["lost"]:
        raise SystemExit(EXIT_REFUSED)


@command.command("stop")
@type_option
@json_option
@server_options
def stop(type_: str, as_json: bool, server: str, tenant: str) -> None:
    """Call off a repair that somebody asked for; what it repaired stays repaired."""
    api = connect(server, tenant)
    found = api.order("POST", ROUTE, {"tenant": tenant, "type": type_, "cancel": True})
    print_json({name: found[name] for name in TOLD} | _why(found)) if as_json else _tell(found)


@command.command("pause")
@click.option("--tenant", default=EVERY, show_default=True, help="Whose repairs.")
@click.option("--reason", default="", help="Why; it is shown with the jobs.")
@json_option
@server_option
def pause(tenant: str, reason: str, as_json: bool, server: str) -> None:
    """Begin no session of repairs until they are resumed; one that runs ends after its range."""
    wish = {"tenant": tenant, "kind": KIND, "type": EVERY, "note": reason}
    found = connect(server).order("POST", f"{SCHEDULE}/pause", wish)
    print_json(found) if as_json else say(
        f"paused by run policy {found['id']}: repairs of {tenant}"
    )


@command.command("resume")
@click.option("--tenant", default=EVERY, show_default=True, help="Whose repairs.")
@json_option
@server_option
def resume(tenant: str, as_json: bool, server: str) -> None:
    """End such a pause of exactly these."""
    wish = {"tenant": tenant, "kind": KIND, "type": EVERY}
    found = connect(server).order("POST", f"{SCHEDULE}/resume", wish)
    print_json(found) if as_json else say(f"resumed: repairs of {tenant}")


@command.command("status")
@click.option("--tenant", default="", help="Of this tenant only.")
@json_option
@server_option
def status(tenant: str, as_json: bool, server: str) -> None:
    """How the repairs of all tenants are getting on."""
    found = connect(server).get(ROUTE, {"tenant": tenant} if tenant else None)
    if as_json:
        print_json(found)
        return
    rows = [
        (
            each["tenant"],
            each["type"],
            each["state"],
            f"{each['percent_repaired']:.1f} %",
            "-" if each["age_s"] is None else f"{duration(each['age_s'])} ago",
            _work_left(each),
            each["running"] or "",
            each["why"],
        )
        for each in found["jobs"]
    ]
    heads = ("tenant", "type", "state", "repaired", "all of it", "work left", "running", "why")
    if rows:
        print_table(heads, rows)
    else:
        say("no tenant has blocks")
    for each in found["lost"]:
        say(f"block {each['block']} of {each['tenant']} has no whole copy: {each['what']}")


def _work_left(job: Json) -> str:
    """As long as the last run took; of a job that never ran nobody knows."""
    unknown = job["remaining_s"] == 0 and job["percent_repaired"] < 100
    return "-" if unknown else duration(job["remaining_s"])


def _wait(api: Server, found: Json) -> Json:
    """Ask until it is over; a server that restarts meanwhile goes on with it."""
    where = {"tenant": found["tenant"], "type": found["type"]}
    while found["outcome"] == "running":
        api.pause(ASK_AGAIN_S)
        found = api.get(f"{ROUTE}/asked", where)
    return found


def _why(found: Json) -> Json:
    return {"why": found["why"]} if found["why"] else {}


def _tell(found: Json) -> None:
    if found["outcome"] == "would_run":
        what = f"{found['blocks']:,} blocks, {size(found['bytes'])}"
        say(f"{found['job']}: would read {what} in {found['ranges']:,} ranges")
        return
    say(
        f"{found['job']} {found['outcome']}{': ' + found['why'] if found['why'] else ''}; "
        f"{found['ranges']:,} ranges, {found['checked']:,} copies read, {found['damaged']:,} were "
        f"missing or damaged, {found['copied']:,} made, {found['lost']:,} blocks lost"
    )
