"""Formats values for people, and prints tables or JSON."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

import click
from rich.console import Console
from rich.table import Table

from maar.model.text import visible, visible_json, visible_lines

_BAR_WIDTH = 12
_PIPE_WIDTH = 500
_EIGHTHS = " ▏▎▍▌▋▊▉█"


def console() -> Console:
    """As wide as the terminal; a pipe or a file has no width, so nothing is cut there.

    No markup: a function may be called [vdso], and must not be taken for a colour.
    """
    page = Console(highlight=False, markup=False, soft_wrap=False)
    return page if page.is_terminal else Console(highlight=False, markup=False, width=_PIPE_WIDTH)


def print_json(value: Mapping[str, Any]) -> None:
    """Print an object, never a bare array, so that fields can be added later."""
    click.echo(visible_json(json.dumps(value, ensure_ascii=False, indent=2)))


def say(text: str, *, err: bool = False) -> None:
    """Print lines that may contain untrusted names, with control characters made visible."""
    click.echo(visible_lines(text), err=err)


def print_table(
    headers: Sequence[str], rows: Iterable[Sequence[str]], *, right: Sequence[str] = ()
) -> None:
    table = Table(box=None, pad_edge=False, header_style="bold")
    for header in headers:
        numeric = header in right
        table.add_column(header, justify="right" if numeric else "left", no_wrap=numeric)
    for row in rows:
        table.add_row(*map(visible, row))
    console().print(table)


def bar(share: float, width: int = _BAR_WIDTH) -> str:
    """A bar of eighths: fine enough to compare neighbours by eye."""
    eighths = round(min(max(share, 0.0), 1.0) * width * 8)
    full, rest = divmod(eighths, 8)
    return ("█" * full + (_EIGHTHS[rest] if rest else "")).ljust(width)


def percent(part: int, whole: int) -> str:
    return f"{100 * part / whole:.1f}%" if whole else "-"


def quantity(value: float, unit: str) -> str:
    """A value in its profile's unit."""
    match unit:
        case "nanoseconds":
            return duration(value / 1e9)
        case "bytes":
            return size(int(value))
        case _:
            return f"{value:,.0f}"


def duration(seconds: float) -> str:
    if seconds >= 2 * 86_400:
        return f"{seconds / 86_400:.1f} days"
    if seconds >= 3600:
        return f"{seconds / 3600:.1f} h"
    if seconds >= 60:
        return f"{seconds / 60:.1f} min"
    if seconds >= 1:
        return f"{seconds:.2f} s"
    if seconds >= 1e-3:
        return f"{seconds * 1e3:.1f} ms"
    return f"{seconds * 1e6:.0f} µs"


def size(count: int) -> str:
    amount = float(count)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if abs(amount) < 1024:
            return f"{amount:.0f} {unit}" if unit == "B" else f"{amount:.1f} {unit}"
        amount /= 1024
    return f"{amount:.1f} TiB"


def moment(time_ns: int) -> str:
    if not time_ns:
        return "-"
    return datetime.fromtimestamp(time_ns / 1e9, UTC).strftime("%Y-%m-%d %H:%M:%S")
