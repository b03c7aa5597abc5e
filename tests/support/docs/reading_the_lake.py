"""The examples of docs/reading-the-lake.md, and a small lake with a known answer for them."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from maar.adapters.stores.open import open_store
from maar.model.block import BlockMeta
from maar.model.ids import ANONYMOUS, TenantId
from maar.model.time import DAY_NS
from maar.ports.stores.object_store import StoreSettings
from maar.pprof.plain import PlainFunction, PlainLine, PlainLocation, PlainProfile, PlainSample
from support.lake.block_plans import NOON_NS, Bench, raw_profile

DOCUMENT = Path(__file__).parents[3] / "docs" / "reading-the-lake.md"
STRANGER = TenantId("acme")
FUNCTIONS = ("main", "serve", "parse", "sort", "hash")


def programs() -> dict[str, str]:
    """The programs of the page, exactly as printed, by the file names that it gives them."""
    blocks = re.findall(r"```python\n(.*?)```", DOCUMENT.read_text(), re.DOTALL)
    named = {}
    for block in blocks:
        named[re.split(r"[ :]", block.splitlines()[0].removeprefix("# "))[0]] = block
    return named


def commands() -> list[list[str]]:
    """The command lines of the page, by words."""
    (block,) = re.findall(r"```sh\n(.*?)```", DOCUMENT.read_text(), re.DOTALL)
    return [line.split() for line in block.splitlines()]


@dataclass(frozen=True)
class DocumentedLake:
    blocks: list[BlockMeta]
    top: list[tuple[str, int, int]]  # function, self, total of the tenant that the page names


def documented_lake(directory: Path) -> DocumentedLake:
    """In `.maar/store`: two blocks that share stacks and one profile, a block of another tenant,
    one of another day, and the answer worked out by hand."""
    (directory / ".maar").mkdir()
    store = open_store(StoreSettings("main", f"file://{directory / '.maar' / 'store'}"))
    scratch = directory / ".maar" / "scratch"
    scratch.mkdir()
    bench = Bench(store, scratch)
    total: Counter[str] = Counter()
    own: Counter[str] = Counter()
    profiles, others = [], []
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
        service = f"service-{number % 2}"
        profiles.append(
            raw_profile(body, service=service, tenant=ANONYMOUS, time_ns=NOON_NS + number)
        )
        others += [
            raw_profile(body, service=service, tenant=STRANGER, time_ns=NOON_NS + number),
            raw_profile(body, service=service, tenant=ANONYMOUS, time_ns=NOON_NS + DAY_NS),
        ]
    blocks = [
        block
        for part in (profiles[:3], profiles[2:], others)  # the third went to both
        for block in bench.compact([bench.segment(part)]).outputs
    ]
    ranked = sorted((-value, name) for name, value in total.items())
    return DocumentedLake(blocks, [(name, own[name], -value) for value, name in ranked])
