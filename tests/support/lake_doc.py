"""The examples of docs/reading-the-lake.md, and a small lake with a known answer for them."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from maar.adapters.object_store import open_store
from maar.api.plain import plain
from maar.model.keys import date_text
from maar.model.time import utc_day
from maar.ports.object_store import StoreSettings
from maar.pprof.plain import PlainFunction, PlainLine, PlainLocation, PlainProfile, PlainSample
from support.block_plans import NOON_NS, Bench, pushed

DOCUMENT = Path(__file__).parents[2] / "docs" / "reading-the-lake.md"
PROFILE_TYPE = "process_cpu:cpu:nanoseconds:cpu:nanoseconds"
FUNCTIONS = ("main", "serve", "parse", "sort", "hash")


def example(title: str) -> str:
    """The fenced block of the document whose first line is a comment with this title."""
    blocks = re.findall(r"```\w+\n(.*?)```", DOCUMENT.read_text(), re.DOTALL)
    (found,) = [block for block in blocks if block.split("\n")[0].lstrip("#- ") == title]
    return str(found)


def names_of(title: str) -> dict[str, Any]:
    """What the example defines."""
    defined: dict[str, Any] = {}
    exec(compile(example(title), f"{DOCUMENT.name}: {title}", "exec"), defined)
    return defined


@dataclass(frozen=True)
class DocumentedLake:
    files: dict[str, list[str]]
    top: list[tuple[str, int, int]]  # function, self, total


def documented_lake(directory: Path) -> DocumentedLake:
    """Two blocks that share stacks and one profile, and the answer worked out by hand."""
    store = open_store(StoreSettings("main", f"file://{directory / 'store'}"))
    scratch = directory / "scratch"
    scratch.mkdir()
    bench = Bench(store, scratch)
    total: Counter[str] = Counter()
    own: Counter[str] = Counter()
    profiles = []
    for number in range(6):
        stacks = [(0, 1, 2), (0, 1, 2, 2), (0, 3 + number % 2), (0, 1, 2, 4)]
        values = [(number + 1) * factor for factor in (1, 10, 100, 1_000)]
        for stack, value in zip(stacks, values, strict=True):
            own[FUNCTIONS[stack[-1]]] += value
            for function in set(stack):
                total[FUNCTIONS[function]] += value
        body = PlainProfile(
            sample_types=[("samples", "count"), ("cpu", "nanoseconds")],
            samples=[
                PlainSample(stack[::-1], [1, value])
                for stack, value in zip(stacks, values, strict=True)
            ],
            locations=[PlainLocation(lines=(PlainLine(row, 1),)) for row in range(len(FUNCTIONS))],
            functions=[PlainFunction(name, name, "app.py") for name in FUNCTIONS],
            period_type=("cpu", "nanoseconds"),
        )
        profiles.append(pushed(body, service=f"service-{number % 2}", time_ns=NOON_NS + number))
    blocks = [
        block
        for part in (profiles[:3], profiles[2:])  # the third went to both
        for block in bench.compact([bench.segment(part)]).outputs
    ]
    live_files = names_of("files of a day")["live_files"]
    listed = [plain(block) for block in blocks]
    files = live_files(listed, date_text(utc_day(NOON_NS)), str(directory / "store"))
    ranked = sorted((-value, name) for name, value in total.items())
    return DocumentedLake(files, [(name, own[name], -value) for value, name in ranked])
