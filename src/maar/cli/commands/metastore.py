"""`maar metastore`: status of the replicas and their log; backup, restore, repair, move."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click
import msgspec

from maar.cli.input.options import connect, json_option, server_option
from maar.cli.input.settings import config_option, given_settings, set_option
from maar.cli.output.failure import EXIT_UNAVAILABLE, CommandFailed
from maar.cli.output.replicas import print_replicas, replica_troubles
from maar.cli.output.show import moment, print_json

if TYPE_CHECKING:
    from maar.app.settings.config import Settings
    from maar.metastore.recovery.restoring import Origin
    from maar.metastore.recovery.verify import Findings
    from maar.ports.metastore.replica import ReplicaStatus

F = TypeVar("F", bound=Callable[..., Any])


@click.group("metastore")
def command() -> None:
    """The replicas of the metastore and their log: status, backup, repair, move.

    docs/runbook.md says when to use which. They take the settings of `maar serve`.
    """


def settings_options(command: F) -> F:
    """Where replicas, log and store are: the same settings as the server's."""
    for option in (
        set_option("Another setting."),
        click.option("--store", help="The object store: file:///dir or s3://bucket/prefix."),
        click.option("--log", help="Where the log is: etcd://h1:2379,h2:2379/maar; else a file."),
        click.option("--metastore", help="Where the replicas are: host:port, several with commas."),
        click.option("--data", help="The server's data directory."),
        config_option,
    ):
        command = option(command)
    return command


def _settings(config: Path | None, others: tuple[str, ...], **flags: Any) -> Settings:
    from maar.app.settings.config import load_here

    return load_here(file=config, flags=given_settings(others, **flags), roles_here=False)


# ── status ─────────────────────────────────────────────────────────────────────────────────────


@command.command("status")
@settings_options
@json_option
@server_option
def status(as_json: bool, server: str, **where: Any) -> None:
    """Ask each replica directly; works also when nobody leads.

    Without --metastore, and when no server of --data runs here, the server at --server is asked.

    Exit codes: 0 all is well, 1 attention is needed, 3 no replica answers.
    """
    shown = _replicas(_settings(**where), server)
    leads = any(each["standing"] == "leader" for each in shown)
    troubles = list(replica_troubles(shown))
    if not leads:
        troubles.append("no replica leads: nothing can be registered, merged or pinned")
    if as_json:
        print_json({"replicas": shown, "troubles": troubles})
    else:
        print_replicas(shown)
        for each in shown:
            if each["log"]:
                click.echo(f"log: {each['log']}, incarnation {each['incarnation'] or '-'}")
                break
        for sentence in troubles:
            click.echo(f"trouble: {sentence}")
    if all(each["standing"] == "unreachable" for each in shown):
        raise CommandFailed(
            "no replica answers. Name them with --metastore host:port,…, or the data directory of "
            "a server on this host with --data, or a server with --server; if that is right, see "
            "docs/operating.md#a-process-does-not-answer",
            EXIT_UNAVAILABLE,
        )
    if troubles:
        raise CommandFailed(f"{_things(troubles, 'needs', 'need')} attention; see docs/runbook.md")


def _replicas(settings: Settings, server: str) -> list[dict[str, Any]]:
    """As the replicas answer themselves, or as a server's leader knows them."""
    from maar.app import operations

    if not operations.known_addresses(settings):
        try:
            known: list[dict[str, Any]] = connect(server).get("/api/v1/status")["replicas"]
            return known
        except CommandFailed as error:
            if error.exit_code != EXIT_UNAVAILABLE or error.retry_after_s is not None:
                raise  # the server answered and said why not
    return [_plain(each) for each in asyncio.run(operations.replicas(settings))]


def _things(sentences: list[str], does: str, do: str) -> str:
    return f"1 thing {does}" if len(sentences) == 1 else f"{len(sentences)} things {do}"


def _plain(replica: ReplicaStatus) -> dict[str, Any]:
    shown: dict[str, Any] = msgspec.to_builtins(replica, builtin_types=(bytes,))
    return shown | {"digest": replica.digest.hex()}


@command.command("verify")
@click.option(
    "--objects", is_flag=True, help="Also check that every object of every live block exists."
)
@settings_options
@json_option
def verify(objects: bool, as_json: bool, **where: Any) -> None:
    """Replay log and snapshots and compare the resulting states; change nothing.

    Exit codes: 0 all is well, 1 this log needs attention; damage of other logs does not count.
    """
    from maar.app import operations

    found = asyncio.run(operations.verify_log(_settings(**where), objects=objects))
    print_json(_findings(found)) if as_json else _print_findings(found)
    if found.wrong:
        raise CommandFailed(f"{_things(found.wrong, 'is', 'are')} wrong")


