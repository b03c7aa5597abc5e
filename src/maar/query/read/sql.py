"""The SQL of every query, with values bound by name and never spliced into the text."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from enum import Enum, auto
from typing import Any

from maar.model.labels import SERVICE_NAME
from maar.model.time import TimeRange
from maar.ports.reader.query import Matcher
from maar.query.decide.select import DATASET_LABELS, PROFILE_TYPE, SERVICE_TOO, TYPE_FIELDS

EXCLUDED = "excluded"  # (block, profile_id): copies, and what a microsecond too many let in


class CopyCounting(Enum):
    """How a profile that several parts have is counted once."""

    NONE = auto()  # there are none
    LISTED = auto()  # as EXCLUDED, made of the profiles before samples are looked at
    AMONG_SAMPLES = auto()  # by the samples' own ids: no other table is opened, but all are held


_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROS_MAX = (datetime.max.replace(tzinfo=UTC) - _EPOCH) // timedelta(microseconds=1)


class Statement:
    """A text under construction and the values that it refers to."""

    def __init__(self) -> None:
        self.values: dict[str, Any] = {}

    def bind(self, value: Any) -> str:
        name = f"v{len(self.values)}"
        self.values[name] = value
        return f"${name}"

    def matches(self, expression: str, matcher: Matcher) -> str:
        value = self.bind(matcher.value)
        match matcher.op:
            case "=":
                return f"{expression} = {value}"
            case "!=":
                return f"{expression} <> {value}"
            case "=~":
                return f"regexp_full_match({expression}, {value})"
            case _:
                return f"NOT regexp_full_match({expression}, {value})"

    def during(self, time: TimeRange) -> str:
        """The time column within the range, widened to whole microseconds."""
        start, end = micros(time)
        return (
            f"time >= {self.bind(_EPOCH + timedelta(microseconds=start))} "
            f"AND time < {self.bind(_EPOCH + timedelta(microseconds=end))}"
        )

    def label(self, name: str) -> str:
        """A label of a sample's series; absent is ''."""
        if name in (SERVICE_NAME, SERVICE_TOO):
            return "service"
        if name == PROFILE_TYPE:
            return "profile_type"
        if name in TYPE_FIELDS:
            return f"split_part(profile_type, ':', {TYPE_FIELDS.index(name) + 1})"
        return f"coalesce(labels[{self.bind(name)}], '')"


def micros(time: TimeRange) -> tuple[int, int]:
    """The range in microseconds, rounded outward and kept within what a timestamp can say."""
    start = min(max(time.start_ns // 1000, 0), _MICROS_MAX)
    end = min(max(-(-time.end_ns // 1000), 0), _MICROS_MAX)
    return start, end


def is_aligned(time: TimeRange) -> bool:
    """Whether microseconds say it exactly."""
    return time.start_ns % 1000 == 0 and time.end_ns % 1000 == 0


def excluded_profiles(statement: Statement, profiles: str, *, service: str, time: TimeRange) -> str:
    """Profiles not to count: every copy but the first, and those outside of the exact range."""
    where = [statement.during(time)]
    if service:
        where.append(f"service = {statement.bind(service)}")
    start, end = statement.bind(time.start_ns), statement.bind(time.end_ns)
    return f"""
        WITH held AS MATERIALIZED (
            SELECT block, profile_id, time_nanos FROM ({profiles}) WHERE {" AND ".join(where)}
        ), copied AS (
            SELECT profile_id, min(block) AS first FROM held GROUP BY profile_id HAVING count(*) > 1
        )
        SELECT block, profile_id FROM held JOIN copied USING (profile_id) WHERE block <> first
        UNION
        SELECT block, profile_id FROM held WHERE time_nanos < {start} OR time_nanos >= {end}
    """


def chosen_samples(
    statement: Statement,
    tables: dict[str, str],
    *,
    columns: str,
    matchers: Iterable[Matcher],
    time: TimeRange,
    profile_type: str = "",
    copies: CopyCounting = CopyCounting.NONE,
) -> str:
    """The samples that a query is about: in time, of the series that match, each once."""
    where = [statement.during(time)]
    if profile_type:
        where.append(f"profile_type = {statement.bind(profile_type)}")
    on_labels: list[str] = []
    for matcher in matchers:
        condition = statement.matches(statement.label(matcher.name), matcher)
        (where if matcher.name in DATASET_LABELS else on_labels).append(condition)
    among = copies is CopyCounting.AMONG_SAMPLES
    text = f"SELECT {'held.*' if among else columns} FROM ({tables['samples']}) AS held"
    if on_labels:
        series = (
            f"SELECT block, series_id FROM ({tables['series']}) WHERE {' AND '.join(on_labels)}"
        )
        text += f" SEMI JOIN ({series}) AS wanted USING (block, series_id)"
    if copies is CopyCounting.LISTED:
        text += f" ANTI JOIN {EXCLUDED} USING (block, profile_id)"
    text += f" WHERE {' AND '.join(where)}"
    return _each_once(text, columns) if among else text


def _each_once(samples: str, columns: str) -> str:
    """Samples without those of every copy of a profile but the first."""
    return f"""
        WITH chosen AS MATERIALIZED ({samples}), copied AS (
            SELECT profile_id, min(block) AS first FROM chosen
            GROUP BY profile_id HAVING min(block) <> max(block)
        )
        SELECT {columns} FROM chosen LEFT JOIN copied USING (profile_id)
        WHERE first IS NULL OR block = first
    """


def stacks_with_values(
    statement: Statement, samples: str, stacks: str, *, service: str, positive: bool
) -> str:
    """Each different stack once (NULL when one is missing), with the sum of its values.

    Services and parts share most of their stacks: what leaves DuckDB is as small as the answer, and
    no part weighs otherwise before and after a merge. DuckDB adds 64-bit values in 128 bits, which
    cross to Arrow as decimals.
    """
    only = f" WHERE service = {statement.bind(service)}" if service else ""
    having = "HAVING sum(held) > 0 OR functions IS NULL" if positive else ""
    return f"""
        SELECT functions, sum(held)::DECIMAL(38, 0) AS value
        FROM (
            SELECT block, stack_id, sum(value) AS held FROM ({samples}) GROUP BY block, stack_id
        )
        LEFT JOIN (SELECT block, stack_id, functions FROM ({stacks}){only}) USING (block, stack_id)
        GROUP BY functions {having}
    """


def heaviest_profiles(samples: str, series: str, *, number: int) -> str:
    """The profiles with the largest values, and the weight of all of them together."""
    return f"""
        WITH weighed AS (
            SELECT block, series_id, service, profile_id, min(time) AS time,
                sum(abs(value::HUGEINT)) AS weight
            FROM ({samples}) GROUP BY block, series_id, service, profile_id
        )
        SELECT service, profile_id, time, map_entries(labels) AS labels,
            weight::DECIMAL(38, 0) AS weight,
            (SELECT sum(weight) FROM weighed)::DECIMAL(38, 0) AS everything
        FROM weighed JOIN ({series}) USING (block, series_id)
        ORDER BY weighed.weight DESC, profile_id, series_id LIMIT {number}
    """
