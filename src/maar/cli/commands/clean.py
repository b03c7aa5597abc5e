"""`maar clean`: rolls back what nobody finished."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from maar.cli.commands.execution import own_settings
from maar.cli.executing import carry_out
from maar.cli.input.options import connect, json_option, server_option
from maar.cli.input.settings import config_option, set_option
from maar.cli.output.failure import EXIT_UNAVAILABLE
from maar.cli.output.show import print_json, print_table, say, size
from maar.ports.plans.outcome import CLEANED

Json = dict[str, Any]
ORPHANS_SHOWN = 20  # keys; all of them would be a wall of text


@click.command("clean")
@click.option("--schedule-only", is_flag=True, help="Schedule rollbacks, and execute none.")
@click.option("--rollbacks-only", is_flag=True, help="Execute those that are there already.")
@click.option("--dry-run", is_flag=True, help="Show what would be done, and change nothing.")
@config_option
@set_option("Any other setting, such as credentials of the store.")
@json_option
@server_option
def command(
    schedule_only: bool,
    rollbacks_only: bool,
    dry_run: bool,
    config: Path | None,
    others: tuple[str, ...],
    as_json: bool,
    server: str,
) -> None:
    """Schedule a rollback of every dead attempt and abandoned plan, and execute all that wait."""
    if schedule_only and rollbacks_only:
        raise click.UsageError("use --schedule-only or --rollbacks-only, not both")
    asked = {"dry_run": dry_run, "schedule_only": schedule_only, "rollbacks_only": rollbacks_only}
    found = connect(server).ask("/api/v1/clean", asked)
    if found["pending"] and not dry_run and not schedule_only:
        settings = own_settings(config, others)
        carry_out(server, settings, lambda executor, _: executor.execute_pending(found))
    told = {name: found[name] for name in CLEANED if name in found}
    if as_json:
        print_json(told)
        for sentence in found["orphan_search"]["kept"]:  # a refusal to sweep must not go unseen
            say(f"maar: left: {sentence}", err=True)
    else:
        _tell(told, dry_run=dry_run)
        _tell_orphans(found, swept=not (dry_run or schedule_only or rollbacks_only))
    if "message" in found:
        say(f"maar: {found['message']}", err=True)
    failed = found.get("failed", ())
    for each in failed:
        why = each.get("cause", each.get("why", ""))
        say(f"maar: rollback {each['plan']} {each['outcome']}: {why}", err=True)
    if failed or "message" in found:
        raise SystemExit(EXIT_UNAVAILABLE)


def _tell(told: Json, *, dry_run: bool) -> None:
    would = "would be " if dry_run else ""
    for name in ("scheduled", "executed"):
        rows = [(each["rollback"] or "(new)", each["target"]) for each in told[name]]
        if rows:
            print_table((f"{would}{name}", "rolls back"), rows)
    if told["skipped"]:
        print_table(("left alone", "why"), [(x["plan"], x["why"]) for x in told["skipped"]])
    say(
        f"{len(told['scheduled']):,} rollbacks {would}scheduled, {len(told['executed']):,} "
        f"{would}executed, {len(told['skipped']):,} plans left alone"
    )


def _tell_orphans(found: Json, *, swept: bool) -> None:
    """Objects that no entry names: a whole cleaning deletes them, else they are listed."""
    orphans, search = found["orphans"], found["orphan_search"]
    rows = search["first"][:ORPHANS_SHOWN]
    if rows and not swept:
        table = [(x["key"], x["kind"], size(x["size"])) for x in rows]
        print_table(("orphan", "kind", "size"), table)
    done = "deleted" if swept else "found, which the next sweep deletes"
    more = "" if search["complete"] else "; there may be more"
    say(f"{orphans['objects']:,} orphans of {size(orphans['bytes'])} {done}{more}")
    for sentence in search["kept"]:
        say(f"left: {sentence}")
