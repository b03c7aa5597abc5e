"""`maar worker`: one more compaction worker, on this host or on a Spark cluster."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click


@click.command("worker")
@click.option("--config", type=click.Path(path_type=Path), help="A TOML file of settings.")
@click.option(
    "--metastore",
    help="Where `maar serve` has its metastore (roles.metastore), like 127.0.0.1:4041; of several "
    "replicas all, with commas.",
)
@click.option("--store", help="The server's object store: file:///dir or s3://bucket/prefix.")
@click.option("--spark-master", help="Where plans run: local[*], spark://host:port, yarn.")
@click.option("--data", help="A directory for scratch files.")
@click.option(
    "--listen",
    default="127.0.0.1:0",
    show_default=True,
    help="Where /ready and /metrics are; port 0 takes a free one.",
)
@click.option(
    "--allow-remote",
    is_flag=True,
    default=None,
    help="Let --listen name an address that other machines reach; there is no access control.",
)
@click.option("--log-format", help="text or json.")
@click.option("--log-level", help="debug, info, warning or error.")
@click.option(
    "--set", "others", multiple=True, metavar="SECTION.NAME=VALUE", help="Any other setting."
)
def command(config: Path | None, others: tuple[str, ...], **flags: Any) -> None:
    """Work for a server until Ctrl-C: running plans are finished first. Start as many as you like.

    Exit codes: 0 stopped cleanly, 1 something had to be killed, 2 the settings do not work, 3 the
    metastore or the store does not answer.
    """
    from maar.app.roles import worker_alone
    from maar.app.settings.config import load_here
    from maar.cli.commands.serve import flag_settings, other_settings

    given = {**flag_settings(flags), **other_settings(others)}
    raise SystemExit(worker_alone.serve(load_here(file=config, flags=given, roles_here=False)))
