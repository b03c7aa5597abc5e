"""The metrics of several fronts as one page: their sum, which no death of a front makes smaller.

Whoever scrapes the port meets any of the fronts, and must not be told of that one alone. Counters
of a front that died stay in the sum as they were last seen, since a counter that shrinks looks like
a restart of everything. They are in a file beside the sockets too, for the
next run of whoever sums.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from maar.background import Loop
from maar.model.errors import MaarError
from maar.ports.calls import Caller
from maar.ports.role import GetMetrics, Role

log = logging.getLogger("maar.fronts")

SEEN_EVERY_S = 2.0
STARTED = "_start_time_seconds"  # of the metrics of a process: it tells its runs apart
# What every front says of the same thing; all other gauges are of what each has for itself.
SAME = ("maar_distributor_writers", "maar_distributor_breakers", "maar_distributor_rules")


@dataclass(slots=True)
class Family:
    """One metric: what is said about it, and its values by name and labels, as they are written."""

    heading: list[str] = field(default_factory=list)
    kind: str = "untyped"
    values: dict[str, float] = field(default_factory=dict)

    @property
    def only_grows(self) -> bool:
        return self.kind in ("counter", "histogram")


Page = dict[str, Family]
Joining = Callable[[float, float], float]


def _plus(one: float, other: float) -> float:
    return one + other


def read_page(text: str) -> Page:
    """A page in the text form of Prometheus, without times, as we write it."""
    page: Page = {}
    family = Family()
    for line in text.splitlines():
        if line.startswith("# HELP "):
            family = page.setdefault(line.split(" ", 3)[2], Family())
            family.heading.append(line)
        elif line.startswith("# TYPE "):
            family = page.setdefault(line.split(" ", 3)[2], Family())
            family.heading.append(line)
            family.kind = line.rsplit(" ", 1)[1]
        elif line and not line.startswith("#"):
            key, _, value = line.rpartition(" ")
            family.values[key] = float(value)
    return page


def page_text(page: Page) -> str:
    lines: list[str] = []
    for family in page.values():
        lines += family.heading
        lines += [f"{key} {value!r}" for key, value in family.values.items()]
    return "".join(f"{line}\n" for line in lines)


def sum_pages(pages: Iterable[Page], *, grown: Joining = _plus) -> Page:
    """The pages as one; what is not a sum is decided by the metric's name."""
    total: Page = {}
    for page in pages:
        for name, family in page.items():
            into = total.setdefault(name, Family(list(family.heading), family.kind))
            joined = grown if family.only_grows else _joining(name)
            for key, value in family.values.items():
                before = into.values.get(key)
                into.values[key] = value if before is None else joined(before, value)
    return total


def only_growing(page: Page) -> Page:
    """What remains true of a process that is gone."""
    return {name: family for name, family in page.items() if family.only_grows}


def not_before(last: Page, page: Page) -> Page:
    """A page of the same run, of which no counter is below the last: an answer may come late."""
    return sum_pages([page, only_growing(last)], grown=max)


def run_of(page: Page) -> tuple[float, ...]:
    """Which run of a process wrote it."""
    return tuple(
        value
        for name, family in page.items()
        if name.endswith(STARTED)
        for value in family.values.values()
    )


def _joining(name: str) -> Joining:
    if name.endswith("_created"):
        return min
    return max if name in SAME or name.endswith(STARTED) else _plus


class FrontSums:
    """What was last seen of each front, and of those that are gone. Decides, asks nobody."""

    def __init__(self, gone: Page | None = None) -> None:
        self._last: dict[str, Page] = {}
        self.gone: Page = gone or {}

    def see(self, pages: Mapping[str, Page | None]) -> Page:
        """The sum; None is a front that does not answer."""
        shown: list[Page] = []
        for name, page in pages.items():
            last = self._last.get(name)
            if page is None:
                shown += [only_growing(last)] if last is not None else []
                continue
            if last is not None and run_of(last) != run_of(page):
                self.gone = sum_pages([self.gone, only_growing(last)])
            elif last is not None:
                page = not_before(last, page)
            self._last[name] = page
            shown.append(page)
        return sum_pages([*shown, self.gone])


class FrontPages:
    """Asks all fronts for their pages. `kept` is where what is gone outlives this process."""

    def __init__(self, fronts: Mapping[str, Caller[Role]], kept: Path) -> None:
        self._fronts = fronts
        self._kept = kept
        self._sums = FrontSums(read_page(kept.read_text()) if kept.exists() else None)

    async def follow(self) -> None:
        """For ever: what is not seen of a front before it dies is not in the sum."""
        failed = "metrics of the fronts not read"
        await Loop(self.text, failed=failed, log=log, every_s=SEEN_EVERY_S).run()

    async def text(self) -> str:
        found = await asyncio.gather(*map(self._page, self._fronts))
        before = self._sums.gone
        page = self._sums.see(dict(zip(self._fronts, found, strict=True)))
        if self._sums.gone is not before:
            self._keep(self._sums.gone)
        return page_text(page)

    def _keep(self, gone: Page) -> None:
        half = self._kept.with_suffix(".half")
        try:
            half.write_text(page_text(gone))
            os.replace(half, self._kept)
        except OSError as error:  # this run has them all the same
            log.warning("counters of fronts that died not kept cause=%s", error)

    async def _page(self, name: str) -> Page | None:
        try:
            return read_page(await self._fronts[name].call(GetMetrics()))
        except MaarError as error:
            log.info("metrics of a front are missing of=%s cause=%s", name, error)
            return None
