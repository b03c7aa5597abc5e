"""Replicas of the metastore as people read them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from maar.cli.show import duration, print_table

Json = dict[str, Any]


def print_replicas(replicas: Sequence[Json]) -> None:
    headers = ("replica", "address", "standing", "index", "behind", "knows")
    rows = [
        (
            each["name"] or "-",
            each["address"],
            each["standing"],
            f"{each['index']:,}" if each["index"] else "-",
            _behind(each),
            str(each["knows"] or "-"),
        )
        for each in replicas
    ]
    print_table(headers, rows, right=("index", "behind", "knows"))


def replica_troubles(replicas: Sequence[Json]) -> Iterator[str]:
    """What wants a person; docs/runbook.md says what to do."""
    for each in replicas:
        who = each["name"] or each["address"]
        match each["standing"]:
            case "stopped":
                yield f"replica {who} has stopped: {each['fault']} (maar metastore rebuild)"
            case "in doubt":
                yield f"replica {who} doubts its state and does not answer: {each['fault']}"
            case "unreachable":
                yield f"replica {who} is not heard from"
            case _:
                pass


def _behind(replica: Json) -> str:
    """By entries and by time, as far as the replica knows itself."""
    if replica["standing"] == "unreachable":
        return "-"
    entries = max(0, replica["head"] - replica["index"])
    if not entries:
        return "0"
    return f"{entries:,} ({duration(replica['behind_s'])})"
