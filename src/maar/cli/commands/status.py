"""`maar status`: the state of the lake on one page."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import click

from maar.cli.commands import dead_letters
from maar.cli.commands.retention import period
from maar.cli.input.options import connect, json_option, server_options
from maar.cli.output.plan import print_plans
from maar.cli.output.replicas import print_replicas, replica_troubles
from maar.cli.output.show import duration, moment, print_json, print_table, say, size

BLOCKED_SHOWN = 10
HANG_TOLD_S = 86_400  # a hang is shown for a day, so that the next shift sees it

Json = dict[str, Any]


@click.command("status")
@json_option
@server_options
def command(as_json: bool, server: str, tenant: str) -> None:
    """Blocks by level, backlog, running jobs, failures."""
    status: Json = connect(server, tenant).get("/api/v1/status")
    if as_json:
        print_json(status)
        return
    click.echo(
        f"as of {moment(status['wall_time_ns'])} UTC, index {status['index']}, "
        f"term {status['term']}, incarnation {status['incarnation']}" + _leader_text(status)
    )
    click.echo(
        f"{status['profiles_added']:,} profiles added, "
        f"{status['duplicates_removed']:,} duplicates removed, "
        f"{status['profiles_quarantined']:,} quarantined, {status['profiles_expired']:,} expired"
        + _adoption_text(status)
    )
    click.echo("")
    headers = ("level", "kind", "blocks", "size", "profiles", "queued", "bytes", "oldest", "held")
    rows = [_level(level) for level in status["levels"]]
    print_table(headers, rows, right=[name for name in headers if name != "kind"])
    click.echo("")
    for line in (
        *_plans(status),
        *_rings(status),
        *_fronts(status),
        *_waiting(status),
        *_troubles(status),
    ):
        say(line)
    if len(status.get("replicas", ())) > 1:
        click.echo("\nreplicas of the metastore:")
        print_replicas(status["replicas"])
    for title, name in (("running", "leased"), ("with failures", "failed")):
        if status[name]:
            click.echo(f"\n{title}:")
            print_plans(status[name])


def _leader_text(status: Json) -> str:
    return f", led by {status['leader']}" if len(status.get("replicas", ())) > 1 else ""


def _adoption_text(status: Json) -> str:
    adopted, missed = status.get("blocks_adopted", 0), status.get("blocks_missed", 0)
    lost = _loss_text(status)
    if not adopted and not missed:
        return lost
    return (
        f"; after a restore {adopted:,} blocks were adopted and {missed:,} missed "
        f"({status['profiles_missed']:,} profiles){lost}"
    )


def _loss_text(status: Json) -> str:
    if not status.get("blocks_lost"):
        return ""
    return f"; {status['blocks_lost']:,} blocks given up ({status['profiles_lost']:,} profiles)"


def _plans(status: Json) -> Iterator[str]:
    states = ", ".join(f"{count:,} {state}" for state, count in status["plans"].items() if count)
    yield f"plans: {states or 'none'}; {status['completed']:,} completed since the beginning"
    if status["limit_raised_s"]:
        yield (
            f"the failure limit is raised to {status['failure_limit']} for another "
            f"{duration(status['limit_raised_s'])}"
        )


def _rings(status: Json) -> Iterator[str]:
    for zone in status["zones"]:
        states = ", ".join(f"{count:,} {state}" for state, count in zone["writers"].items())
        unsure = (
            ""
            if zone["complete"]
            else " (the leader is new and does not know yet which writers are dead)"
        )
        yield f"ring of zone {zone['zone']}: {zone['shards']:,} shards; writers: {states}{unsure}"


def _waiting(status: Json) -> Iterator[str]:
    yield (
        f"{status['retired']:,} replaced blocks and leftovers of {status['leftovers']:,} attempts "
        f"wait for deletion; log from {status['log_first']}, snapshot at {status['snapshot_index']}"
    )
    rollbacks, dead = status.get("rollbacks", 0), status.get("dead", 0)
    if rollbacks or dead:
        yield f"{rollbacks:,} rollbacks wait; {dead:,} attempts failed and are not rolled back yet"
    deletions, deleted = status.get("deletions", 0), status.get("profiles_deleted", 0)
    if deletions or deleted:
        yield (
            f"{deletions:,} deletions are carried out (maar delete --list); {deleted:,} profiles "
            "deleted since the beginning"
        )
    kept, own = status["retention"], len(status["retention"]["tenants"])
    yield (
        f"profiles are kept {period(kept['default_ns'] / 1e9)}"
        + (f"; {own:,} tenants differ (maar retention get)" if own else "")
    )
    yield dead_letters.summary(status["letters"])


def _fronts(status: Json) -> Iterator[str]:
    """The processes that share the port, when there are several."""
    shared = [each for each in status.get("processes", ()) if each["process"].startswith("front-")]
    if shared:
        told = [
            each["process"] + (f" ({each['restarts']:,} restarts)" if each["restarts"] else "")
            for each in shared
        ]
        yield f"{len(shared):,} fronts share the port: {', '.join(told)}"


def _troubles(status: Json) -> Iterator[str]:
    """What needs attention; docs/operating.md says what to do."""
    for trouble in replica_troubles(status.get("replicas", ())):
        yield f"TROUBLE {trouble}"
    for process in status.get("processes", ()):
        if not process.get("runs", True):
            yield (
                f"TROUBLE the process {process['process']} has ended and is being started again "
                f"({process['restarts']:,} restarts before): "
                "docs/operating.md#a-process-does-not-answer"
            )
        ago_s = (status["wall_time_ns"] - process["hung_at_ns"]) / 1e9
        if process["hangs"] and ago_s < HANG_TOLD_S:
            yield (
                f"TROUBLE the process {process['process']} hung and was restarted "
                f"{duration(max(0.0, ago_s))} ago ({process['hangs']:,} hangs since the server "
                "began): docs/operating.md#a-process-hangs"
            )
    for sentence in dict.fromkeys(disk["trouble"] for disk in status.get("disks", ())):
        if sentence:
            yield f"TROUBLE {sentence}: docs/operating.md#disk-full"
    if status.get("adopting"):
        yield (
            "TROUBLE the metastore was restored from a snapshot and is still searching the "
            "store; nothing is deleted until it has adopted what it finds there"
        )
    if status["parked"]:
        yield (
            f"TROUBLE {status['parked']:,} plans are parked because the schedule was full: "
            "maar plans --state parked"
        )
    for zone in status["zones"]:
        if dead := zone["writers"].get("dead", 0):
            yield (
                f"TROUBLE {dead:,} segment writers of zone {zone['zone']} are not heard from; "
                "their shards fail over: maar ring"
            )
    for alarm in status.get("alarms", ())[:BLOCKED_SHOWN]:
        yield f"TROUBLE alarm ({alarm['level']}): {alarm['note']}"
    if len(status.get("alarms", ())) > BLOCKED_SHOWN:
        yield f"TROUBLE {len(status['alarms']) - BLOCKED_SHOWN:,} more alarms: maar alarms"
    letters = status["letters"]
    if letters["held"]:
        yield f"TROUBLE {letters['held']:,} dead letters cannot be delivered: maar dead-letters"
    if letters["trouble"]:
        yield f"TROUBLE dead letters: {letters['trouble']}"
    if status["retention"]["trouble"]:
        yield f"TROUBLE retention: {status['retention']['trouble']}"
    for sentence in status["blocked"][:BLOCKED_SHOWN]:
        yield f"TROUBLE cleanup: {sentence}"
    if len(status["blocked"]) > BLOCKED_SHOWN:
        yield f"TROUBLE cleanup: {len(status['blocked']) - BLOCKED_SHOWN:,} more like these"


def _level(level: Json) -> tuple[str, ...]:
    return (
        str(level["level"]),
        level["kind"],
        f"{level['blocks']:,}",
        size(level["bytes"]),
        f"{level['profiles']:,}",
        f"{level['queued']:,}",
        size(level["queued_bytes"]),
        duration(level["oldest_queued_s"]) if level["queued"] else "-",
        f"{level['held']:,}",
    )
