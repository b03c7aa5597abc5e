"""`maar worker`: one more compaction worker, on this host or on a Spark cluster."""

from __future__ import annotations

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


@click.command("worker")
@config_option
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
@allow_remote_option
@log_options
@set_option("Any other setting.")
def command(config: Path | None, others: tuple[str, ...], **flags: Any) -> None:
    """Work for a server until Ctrl-C: running plans are finished first. Start as many as you like.

    Exit codes: 0 stopped cleanly, 1 something had to be killed, 2 the settings do not work, 3 the
    metastore or the store does not answer.
    """
    from maar.app.roles import worker_alone
    from maar.app.settings.config import load_here

    given = given_settings(others, **flags)
    raise SystemExit(worker_alone.serve(load_here(file=config, flags=given, roles_here=False)))
