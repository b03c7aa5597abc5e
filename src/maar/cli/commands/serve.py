"""`maar serve`: reads the settings and runs the roles."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import click

log = logging.getLogger("maar.serve")


@click.command("serve")
@click.option(
    "--roles",
    default="all",
    show_default=True,
    help="all (each in a process of its own), or in this one some of metastore, query, "
    "segment-writer, distributor, api, worker, with commas; front stands for the middle three.",
)
@click.option("--config", type=click.Path(path_type=Path), help="A TOML file of settings.")
@click.option("--listen", help="Where agents and people connect, like 127.0.0.1:4040.")
@click.option(
    "--allow-remote",
    is_flag=True,
    default=None,
    help="Let --listen name an address that other machines reach; there is no access control.",
)
@click.option("--data", help="The data directory.")
@click.option("--store", help="The object store: file:///dir or s3://bucket/prefix.")
@click.option(
    "--log",
    help="Where the metastore's log is: etcd://h1:2379,h2:2379,h3:2379/maar; else in a file.",
)
@click.option("--spark-master", help="Where compaction runs, like local[*].")
@click.option("--log-format", help="text or json.")
@click.option("--log-level", help="debug, info, warning or error.")
@click.option(
    "--set", "others", multiple=True, metavar="SECTION.NAME=VALUE", help="Any other setting."
)
def command(roles: str, config: Path | None, others: tuple[str, ...], **flags: Any) -> None:
    """Run the server until Ctrl-C. docs/settings.md lists every setting."""
    import uvloop

    from maar.app.processes import logs, supervisor
    from maar.app.processes.process import leave
    from maar.app.roles.run import FRONT, RoleName, roles_named, run
    from maar.app.settings.config import load_here

    given = {**flag_settings(flags), **other_settings(others)}
    settings = load_here(file=config, flags=given)
    server = settings.server
    if roles == "all":
        logs.configure(role="supervisor", form=server.log_format, level=server.log_level)
        raise SystemExit(supervisor.serve(settings))
    try:
        names = roles_named(roles)
    except ValueError:
        known = ", ".join(RoleName)
        raise click.BadParameter(f"use all, or some of {known}", param_hint="--roles") from None
    settings = settings.apart()
    logs.configure(role="+".join(names), form=server.log_format, level=server.log_level)
    tells = {*FRONT, RoleName.METASTORE}.intersection(names)
    listener = supervisor.listen(settings) if tells else None
    if listener is not None:
        log.info("maar starts url=%s data=%s", supervisor.url_of(listener), settings.data_dir)
    leave(uvloop.run(run(settings, names, listener)))


def flag_settings(given: dict[str, Any]) -> dict[str, Any]:
    """The settings that have a flag of their own."""
    from maar.app.settings.layers import Key

    keys = {
        "listen": Key("server", "listen"),
        "allow_remote": Key("server", "allow_remote"),
        "data": Key("server", "data_dir"),
        "store": Key("store", "url"),
        "log": Key("log", "url"),
        "metastore": Key("roles", "metastore"),
        "spark_master": Key("spark", "master"),
        "log_format": Key("server", "log_format"),
        "log_level": Key("server", "log_level"),
    }
    return {
        f"--{name.replace('_', '-')}": (keys[name], value)
        for name, value in given.items()
        if value is not None
    }


def other_settings(texts: tuple[str, ...]) -> dict[str, Any]:
    """Those given by --set."""
    from maar.app.settings.layers import Key

    found = {}
    for text in texts:
        path, separator, value = text.partition("=")
        section, dot, name = path.partition(".")
        if not (separator and dot and name):
            raise click.BadParameter(f"{text!r} is not SECTION.NAME=VALUE", param_hint="--set")
        found[f"--set {path}"] = (Key(section, name), value)
    return found
