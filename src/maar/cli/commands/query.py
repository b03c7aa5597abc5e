"""`maar query`: flame graphs, top functions, and what there is to ask about."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any, NamedTuple, TypeVar

import click
from rich.text import Text

from maar.cli.client import Server
from maar.cli.input.options import (
    connect,
    json_option,
    partial_option,
    range_options,
    selector,
    server_options,
    time_range,
)
from maar.cli.input.type_names import full_type, is_short
from maar.cli.output import flametree
from maar.cli.output.show import bar, console, percent, print_json, print_table, quantity
from maar.model.text import visible

ALL = "{}"  # the selector that every profile matches
CPU = "process_cpu:cpu:nanoseconds:cpu:nanoseconds"

F = TypeVar("F", bound=Callable[..., Any])


def which_options(command: F) -> F:
    """Options that select profiles."""
    for option in (
        click.option("--selector", "more", default="", help='Matchers, like {region=~"eu.*"}.'),
        click.option("--label", "labels", multiple=True, metavar="NAME=VALUE", help="Only these."),
        click.option("--service", default="", help="Only this service."),
        partial_option,
    ):
        command = option(command)
    return command


def type_option(command: F) -> F:
    return click.option(
        "--type",
        "profile_type",
        default=CPU,
        show_default=True,
        help="Whole, or short like inuse_space; see `maar query types`.",
    )(command)


class Chosen(NamedTuple):
    """The profiles that a command asks about."""

    selector: str
    start_ms: int
    end_ms: int

    def request(self) -> dict[str, Any]:
        """As the query API calls it; no matchers choose all."""
        matchers = [] if self.selector == ALL else [self.selector]
        return {"matchers": matchers, "start": self.start_ms, "end": self.end_ms}


def asks(function: Callable[..., None]) -> Callable[..., None]:
    """Gives a command the server, and what its options choose, as one value each."""

    @wraps(function)
    def command(
        service: str,
        labels: tuple[str, ...],
        more: str,
        start: str,
        until: str,
        server: str,
        tenant: str,
        **others: Any,
    ) -> None:
        chosen = Chosen(selector(service, labels, more), *time_range(start, until))
        function(connect(server, tenant), chosen, **others)

    return command


@click.group("query")
def command() -> None:
    """Ask: flamegraph, top, types, labels, series."""


@command.command("flamegraph")
@which_options
@type_option
@range_options
@click.option("--max-nodes", default=8192, show_default=True, help="Frames before 'other'.")
@click.option("--min-percent", default=0.5, show_default=True, help="Hide smaller frames.")
@click.option("--depth", default=64, show_default=True, help="Hide deeper frames.")
@json_option
@server_options
@asks
def flamegraph(
    api: Server,
    chosen: Chosen,
    profile_type: str,
    max_nodes: int,
    min_percent: float,
    depth: int,
    as_json: bool,
) -> None:
    """One flame graph of all matching profiles."""
    asked = _question(api, profile_type, chosen)
    reply = api.querier("SelectMergeStacktraces", {**asked, "maxNodes": max_nodes})
    graph = plain_graph(reply)
    if as_json:
        print_json(graph)
        return
    root = flametree.tree(graph["names"], graph["levels"])
    if root is None or not graph["total"]:
        click.echo("No samples: no such profiles in this time range.")
        return
    draw(root, unit=unit_of(str(asked["profileTypeID"])), least=min_percent / 100, depth=depth)


@command.command("top")
@which_options
@type_option
@range_options
@click.option("--limit", default=30, show_default=True, help="Rows.")
@json_option
@server_options
@asks
def top(
    api: Server,
    chosen: Chosen,
    profile_type: str,
    limit: int,
    as_json: bool,
) -> None:
    """The functions with the greatest own share."""
    asked = _question(api, profile_type, chosen)
    found = api.get("/api/v1/top", {**asked, "limit": limit})
    if as_json:
        print_json(found)
        return
    unit, total = unit_of(str(asked["profileTypeID"])), int(found["total"])
    rows = [
        (
            quantity(own, unit),
            percent(own, total),
            bar(own / total if total else 0),
            quantity(below, unit),
            percent(below, total),
            function,
        )
        for function, own, below in found["rows"]
    ]
    headers = ("self", "self %", "", "total", "total %", "function")
    print_table(headers, rows, right=("self", "self %", "total", "total %"))
    click.echo(f"{quantity(total, unit)} in all")


@command.command("types")
@which_options
@range_options
@json_option
@server_options
@asks
def types(
    api: Server,
    chosen: Chosen,
    as_json: bool,
) -> None:
    """List the profile types."""
    _print_lines("types", types_of(api, chosen), as_json)


@command.command("labels")
@click.argument("name", default="")
@which_options
@range_options
@json_option
@server_options
@asks
def labels_command(
    api: Server,
    chosen: Chosen,
    name: str,
    as_json: bool,
) -> None:
    """The label names, or the values of label NAME."""
    named = {"name": name} if name else {}
    asked = {**chosen.request(), **named}
    reply = api.querier("LabelValues" if name else "LabelNames", asked)
    _print_lines("values" if name else "labels", reply.get("names", []), as_json)


@command.command("series")
@which_options
@range_options
@json_option
@server_options
@asks
def series(
    api: Server,
    chosen: Chosen,
    as_json: bool,
) -> None:
    """List the label sets, one per line."""
    reply = api.querier("Series", {**chosen.request(), "labelNames": []})
    found = [
        {pair["name"]: pair["value"] for pair in one.get("labels", [])}
        for one in reply.get("labelsSet", [])
    ]
    if as_json:
        print_json({"series": found})
        return
    for one in found:
        click.echo(visible(" ".join(f"{name}={value}" for name, value in sorted(one.items()))))


def plain_graph(reply: Any) -> dict[str, Any]:
    """The flame graph of a reply with its numbers as numbers."""
    graph = reply.get("flamegraph") or {}
    return {
        "names": graph.get("names", []),
        "levels": [[int(v) for v in level.get("values", [])] for level in graph.get("levels", [])],
        "total": int(graph.get("total", 0)),
        "maxSelf": int(graph.get("maxSelf", 0)),
    }


def unit_of(profile_type: str) -> str:
    parts = profile_type.split(":")
    return parts[2] if len(parts) > 2 else ""


def _question(api: Server, profile_type: str, chosen: Chosen) -> dict[str, str | int]:
    """A request for one type; what a short name means depends on the types that exist."""
    if is_short(profile_type):
        profile_type = full_type(profile_type, types_of(api, chosen))
    return {
        "profileTypeID": profile_type,
        "labelSelector": chosen.selector,
        "start": chosen.start_ms,
        "end": chosen.end_ms,
    }


def types_of(api: Server, chosen: Chosen) -> list[str]:
    """The types of the profiles that were chosen."""
    if chosen.selector == ALL:
        reply = api.querier("ProfileTypes", {"start": chosen.start_ms, "end": chosen.end_ms})
        return sorted(kind["ID"] for kind in reply.get("profileTypes", []))
    asked = {"name": "__profile_type__", **chosen.request()}
    return sorted(api.querier("LabelValues", asked).get("names", []))


def _print_lines(noun: str, texts: list[str], as_json: bool) -> None:
    if as_json:
        print_json({noun: texts})
        return
    for text in texts:
        click.echo(visible(text))


def draw(root: flametree.Node, *, unit: str, least: float, depth: int) -> None:
    page = console()
    for line in flametree.lines(root, least=least, depth=depth):
        node = line.node
        share = node.total / root.total
        text = Text(no_wrap=True, overflow="ellipsis", end="\n")
        text.append(f"{100 * share:5.1f}% ", style="bold" if share >= 0.1 else "")
        text.append(bar(share), style="red" if node.own / root.total >= 0.05 else "yellow")
        text.append(f" {quantity(node.total, unit):>10} ", style="dim")
        text.append(line.guide, style="dim")
        text.append(visible(node.name))
        page.print(text)