def _findings(found: Findings) -> dict[str, Any]:
    return {
        "incarnation": found.incarnation,
        "first": found.first,
        "head": found.head,
        "digest": found.digest.hex(),
        "snapshots": found.snapshots,
        "hashes": len(found.hashes),
        "blocks": found.blocks,
        "objects": None if found.objects < 0 else found.objects,
        "orphans": found.orphans.total,
        "orphans_by_kind": found.orphans.by_kind,
        "orphans_due": found.orphans.due,
        "orphans_kept": list(found.orphans.kept),
        "adopting": found.adopting,
        "wrong": found.wrong,
        "elsewhere": found.elsewhere,
    }


def _print_findings(found: Findings) -> None:
    bad = sum(map(bool, found.snapshots.values()))
    objects = "not looked for" if found.objects < 0 else f"{found.objects:,} looked for"
    if found.orphans.total:
        kinds = ", ".join(f"{n:,} {kind}" for kind, n in found.orphans.by_kind.items() if n)
        objects += (
            f"; {found.orphans.total:,} that no entry names ({kinds}), {found.orphans.due:,} of "
            "them due for deletion"
        )
    facts = [
        ("log", f"entries {found.first:,} to {found.head:,}, incarnation {found.incarnation}"),
        ("state", f"{found.blocks:,} live blocks, hash {found.digest.hex()[:16]}"),
        ("hashes", f"{len(found.hashes):,} stated by leaders and compared"),
        ("snapshots", f"{len(found.snapshots) - bad:,} good, {bad:,} damaged"),
        ("objects", objects),
    ]
    for name, text in facts:
        click.echo(f"{name:<9} {text}")
    for sentence in found.orphans.kept:
        click.echo(f"left alone: {sentence}")
    for sentence in found.wrong:
        click.echo(f"wrong: {sentence}")
    for sentence in found.elsewhere:
        click.echo(f"of another log: {sentence}")


# ── snapshot and backup ────────────────────────────────────────────────────────────────────────


@command.command("snapshot")
@settings_options
@json_option
def snapshot(as_json: bool, **where: Any) -> None:
    """Make and verify a snapshot now, and truncate the log before the last two."""
    from maar.app import operations

    index = asyncio.run(operations.snapshot(_settings(**where)))
    print_json({"index": index}) if as_json else click.echo(f"snapshot made at entry {index:,}")


@command.command("backup")
@click.argument("file", type=click.Path(path_type=Path))
@settings_options
@json_option
def backup(file: Path, as_json: bool, **where: Any) -> None:
    """Write snapshot and log into FILE, verified by replaying them; only the index, no profiles."""
    from maar.app import operations

    made = asyncio.run(operations.write_backup(_settings(**where), file))
    if as_json:
        print_json(
            {
                "file": str(file),
                "incarnation": made.state.incarnation,
                "snapshot": made.snapshot_index,
                "entries": made.entries,
                "head": made.head.index,
            }
        )
        return
    click.echo(
        f"{file}: snapshot at entry {made.snapshot_index:,} and {made.entries:,} entries after it, "
        f"{len(made.state.blocks):,} live blocks"
    )


# ── repair ─────────────────────────────────────────────────────────────────────────────────────


@command.command("rebuild")
@click.argument("replicas", nargs=-1)
@settings_options
@json_option
def rebuild(replicas: tuple[str, ...], as_json: bool, **where: Any) -> None:
    """Have REPLICAS (names or addresses; default: all that have stopped) reload their state."""
    from maar.app import operations

    done = asyncio.run(operations.rebuild(_settings(**where), replicas))
    if as_json:
        print_json({"replicas": [_plain(each) for each in done]})
    elif not done:
        click.echo("no replica has stopped; name one to rebuild it anyway")
    for each in done:
        if not as_json:
            click.echo(f"{each.name} at {each.address}: {each.standing}, entry {each.index:,}")
        if each.fault:
            raise CommandFailed(f"{each.name} has stopped again: {each.fault}")


