"""The runs that a query is about, part by part; each profile once, wherever its copies are (S9)."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np

from maar.ports.reader.query import Matcher, Scope
from maar.query.decide.label_columns import SeriesLabels, matching_groups
from maar.query.decide.run_choice import choose_runs
from maar.query.decide.select import DATASET_LABELS, service_of
from maar.query.decide.totals import Flags, Int, Totals, first_copies
from maar.query.read.part_cache import Weighed
from maar.query.read.reading import Reading, translate_errors
from maar.query.read.sources import Source
from maar.query.read.sql import Statement, micros


@dataclass(frozen=True, slots=True)
class Choice:
    """The runs of one part; parts without any are left out."""

    source: Source
    totals: Totals
    runs: Int
    of_groups: Flags  # whether a service, type and series has some of them

    @property
    def rows(self) -> int:
        return int(self.totals.rows[self.runs].sum())

    @property
    def groups(self) -> Int:
        """The services, types and series of the runs, each once."""
        return np.flatnonzero(self.of_groups)

    @property
    def key(self) -> tuple[Hashable, str, bytes] | None:
        """What says which groups these are, for ever; None: of level 0, which is soon gone."""
        if self.source.key is None:
            return None
        return self.source.key, self.totals.service, self.of_groups.tobytes()


def choose(reading: Reading, scope: Scope, profile_type: str = "") -> list[Choice] | None:
    """In time, widened to whole microseconds, and of the series that match; None when there is too
    much of it for memory. Found once for a query.
    """
    asked = scope, profile_type
    if asked not in reading.chosen:
        reading.chosen[asked] = _choose_now(reading, scope, profile_type)
    found: list[Choice] | None = reading.chosen[asked]
    return found


def _choose_now(reading: Reading, scope: Scope, profile_type: str) -> list[Choice] | None:
    sources = reading.sources(service_of(scope.matchers))
    if sources is None:
        return None
    start_us, end_us = micros(scope.range)
    found = []
    for source in sources:
        reading.check()
        totals = source.totals
        runs, of_groups = choose_runs(
            totals,
            _groups(reading, source, scope.matchers, profile_type),
            start_us=start_us,
            end_us=end_us,
            masks=source.hidden,
        )
        if runs.size:
            found.append(Choice(source, totals, runs, of_groups))
    return found


def _groups(
    reading: Reading, source: Source, matchers: tuple[Matcher, ...], profile_type: str
) -> Flags:
    """Which groups of a part match. Conditions on its labels are looked at once for a block."""
    totals = source.totals

    def look(labels: SeriesLabels | None) -> Flags:
        regex = partial(_regex, reading)
        return matching_groups(totals, labels, matchers, profile_type, regex)

    if all(matcher.name in DATASET_LABELS for matcher in matchers):
        return look(None)
    if source.key is None:
        return look(read_labels(source))

    def look_once() -> Weighed:
        groups = look(read_labels(source))
        text = sum(len(each.name) + len(each.value) for each in matchers)
        return Weighed(groups, groups.nbytes + 500 * (1 + len(matchers)) + text)

    key = ("groups", source.key, totals.service, profile_type, matchers)
    flags: Flags = reading.blocks.cache.get(key, look_once).what
    return flags


def without_copies(reading: Reading, choices: list[Choice]) -> list[Choice]:
    """Of a profile in several parts, the first one's runs. Only ids tell: copies may lie anywhere,
    and an undated profile that was sent again has another time.
    """
    if len(choices) < 2 or not reading.may_share([choice.source for choice in choices]):
        return choices
    profiles = [np.unique(choice.totals.profile[choice.runs]) for choice in choices]
    ids = [choice.totals.ids[mine] for choice, mine in zip(choices, profiles, strict=True)]
    kept = []
    for choice, mine, counts in zip(choices, profiles, first_copies(ids), strict=True):
        wanted: Flags = np.zeros(len(choice.totals.ids), np.bool_)
        wanted[mine[counts]] = True
        runs = choice.runs[wanted[choice.totals.profile[choice.runs]]]
        if runs.size:
            of_groups: Flags = np.zeros_like(choice.of_groups)
            of_groups[choice.totals.group[runs]] = True
            kept.append(Choice(choice.source, choice.totals, runs, of_groups))
    return kept


def read_labels(source: Source) -> SeriesLabels:
    with translate_errors():
        return source.labels()


def _regex(reading: Reading, pattern: str, texts: Sequence[str]) -> Flags:
    """By DuckDB, whose RE2 is what selectors are written for."""
    statement = Statement()
    values, wanted = statement.bind(list(texts)), statement.bind(pattern)
    text = (
        f"SELECT regexp_full_match(text, {wanted}) AS found FROM (SELECT unnest({values}) AS text)"
    )
    if not texts:
        return np.zeros(0, np.bool_)
    flags: Flags = reading.run(text, statement)["found"].to_numpy(zero_copy_only=False)
    return flags
