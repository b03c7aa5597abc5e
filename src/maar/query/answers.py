"""The answers, each computed by one thread from one reading of one view."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from functools import lru_cache, partial
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from maar.model.errors import Corrupt, InvalidInput, TooLarge
from maar.model.ids import profile_id_text
from maar.model.labels import SERVICE_NAME, Labels
from maar.ports.reader.query import FlameGraph, Point, Scope, SeriesPoints, Top, TopRow
from maar.query import direct
from maar.query.decide import go_stacks
from maar.query.decide.budget import FRAME_BYTES, STACKS, AnswerBudget
from maar.query.decide.exact import ANSWER_MAX, integers
from maar.query.decide.flamegraph import Int, Stacks, flamegraph
from maar.query.decide.overflow import NAMED_MAX, Heavy, overflow
from maar.query.decide.select import (
    DATASET_LABELS,
    SERVICE_TOO,
    TYPE_LABELS,
    dataset_labels,
    pick,
    service_of,
)
from maar.query.decide.steps import Steps
from maar.query.read import sql
from maar.query.read.choose import choose, without_copies
from maar.query.read.reading import Reading
from maar.query.read.sources import ROWS_MAX, STACKS_MAX
from maar.query.read.sql import CopyCounting, Statement

SAMPLES_HELD_MAX = 200_000  # rows of 60 bytes, while copies are looked for among them


class GraphBounds(NamedTuple):
    """What is drawn in about a millisecond: a frame costs 30 ns, a sample 3, a run 5."""

    frames: int = 40_000
    samples: int = 50_000
    runs: int = 20_000


def draw(
    reading: Reading, scope: Scope, *, profile_type: str, max_nodes: int, most: int, tidy: bool
) -> FlameGraph:
    """Of `most` nodes at the most. `tidy`: stacks of Go without type parameters, and with the roots
    that were cut off.
    """
    # Nothing but what is greater than 0 can be drawn.
    stacks = _stacks(reading, scope, profile_type, positive=True, tidy=tidy)
    reading.check()
    if int(stacks.value.sum()) > ANSWER_MAX:
        raise _overflow(reading, scope, profile_type)
    value = stacks.value.astype(np.int64)
    return flamegraph(replace(stacks, value=value), max_nodes=max_nodes, most=most)


def draws_at_once(
    reading: Reading,
    scope: Scope,
    *,
    profile_type: str,
    tidy: bool,
    bounds: GraphBounds = GraphBounds(),  # noqa: B008 -- immutable
) -> bool:
    """Whether all that is drawn is in memory, and within bounds."""
    if not sql.is_aligned(scope.range):
        return False
    if not reading.has_at_hand(scope, bounds.runs, labels=False):
        return False
    choices = choose(reading, scope, profile_type)
    if choices is None or sum(choice.rows for choice in choices) > bounds.samples:
        return False
    parts, left = [], bounds.frames
    for choice in choices:
        stacks = choice.source.frames_at_hand(choice.runs)
        if stacks is None or stacks.frame.size > left:
            return False
        parts.append(stacks)
        left -= stacks.frame.size
    return reading.blocks.has_names(parts, folded=tidy)


def top(reading: Reading, scope: Scope, *, profile_type: str, limit: int, tidy: bool) -> Top:
    """Self by the last frame; total by stack, so that recursion counts once."""
    stacks = _stacks(reading, scope, profile_type, positive=False, tidy=tidy)
    width = max(len(stacks.names), 1)
    length = np.diff(stacks.offset)
    own, total = np.zeros(width, stacks.value.dtype), np.zeros(width, stacks.value.dtype)
    filled = length > 0
    np.add.at(own, stacks.frame[stacks.offset[1:][filled] - 1], stacks.value[filled])
    stack = np.repeat(np.arange(len(length)), length)
    once = _different(stack * width + stacks.frame)
    np.add.at(total, once % width, stacks.value[once // width])
    used = np.zeros(width, np.bool_)
    used[stacks.frame] = True
    rows = [
        TopRow(stacks.names[i], int(own[i]), int(total[i])) for i in np.flatnonzero(used).tolist()
    ]
    rows.sort(key=lambda row: (-row.self_value, -row.total_value, row.function))
    answer = Top(rows=tuple(rows[:limit]), total=int(stacks.value.sum()))
    if _beyond(answer):
        raise _overflow(reading, scope, profile_type)
    return answer


def select_series(
    reading: Reading,
    scope: Scope,
    *,
    profile_type: str,
    group_by: tuple[str, ...],
    steps: Steps,
    average: bool,
    limit: int,
    series_max: int,
) -> tuple[SeriesPoints, ...]:
    """A point per step that has samples; the largest series first. The scope is of the steps."""
    if not reading.parts.count:
        return ()
    choices = choose(reading, scope, profile_type)
    if choices is not None:
        found = direct.points(
            without_copies(reading, choices),
            group_by=group_by,
            steps=steps,
            average=average,
            budget=reading.budget,
        )
        return _largest(found, group_by, limit=limit, series_max=series_max)
    copies = _copies(reading, scope)
    statement = Statement()
    columns = "block, series_id, service, profile_type, time, profile_id, value"
    samples = _samples(reading, scope, statement, columns, profile_type, copies)
    keys = [f"{statement.label(name)} AS g{i}" for i, name in enumerate(group_by)]
    if any(name not in DATASET_LABELS for name in group_by):
        samples = f"({samples}) JOIN ({reading.tables['series']}) USING (block, series_id)"
    else:
        samples = f"({samples})"
    first, length = statement.bind(steps.first_ms), statement.bind(steps.step_ms)
    start = statement.bind(steps.start_ms)
    value = "sum(value)::DOUBLE" + (" / count(DISTINCT profile_id)" if average else "")
    table = reading.run(
        f"SELECT {', '.join([*keys, ''])} "
        f"{start} + (epoch_us(time) // 1000 - {first}) // {length} * {length} AS at_ms, "
        f"{value} AS value FROM {samples} GROUP BY ALL ORDER BY at_ms",
        statement,
        objects=True,
    )
    return _group(table, group_by, limit=limit, series_max=series_max)


def label_sets(reading: Reading, scope: Scope, *, names: tuple[str, ...]) -> tuple[Labels, ...]:
    """The different sets of these labels (all when none is named) that samples in range have, in
    order.
    """
    if not reading.parts.count:
        return ()
    if names and index_knows(scope, names):
        return tuple(sorted(_from_index(reading, scope, names)))
    choices = choose(reading, scope)
    if choices is not None:
        return direct.label_sets(
            choices, names, reading.blocks.cache, reading.budget, reading.check_groups
        )
    statement = Statement()
    columns = "DISTINCT block, series_id, service, profile_type"
    samples = _samples(reading, scope, statement, columns, "", CopyCounting.NONE)
    table = reading.run(
        "SELECT DISTINCT service, profile_type, map_entries(labels) AS labels "
        f"FROM ({samples}) JOIN ({reading.tables['series']}) USING (block, series_id)",
        statement,
        objects=True,
    )
    found: set[Labels] = set()
    for row in table.to_pylist():
        labels = dict(_pairs(row["labels"]))
        labels |= dataset_labels(row["service"], row["profile_type"])
        found.add(pick(labels, names))
    return tuple(sorted(found - {()}))


def label_names(reading: Reading, scope: Scope) -> set[str]:
    """The names of the labels that samples in range have."""
    choices = choose(reading, scope) if reading.parts.count else []
    if choices is not None:
        return direct.label_names(choices, reading.blocks.cache)
    return {name for labels in label_sets(reading, scope, names=()) for name, _ in labels}


def _stacks(
    reading: Reading, scope: Scope, profile_type: str, *, positive: bool, tidy: bool
) -> Stacks:
    if not reading.parts.count:
        nothing = np.zeros(0, dtype=np.int64)
        return Stacks(names=(), offset=np.zeros(1, dtype=np.int64), frame=nothing, value=nothing)
    found = _read_stacks(reading, scope, profile_type, folded=tidy)
    # A stack that is not drawn may not be added to one that was tidied to be equal to it. Only
    # DuckDB has each stack once, so that it can be left out.
    if found is None or (tidy and positive and (found.value < 0).any()):
        found = _query_stacks(reading, scope, profile_type, positive=positive)
    if not tidy:
        return found
    return go_stacks.tidy_stacks(
        found, profile_type=profile_type, drawn=positive, budget=reading.budget
    )


def _query_stacks(reading: Reading, scope: Scope, profile_type: str, *, positive: bool) -> Stacks:
    copies = _copies(reading, scope)
    statement = Statement()
    columns = "block, stack_id, value"
    samples = _samples(reading, scope, statement, columns, profile_type, copies)
    text = sql.stacks_with_values(
        statement,
        samples,
        reading.tables["stacks"],
        service=service_of(scope.matchers),
        positive=positive,
    )
    return _as_stacks(reading.run(text, statement), reading.budget)


def _read_stacks(
    reading: Reading, scope: Scope, profile_type: str, *, folded: bool
) -> Stacks | None:
    """Without DuckDB, when it is not too much and the range is one of whole microseconds."""
    stacks = sum(meta.file("stacks").rows for meta in reading.parts.blocks)
    if not sql.is_aligned(scope.range) or stacks > STACKS_MAX:
        return None
    choices = choose(reading, scope, profile_type)
    if choices is None or sum(choice.rows for choice in choices) > ROWS_MAX:
        return None
    if stacks + sum(choice.source.raw_stacks for choice in choices) > STACKS_MAX:
        return None
    return direct.stacks(
        without_copies(reading, choices),
        partial(reading.blocks.names, folded=folded),
        reading.budget,
    )


def _as_stacks(table: pa.Table, budget: AnswerBudget) -> Stacks:
    lists = table["functions"]
    frames = pc.sum(pc.list_value_length(lists)).as_py() or 0
    budget.take(frames * FRAME_BYTES, STACKS)
    if lists.null_count:
        raise Corrupt(
            "stacks that samples refer to are missing from their block; compare its objects with "
            "the checksums in the index"
        )
    flat = pa.chunked_array([chunk.flatten() for chunk in lists.chunks], pa.string())
    coded = flat.dictionary_encode().unify_dictionaries()
    names = coded.chunk(0).dictionary.to_pylist() if coded.num_chunks else []
    frame = np.concatenate([chunk.indices.to_numpy() for chunk in coded.chunks] or [[]])
    lengths = pc.list_value_length(lists).to_numpy()
    offset = np.concatenate(([0], np.cumsum(lengths, dtype=np.int64)))
    return Stacks(
        names=names,
        offset=offset,
        frame=frame.astype(np.int64),
        value=integers(table["value"]),
    )


def _different(keys: Int) -> Int:
    """Each once. They are nearly sorted, which np.unique does not use: it took most of `top`."""
    keys = np.sort(keys, kind="stable")
    return keys[np.concatenate(([True], keys[1:] != keys[:-1]))[: len(keys)]]


def _beyond(top: Top) -> bool:
    values = [
        top.total,
        *(value for row in top.rows for value in (row.self_value, row.total_value)),
    ]
    return not all(-ANSWER_MAX <= value <= ANSWER_MAX for value in values)


def _overflow(reading: Reading, scope: Scope, profile_type: str) -> InvalidInput:
    """One more look, at whose values they are: whoever asked wants the rest of the answer."""
    statement = Statement()
    columns = "block, series_id, service, profile_id, time, value"
    copies = _copies(reading, scope)
    samples = _samples(reading, scope, statement, columns, profile_type, copies)
    text = sql.heaviest_profiles(samples, reading.tables["series"], number=NAMED_MAX)
    rows = reading.run(text, statement).to_pylist()
    heaviest = [
        Heavy(
            profile=profile_id_text(row["profile_id"]),
            service=row["service"],
            time=row["time"].isoformat(),
            labels=_without_types(row["service"], _pairs(row["labels"])),
            weight=int(row["weight"]),
        )
        for row in rows
    ]
    series = label_sets(reading, scope, names=())
    return overflow(
        heaviest,
        weight=int(rows[0]["everything"]),
        series={_without_types(dict(labels)[SERVICE_NAME], labels) for labels in series},
        matchers=scope.matchers,
    )


def _without_types(service: str, labels: Labels) -> Labels:
    """A series whatever was measured of it."""
    kept = {name: value for name, value in labels if name not in TYPE_LABELS}
    return tuple(sorted({**kept, SERVICE_NAME: service}.items()))


def _samples(
    reading: Reading,
    scope: Scope,
    statement: Statement,
    columns: str,
    profile_type: str,
    copies: CopyCounting,
) -> str:
    return sql.chosen_samples(
        statement,
        reading.tables,
        columns=columns,
        matchers=scope.matchers,
        time=scope.range,
        profile_type=profile_type,
        copies=copies,
    )


def _copies(reading: Reading, scope: Scope) -> CopyCounting:
    """How to leave out what must not count; profiles are listed first when samples are many.

    Few samples are looked at themselves: in a block of many services the footer of `profiles` alone
    costs more. It is only needed for ranges that microseconds cannot say.
    """
    if sql.is_aligned(scope.range):
        if reading.parts.count == 1:
            return CopyCounting.NONE  # within one part a profile is there once
        if reading.parts.samples <= SAMPLES_HELD_MAX:
            return CopyCounting.AMONG_SAMPLES
    statement = Statement()
    text = sql.excluded_profiles(
        statement,
        reading.tables["profiles"],
        service=service_of(scope.matchers),
        time=scope.range,
    )
    excluded = reading.run(text, statement)
    if not excluded.num_rows:
        return CopyCounting.NONE  # as nearly always
    reading.register(sql.EXCLUDED, excluded)
    return CopyCounting.LISTED


def _group(
    table: pa.Table, group_by: tuple[str, ...], *, limit: int, series_max: int
) -> tuple[SeriesPoints, ...]:
    columns = [table[f"g{i}"].to_pylist() for i in range(len(group_by))]
    rows = zip(*columns, table["at_ms"].to_pylist(), table["value"].to_pylist(), strict=True)
    found = ((tuple(values), at, value) for *values, at, value in rows)
    return _largest(found, group_by, limit=limit, series_max=series_max)


def _largest(
    rows: Iterable[tuple[tuple[str, ...], int, float]],
    group_by: tuple[str, ...],
    *,
    limit: int,
    series_max: int,
) -> tuple[SeriesPoints, ...]:
    """Rows are values of the labels, a time and a value, those of a series in the order of time."""
    groups: dict[tuple[str, ...], list[Point]] = {}
    sums: dict[tuple[str, ...], float] = {}
    for values, at, value in rows:
        points = groups.get(values)
        if points is None:
            points = groups[values] = []
            sums[values] = 0.0
            if len(groups) > series_max:
                raise TooLarge(
                    f"grouping by {', '.join(group_by)} gives more than {series_max} series; group "
                    "by fewer labels or ask for fewer series by a selector"
                )
        points.append(Point(at, value))
        sums[values] += value
    named = {pick(dict(zip(group_by, values, strict=True)), group_by): values for values in groups}
    ordered = sorted(named, key=lambda labels: (-sums[named[labels]], labels))
    if limit > 0:
        ordered = ordered[:limit]
    return tuple(SeriesPoints(labels, tuple(groups[named[labels]])) for labels in ordered)


def _pairs(entries: list[dict[str, str]]) -> Labels:
    return tuple((entry["key"], entry["value"]) for entry in entries)


def index_knows(scope: Scope, names: tuple[str, ...]) -> bool:
    """Whether services and types alone decide, which the index lists for every dataset."""
    only_service = all(
        matcher.name == SERVICE_NAME and matcher.op == "=" for matcher in scope.matchers
    )
    return only_service and all(name in DATASET_LABELS for name in names)


def _from_index(reading: Reading, scope: Scope, names: tuple[str, ...]) -> set[Labels]:
    services = {m.value for m in scope.matchers}  # all of them must be the one
    by_service = any(name in (SERVICE_NAME, SERVICE_TOO) for name in names)
    datasets = {  # each once: many blocks have the same
        (dataset.service if by_service else "", profile_type)
        for dataset in reading.parts.datasets
        if services <= {dataset.service}
        for profile_type in dataset.types
    }
    return {_labels_of(*dataset, names) for dataset in datasets} - {()}


@lru_cache(maxsize=4096)
def _labels_of(service: str, profile_type: str, names: tuple[str, ...]) -> Labels:
    return pick(dataset_labels(service, profile_type), names)