@command.command("restore")
@click.argument("file", type=click.Path(path_type=Path, exists=True), required=False)
@click.option("--snapshot", "key", default="", help="A snapshot's key; else the newest good one.")
@click.option(
    "--adopt",
    "adopts",
    multiple=True,
    metavar="INCARNATION",
    help="Another incarnation of this log to adopt objects of; the restored one always is.",
)
@click.option(
    "--without-snapshot",
    is_flag=True,
    help="From the objects in the store alone; without any snapshot there, that is the default.",
)
@click.option("--yes", is_flag=True, help="Do not ask.")
@settings_options
@json_option
def restore(
    file: Path | None,
    key: str,
    adopts: tuple[str, ...],
    without_snapshot: bool,
    yes: bool,
    as_json: bool,
    **where: Any,
) -> None:
    """Restore a lost log into an empty place: from a backup FILE, or from the store.

    Start the replicas afterwards. The leader searches the store and adopts what was written after
    the snapshot; until that is done nothing is merged or deleted. Without a snapshot it adopts all
    that it finds, and only what operators had set is lost, like the retention of tenants.
    """
    from maar.app import operations
    from maar.app.roles.wiring import build_first_store
    from maar.metastore.recovery.restoring import other_incarnations
    from maar.model.ids import Incarnation

    if (file is not None) + bool(key) + without_snapshot > 1:
        raise click.UsageError("give a FILE, --snapshot or --without-snapshot, not both")
    settings = _settings(**where)
    incarnations = tuple(map(Incarnation, adopts))
    saved = asyncio.run(
        operations.origin(
            settings,
            file=file,
            snapshot=key,
            without_snapshot=without_snapshot,
            adopts=incarnations,
        )
    )
    marked = other_incarnations(build_first_store(settings), saved.state)
    if saved.incarnations:
        incarnations = saved.incarnations[1:]
    elif unknown := [incarnation for incarnation in adopts if incarnation not in marked]:
        raise click.UsageError(
            f"--adopt {unknown[0]}: no other log of that incarnation has marked the store"
        )
    others = [incarnation for incarnation in marked if incarnation not in incarnations]
    _describe(saved, others)
    if not yes and not click.confirm("Restore this into the log?", err=True):
        raise CommandFailed("nothing was restored")
    done = asyncio.run(operations.restore_log(settings, saved, adopts=incarnations))
    if as_json:
        print_json(
            {
                "from": saved.name,
                "incarnation": done.incarnation,
                "adopts": list(done.adopts),
                "others": others,
                "head": done.head,
            }
        )
        return
    how = " (an earlier restore was finished)" if done.resumed else ""
    click.echo(f"restored from {saved.name} as incarnation {done.incarnation}{how}")
    click.echo("start the replicas: the leader adopts what the store holds")


def _describe(saved: Origin, others: list[Any]) -> None:
    state = saved.state
    what = (
        f"{saved.name}: entry {saved.head.index:,} of incarnation {state.incarnation}, "
        f"{len(state.blocks):,} live blocks, written {moment(state.wall_time)} UTC"
    )
    if saved.incarnations:
        what = (
            f"without a snapshot, from {saved.name}, of incarnation "
            f"{', '.join(saved.incarnations)}: all segments and complete blocks are "
            "adopted. What operators had set is lost. Retention is on hold: set the periods of "
            "tenants again (maar retention set), then run `maar retention release`"
        )
    say = [
        what,
        *(
            f"the store also belongs to a log of incarnation {incarnation}, from which nothing is "
            "adopted; if that was an incarnation of this log, add --adopt"
            for incarnation in others
        ),
    ]
    for sentence in say:
        click.echo(sentence, err=True)


# ── move ───────────────────────────────────────────────────────────────────────────────────────


@command.command("migrate")
@click.option("--to", required=True, help="etcd://h1:2379,h2:2379/maar or sqlite:///dir; empty.")
@settings_options
@json_option
def migrate(to: str, as_json: bool, **where: Any) -> None:
    """Move the log elsewhere, whole, and seal the old one. Stop the metastore first.

    If it is interrupted, run it again. Then start the replicas with --log set to the value of --to.
    """
    from maar.app import operations

    done = asyncio.run(operations.migrate_log(_settings(**where), to))
    if as_json:
        print_json({"to": to, "base": done.base, "head": done.head, "already": done.already})
        return
    if done.already:
        click.echo(f"the log was moved to {to} before, whole; the old one is sealed")
        return
    click.echo(f"moved to {to}: entries {done.base + 1:,} to {done.head:,}; the old log is sealed")
