"""Formats the replicas of the metastore."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from maar.cli.output.show import duration, print_table

LOOKED_S = 5.0  # a replica reads the log many times a second

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
    """What needs attention; docs/runbook.md says what to do."""
    for each in replicas:
        who = each["name"] or each["address"]
        match each["standing"]:
            case "stopped":
                yield f"replica {who} has stopped: {each['fault']} (maar metastore rebuild)"
            case "in doubt":
                yield f"replica {who} doubts its state and does not answer: {each['fault']}"
            case "unreachable":
                yield f"replica {who} does not answer: {each['fault']}"
            case _:
                pass


def _behind(replica: Json) -> str:
    """How far it is behind, in entries and time, as far as the replica knows.

    The head that it last saw says little if it could not read the log for a while.
    """
    standing, behind_s = replica["standing"], replica["behind_s"]
    if standing == "unreachable":
        return "-"
    if entries := max(0, replica["head"] - replica["index"]):
        return f"{entries:,} ({duration(behind_s)})"
    if standing not in ("leader", "follower"):
        return "unknown"
    return f"unknown ({duration(behind_s)})" if behind_s > LOOKED_S else "0"
