"""The result of a load: counted while it runs, reported when it ends."""

from __future__ import annotations

import math
from array import array
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import msgspec

from maar.cli.output.show import duration, size

SENTENCES_MAX = 5
QUANTILES = (("p50", 0.5), ("p90", 0.9), ("p99", 0.99), ("max", 1.0))


@dataclass(slots=True)
class LoadTally:
    """Counts, as they come."""

    sent: int = 0  # pushes begun
    acknowledged: int = 0
    retries: int = 0
    bytes: int = 0  # of acknowledged pushes, gzip
    refusals: Counter[str] = field(default_factory=Counter)  # every one, by status
    sentences: Counter[str] = field(default_factory=Counter)  # why, for a few
    waits_s: array[float] = field(default_factory=lambda: array("d"))
    late_s: float = 0.0  # how far the generator itself fell behind, at worst

    def count_refusal(self, status: str, sentence: str) -> None:
        self.refusals[status] += 1
        told = f"{status}: {sentence}"
        if told in self.sentences or len(self.sentences) < SENTENCES_MAX:
            self.sentences[told] += 1


class LoadReport(msgspec.Struct, frozen=True, kw_only=True):
    """`latency_s` is from when a push was due until it was acknowledged, retries included."""

    servers: tuple[str, ...]
    seconds: float
    planned: int
    sent: int
    acknowledged: int
    never_acknowledged: int
    retries: int
    refusals: dict[str, int]
    sentences: dict[str, int]
    bytes: int
    rate_asked: float
    rate_reached: float
    latency_s: dict[str, float]
    late_s: float


def report(
    tally: LoadTally, *, servers: Sequence[str], seconds: float, planned: int, rate: float
) -> LoadReport:
    waits = sorted(tally.waits_s)
    return LoadReport(
        servers=tuple(servers),
        seconds=seconds,
        planned=planned,
        sent=tally.sent,
        acknowledged=tally.acknowledged,
        never_acknowledged=tally.sent - tally.acknowledged,
        retries=tally.retries,
        refusals=dict(tally.refusals),
        sentences=dict(tally.sentences),
        bytes=tally.bytes,
        rate_asked=rate,
        rate_reached=tally.acknowledged / seconds if seconds else 0.0,
        latency_s={name: quantile(waits, share) for name, share in QUANTILES},
        late_s=tally.late_s,
    )


def quantile(ordered: Sequence[float], share: float) -> float:
    """The least value that this share of them does not exceed; 0 of none."""
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)] if ordered else 0.0


def lines(found: LoadReport) -> Iterator[str]:
    """The report as lines of text."""
    yield (
        f"{found.acknowledged:,} of {found.sent:,} pushes acknowledged in "
        f"{duration(found.seconds)}: {found.rate_reached:,.1f} a second "
        f"({found.rate_asked:,.1f} asked), {size(found.bytes)}"
    )
    told = ", ".join(f"{name} {duration(value)}" for name, value in found.latency_s.items())
    yield f"latency: {told}"
    by_status = ", ".join(f"{status} {count:,}" for status, count in found.refusals.items())
    yield f"retries: {found.retries:,}; refusals: {by_status or 'none'}"
    for sentence, count in found.sentences.items():
        yield f"  {count:,} times {sentence}"
    if found.late_s > 1:
        yield (
            f"the generator fell {duration(found.late_s)} behind at worst and left "
            f"{found.planned - found.sent:,} pushes out; raise --under-way, lower --rate, or run "
            "several"
        )
    if found.never_acknowledged:
        yield f"NEVER ACKNOWLEDGED: {found.never_acknowledged:,}"
