"""`maar serve`: reads the settings and runs the roles."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import click

from maar.cli.input.settings import (
    allow_remote_option,
    config_option,
    given_settings,
    log_options,
    set_option,
)

log = logging.getLogger("maar.serve")


@click.command("serve")
@click.option(
    "--roles",
    default="all",
    show_default=True,
    help="all (each in a process of its own), or in this one some of metastore, query, "
    "segment-writer, distributor, api, worker, with commas; front stands for the middle three.",
)
@config_option
@click.option("--listen", help="Where agents and people connect, like 127.0.0.1:4040.")
@allow_remote_option
@click.option("--data", help="The data directory.")
@click.option("--store", help="The object store: file:///dir or s3://bucket/prefix.")
@click.option(
    "--log",
    help="Where the metastore's log is: etcd://h1:2379,h2:2379,h3:2379/maar; else in a file.",
)
@click.option("--spark-master", help="Where compaction runs, like local[*].")
@log_options
@set_option("Any other setting.")
def command(roles: str, config: Path | None, others: tuple[str, ...], **flags: Any) -> None:
    """Run the server until Ctrl-C. docs/settings.md lists every setting."""
    import uvloop

    from maar.app.processes import logs, supervisor
    from maar.app.processes.process import leave
    from maar.app.roles.run import FRONT, RoleName, roles_named, run
    from maar.app.settings.config import load_here

    settings = load_here(file=config, flags=given_settings(others, **flags))
    server = settings.server
    if roles == "all":
        logs.configure(role="supervisor", form=server.log_format, level=server.log_level)
        raise SystemExit(supervisor.serve(settings))
    try:
        names = roles_named(roles)
    except ValueError:
        known = ", ".join(RoleName)
        raise click.BadParameter(f"use all, or some of {known}", param_hint="--roles") from None
    if server.fronts > 1 and {RoleName.DISTRIBUTOR, RoleName.API}.intersection(names):
        raise click.UsageError(
            f"server.fronts = {server.fronts} is for `maar serve` with all roles; run as many "
            "processes with --roles, each with an address of its own, or leave it out"
        )
    settings = settings.apart()
    logs.configure(role="+".join(names), form=server.log_format, level=server.log_level)
    tells = {*FRONT, RoleName.METASTORE}.intersection(names)
    listener = supervisor.listen(settings) if tells else None
    if listener is not None:
        log.info("maar starts url=%s data=%s", supervisor.url_of(listener), settings.data_dir)
    leave(uvloop.run(run(settings, names, listener)))
