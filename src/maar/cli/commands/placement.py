"""`maar placement`: how many shards each dataset has, how it is spread over them, and why."""

from __future__ import annotations

from typing import Any

import click

from maar.cli.input.options import connect, json_option, server_option
from maar.cli.output.show import duration, print_json, print_table, say, size

Json = dict[str, Any]


@click.command("placement")
@click.option("--tenant", default="", help="Only of this tenant.")
@click.option("--service", default="", help="Only this service.")
@click.option("--shards", is_flag=True, help="A row for each shard that takes data.")
@click.option("--limit", default=1000, show_default=True, help="Datasets.")
@json_option
@server_option
def command(
    tenant: str, service: str, shards: bool, limit: int, as_json: bool, server: str
) -> None:
    """List the placement rules and the rates that they follow from, as the store has them."""
    params: dict[str, str | int] = {"tenant": tenant, "service": service, "limit": limit}
    found = connect(server).get("/api/v1/placement", params)
    if as_json:
        print_json(found)
        return
    datasets = found["datasets"]
    if datasets and shards:
        _print_shards(datasets)
    elif datasets:
        _print_datasets(datasets)
    click.echo(_sentence(found))
    for sentence in found["unreadable"]:
        say(f"maar: {sentence}", err=True)


def _print_datasets(datasets: list[Json]) -> None:
    headers = ("tenant", "service", "shards", "of tenant", "balancing", "rate", "deviation", "used")
    rows = [
        (
            one["tenant"],
            one["service"],
            _or_dash(one["dataset_shards"]),
            "all" if one["tenant_shards"] == 0 else _or_dash(one["tenant_shards"]),
            _or_dash(one["balancing"]),
            _rate(one["usage"]),
            _rate(one["std_dev"]),
            str(len({(use["zone"], use["shard"]) for use in one["shards"]})),
        )
        for one in datasets
    ]
    print_table(headers, rows, right=("shards", "of tenant", "rate", "deviation", "used"))


def _print_shards(datasets: list[Json]) -> None:
    headers = ("tenant", "service", "zone", "shard", "writer", "rate")
    rows = [
        (
            one["tenant"],
            one["service"],
            use["zone"],
            str(use["shard"]),
            use["owner"],
            _rate(use["usage"]),
        )
        for one in datasets
        for use in one["shards"]
    ]
    print_table(headers, rows, right=("shard", "rate"))


def _sentence(found: Json) -> str:
    if found["rules_age_s"] is None:
        return "no placement rules were made yet; every dataset has the shards of the settings"
    count = f"{len(found['datasets'])} datasets" + (" and more" if found["more"] else "")
    return f"{count}; the rules last changed {duration(found['rules_age_s'])} ago"


def _rate(usage: int) -> str:
    return f"{size(usage)}/s"


def _or_dash(value: object) -> str:
    return "-" if value is None else str(value)
