"""`maar delete`: deletes what was pushed so far of a service."""

from __future__ import annotations

import sys
from typing import Any

import click

from maar.cli.input.options import connect, json_option, now_ms, server_options
from maar.cli.input.times import parse_time_ms
from maar.cli.output.show import print_json, print_table, say

Json = dict[str, Any]
ROUTE = "/api/v1/deletions"


@click.command("delete")
@click.option("--service", default="", help="Whose profiles.")
@click.option("--all-services", is_flag=True, help="Those of every service of the tenant.")
@click.option("--from", "start", default="", help="Only profiles from this time on: now-1h, …")
@click.option("--until", default="", help="Only profiles before this time.")
@click.option("--dry-run", is_flag=True, help="Count what would go, and change nothing.")
@click.option("--request-id", default="", help="A name of yours; the same again deletes no more.")
@click.option("--list", "listed", is_flag=True, help="Show deletions that are still carried out.")
@click.option("--yes", is_flag=True, help="Do not ask.")
@json_option
@server_options
def command(
    service: str,
    all_services: bool,
    start: str,
    until: str,
    dry_run: bool,
    request_id: str,
    listed: bool,
    yes: bool,
    as_json: bool,
    server: str,
    tenant: str,
) -> None:
    """Delete what was pushed so far of a service; what is pushed from now on stays.

    From the answer on nobody sees it. Its bytes go as blocks are rewritten.
    """
    api = connect(server, tenant)
    if listed:
        _list(api.get(ROUTE)["deletions"], as_json=as_json)
        return
    if bool(service) == all_services:
        raise click.UsageError("use --service or --all-services")
    asked: Json = {"service": service, "all_services": all_services, "tenant": tenant}
    for name, text in (("from_ms", start), ("until_ms", until)):
        if text:
            asked[name] = parse_time_ms(text, now_ms=now_ms())
    if not dry_run and not yes and sys.stdin.isatty():  # a script cannot be asked
        _tell(api.order("POST", ROUTE, {**asked, "dry_run": True}), dry_run=True)
        click.confirm("Delete them? They cannot be brought back.", abort=True)
    found = api.order("POST", ROUTE, {**asked, "dry_run": dry_run, "request_id": request_id})
    print_json(found) if as_json else _tell(found, dry_run=dry_run)


def _tell(found: Json, *, dry_run: bool) -> None:
    most = "at most " if found["at_most"] else ""
    what = f"{most}{found['profiles']:,} profiles in {found['blocks']:,} blocks"
    if dry_run:
        say(f"{what} would be deleted")
    else:
        say(f"{what} deleted; their bytes go as deletion {found['predicate']} is carried out")


def _list(deletions: list[Json], *, as_json: bool) -> None:
    if as_json:
        print_json({"deletions": deletions})
        return
    rows = [
        (each["predicate"], each["tenant"], each["service"] or "(all)", each["waits_for"])
        for each in deletions
    ]
    if rows:
        print_table(("deletion", "tenant", "service", "waits for"), rows)
    say(f"{len(rows):,} deletions are being carried out")
