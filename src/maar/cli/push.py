"""`maar push`: profiles from files, one id a line."""

from __future__ import annotations

import hashlib
import re
from pathlib import Path

import click

from maar.cli.client import EXIT_REFUSED, EXIT_UNAVAILABLE, Failed, Server
from maar.cli.options import connected, label_pair, now_ms, server_options
from maar.cli.times import parse_time_ms
from maar.model.errors import MaarError
from maar.model.labels import PROFILE_NAME, SERVICE_NAME
from maar.pprof.folded import TYPES, parse_groups
from maar.pprof.gzip import compress, gunzip

GZIP_MAGIC = b"\x1f\x8b"
RAW_BYTES_MAX = 512 << 20
_FOLDED_LINE = re.compile(rb"\s*\S.*\s\d{1,19}\s*")


@click.command("push")
@click.argument("files", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option("--service", required=True, help="The service they belong to.")
@click.option("--label", "labels", multiple=True, metavar="NAME=VALUE", help="More labels.")
@click.option(
    "--format",
    "form",
    type=click.Choice(["auto", "pprof", "folded"]),
    default="auto",
    show_default=True,
    help="What the files are.",
)
@click.option(
    "--counts",
    type=click.Choice(sorted(TYPES)),
    default="cpu",
    show_default=True,
    help="What folded stacks count.",
)
@click.option("--sample-rate", default=100, show_default=True, help="Folded ticks per second.")
@click.option("--time", "when", default="now", show_default=True, help="When folded stacks began.")
@server_options
def command(
    files: tuple[Path, ...],
    service: str,
    labels: tuple[str, ...],
    form: str,
    counts: str,
    sample_rate: int,
    when: str,
    server: str,
    tenant: str,
) -> None:
    """Send FILES: pprof (gzip or not) or folded stacks. Prints a profile id a line.

    A pprof keeps its own time, and pushed twice it is stored once, also when it has none.
    """
    api = connected(server, tenant)
    pairs = [(SERVICE_NAME, service), *map(label_pair, labels)]
    time_ns = parse_time_ms(when, now_ms=now_ms()) * 1_000_000
    worst = 0
    for file in files:
        try:
            body = _read(file)
            if form == "folded" or (form == "auto" and is_folded(body)):
                kind = TYPES[counts]
                text = gunzip(body, limit=RAW_BYTES_MAX)
                body = parse_groups(text, kind=kind, sample_rate=sample_rate, time_ns=time_ns)
                _push(api, [*pairs, (PROFILE_NAME, kind.name)], body)
            else:
                _push(api, pairs, body)
        except Failed as error:
            click.echo(f"{file}: {error}", err=True)
            worst = max(worst, error.exit_code)
            if error.exit_code == EXIT_UNAVAILABLE:
                break  # the next file would meet the same silence
        except MaarError as error:
            click.echo(f"{file}: {error}", err=True)
            worst = max(worst, EXIT_REFUSED)
    raise SystemExit(worst)


def is_folded(body: bytes) -> bool:
    """Whether it reads as text whose lines end in a count; a pprof never does."""
    if body[:2] == GZIP_MAGIC:
        try:
            body = gunzip(body, limit=RAW_BYTES_MAX)
        except MaarError:
            return False
    lines = [line for line in body.split(b"\n", 100)[:100] if line.strip()]
    return b"\0" not in body[:4096] and bool(lines) and all(map(_FOLDED_LINE.fullmatch, lines[:99]))


def _push(api: Server, labels: list[tuple[str, str]], body: bytes) -> None:
    packed = body if body[:2] == GZIP_MAGIC else compress(body)
    for profile in api.push(labels, packed, client_id=id_of(body)):
        click.echo(profile)


def id_of(body: bytes) -> str:
    """The id that a file is pushed under, the same in every try: a profile without a time would
    otherwise be another one each time, since the server dates it when it comes.
    """
    raw = gunzip(body, limit=RAW_BYTES_MAX)  # another compression of it is the same profile
    return f"maar-push-{hashlib.blake2b(raw, digest_size=16).hexdigest()}"


def _read(file: Path) -> bytes:
    try:
        return file.read_bytes()
    except OSError as error:
        raise Failed(f"cannot be read: {error.strerror}") from None
