"""Answers from the runs of a query's parts, without DuckDB."""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Sequence
from typing import Any

import numpy as np

from maar.model.errors import Corrupt, TooLarge
from maar.model.labels import Labels
from maar.query.decide.budget import FRAME_BYTES, OBJECT_FACTOR, ROWS, STACKS, AnswerBudget
from maar.query.decide.flamegraph import Stacks
from maar.query.decide.frame_names import FrameNames
from maar.query.decide.label_columns import SeriesLabels, group_values
from maar.query.decide.select import DATASET_LABELS, dataset_labels, pick
from maar.query.decide.stack_sums import StackFrames, StackSums
from maar.query.decide.steps import Steps
from maar.query.decide.totals import SAFE, Int, Int32
from maar.query.read.choose import Choice, read_labels
from maar.query.read.part_cache import PartCache, Weighed
from maar.query.read.reading import translate_errors

LABELS_BYTES = 400  # of a set of labels as Python objects, beside its text
KEY_BYTES = 250  # of the name of a block and what was chosen of it, likewise
POINT_BYTES = 16
NamesOf = Callable[[Sequence[StackFrames]], FrameNames]  # the names of some parts


def label_names(choices: Sequence[Choice], cache: PartCache) -> set[str]:
    """The names of the labels that some runs have."""
    return {name for (name,) in _unite_kept(choices, "names", _names, cache).what}


def label_sets(
    choices: Sequence[Choice],
    names: tuple[str, ...],
    cache: PartCache,
    budget: AnswerBudget,
    check: Callable[[int], None],
) -> tuple[Labels, ...]:
    """The different sets of some labels (all when none is named) that some runs have, in order.

    `check` is told how many groups are looked at, and raises when that takes too long.
    """
    before, looked_at = budget.taken, 0

    def make(choice: Choice) -> set[Labels]:
        nonlocal looked_at
        groups = choice.groups
        looked_at += groups.size
        check(looked_at)
        if names:
            made = _sets_by_name(choice, groups, names)
            budget.take(_weigh(made), ROWS)
            return made
        places = read_labels(choice.source).places(choice.totals.group_series[groups])
        budget.take(_weight_of_series(choice, places), ROWS)
        return _whole_sets(choice, groups, places.tolist())

    found = _unite_kept(choices, ("sets", names), make, cache)
    budget.back_to(before)
    budget.take(found.size, ROWS)
    united: tuple[Labels, ...] = found.what
    return united


def _unite_kept(
    choices: Sequence[Choice],
    what: Hashable,
    make: Callable[[Choice], set[Any]],
    cache: PartCache,
) -> Weighed:
    """What is made of each part, each once and in order. It is kept for the same groups of the same
    blocks, which a range that moves with the clock most often has.
    """
    keys = tuple(choice.key for choice in choices if choice.key is not None)

    def of_blocks() -> Weighed:
        made = _unite(make(choice) for choice in choices if choice.key is not None)
        size = LABELS_BYTES + _text_bytes(what) + _weigh(made)
        return Weighed(made, size + sum(KEY_BYTES + len(key[-1]) for key in keys))

    found: Weighed = cache.get((what, keys), of_blocks) if keys else Weighed((), 0)
    fresh = [make(choice) for choice in choices if choice.key is None]
    if not fresh:
        return found
    united = _unite([found.what, *fresh])
    return Weighed(united, _weigh(united))


def _weigh(sets: Collection[Any]) -> int:
    """A label may be as long as two thousand characters, and an answer says each that often."""
    return LABELS_BYTES * len(sets) + sum(map(_text_bytes, sets))


def _weight_of_series(choice: Choice, places: Int) -> int:
    """The same of some series, before there is an object of any."""
    return LABELS_BYTES * places.size + int(read_labels(choice.source).text[places].sum())


def _text_bytes(what: Any) -> int:
    """Of all text in nested tuples: what is asked for by name may be as long as a request."""
    return len(what) if isinstance(what, str) else sum(map(_text_bytes, what))


def _unite(parts: Iterable[Iterable[Any]]) -> tuple[Any, ...]:
    found: set[Any] = set()
    for part in parts:
        found.update(part)
    return tuple(sorted(found - {()}))


def _names(choice: Choice) -> set[tuple[str]]:
    totals, groups = choice.totals, choice.groups
    labels = read_labels(choice.source)
    found = labels.names_of(labels.places(totals.group_series[groups]))
    services = [totals.services[code] for code in _different(totals.group_service[groups])]
    kinds = [totals.types[code] for code in _different(totals.group_type[groups])]
    # Which of these labels a dataset has depends on its service alone, or on its type alone.
    for own in [
        *(dataset_labels(service, kinds[0]) for service in services),
        *(dataset_labels(services[0], kind) for kind in kinds[1:]),
    ]:
        found.update(name for name, value in own.items() if value)
    return {(name,) for name in found}


def points(
    choices: Sequence[Choice],
    *,
    group_by: tuple[str, ...],
    steps: Steps,
    average: bool,
    budget: AnswerBudget,
) -> Iterator[tuple[tuple[str, ...], int, float]]:
    """Values of the labels, the point in milliseconds and the value; by labels, then by time."""
    number: dict[tuple[str, ...], int] = {}
    if not choices:
        return
    group = np.concatenate([_group_numbers(choice, group_by, number) for choice in choices])
    time_us = np.concatenate([c.totals.time[c.runs] for c in choices])
    step = (time_us // 1000 - steps.first_ms) // steps.step_ms
    value: Any = np.concatenate([c.totals.value[c.runs] for c in choices])
    profile = _profiles(choices)
    order = np.lexsort((profile, step, group)) if average else np.lexsort((step, group))
    group, step, value, profile = group[order], step[order], value[order], profile[order]
    fresh = np.ones(group.size, np.bool_)
    fresh[1:] = (group[1:] != group[:-1]) | (step[1:] != step[:-1])
    heads = np.flatnonzero(fresh)
    if float(np.abs(value.astype(np.float64)).sum()) >= SAFE:
        value = value.astype(object)  # Python's integers cannot wrap
    sums = [float(each) for each in np.add.reduceat(value, heads).tolist()]
    if average:
        once = fresh.copy()
        once[1:] |= profile[1:] != profile[:-1]
        profiles = np.add.reduceat(once.astype(np.int64), heads).tolist()
        sums = [each / count for each, count in zip(sums, profiles, strict=True)]
    budget.take(heads.size * POINT_BYTES * (1 + OBJECT_FACTOR), ROWS)
    labels = list(number)
    budget.take(_weigh(labels), ROWS)
    at_ms = (steps.start_ms + step[heads] * steps.step_ms).tolist()
    for place, at, each in zip(group[heads].tolist(), at_ms, sums, strict=True):
        yield labels[place], at, each


def stacks(choices: Sequence[Choice], names_of: NamesOf, budget: AnswerBudget) -> Stacks | None:
    """The stacks of some runs with their values; None when 64 bits might not hold the sums, or when
    the stacks of all parts are too much: thousands of segments may have the same ones, and DuckDB
    adds those up before it hands them out.
    """
    before = budget.taken
    try:
        return _of_all_parts(choices, names_of, budget)
    except TooLarge:
        budget.back_to(before)
        return None


def _of_all_parts(
    choices: Sequence[Choice], names_of: NamesOf, budget: AnswerBudget
) -> Stacks | None:
    parts: list[StackSums] = []
    weight = 0.0
    for choice in choices:
        with translate_errors():
            sums = choice.source.sums(choice.runs)
        weight += sums.weight
        budget.take(sums.stacks.size, STACKS)
        if not sums.complete:
            raise Corrupt(
                "stacks that samples refer to are missing from their block; compare its objects "
                "with the checksums in the index"
            )
        if weight >= SAFE:
            return None
        budget.take(sums.count_frames() * FRAME_BYTES, STACKS)
        parts.append(sums)
    names = names_of([sums.stacks for sums in parts])
    gathered = [sums.gather(rank) for sums, rank in zip(parts, names.rank, strict=True)]
    lengths = [np.zeros(1, np.int64), *(length for length, _, _ in gathered)]
    return Stacks(
        names=names.texts,
        offset=np.cumsum(np.concatenate(lengths)),
        frame=np.concatenate([np.zeros(0, np.int32), *(frame for _, frame, _ in gathered)]),
        value=np.concatenate([np.zeros(0, np.int64), *(value for _, _, value in gathered)]),
        known=names,
    )


def _profiles(choices: Sequence[Choice]) -> Int:
    """A number for the profile of each run; no two parts have the same profile any more."""
    before = np.cumsum([0, *(len(choice.totals.ids) for choice in choices)])
    return np.concatenate(
        [c.totals.profile[c.runs] + first for c, first in zip(choices, before, strict=False)]
    )


def _group_numbers(
    choice: Choice, group_by: tuple[str, ...], number: dict[tuple[str, ...], int]
) -> Int:
    """The number of each run's values of the labels."""
    totals, groups = choice.totals, choice.groups
    columns = _columns(choice, groups, group_by)
    place = np.zeros(totals.group_series.size, np.int64)
    rows = zip(*columns, strict=True) if columns else (() for _ in groups)
    place[groups] = [number.setdefault(tuple(values), len(number)) for values in rows]
    return place[totals.group[choice.runs]]


def _columns(choice: Choice, groups: Int, names: tuple[str, ...]) -> list[list[str]]:
    """The values of some labels for some groups."""
    labels = _labels_for(choice, names)
    columns = []
    for name in names:
        codes, texts = group_values(choice.totals, labels, groups, name)
        columns.append([texts[code] for code in codes.tolist()])
    return columns


def _labels_for(choice: Choice, names: tuple[str, ...]) -> SeriesLabels | None:
    if all(name in DATASET_LABELS for name in names):
        return None
    return read_labels(choice.source)


def _sets_by_name(choice: Choice, groups: Int, names: tuple[str, ...]) -> set[Labels]:
    rows = set(zip(*_columns(choice, groups, names), strict=True))
    return {pick(dict(zip(names, values, strict=True)), names) for values in rows}


def _whole_sets(choice: Choice, groups: Int, places: list[int]) -> set[Labels]:
    """`places` are those of the groups' series."""
    labels = read_labels(choice.source)
    datasets = _datasets(choice, groups)
    own = {each: dataset_labels(*each) for each in set(datasets)}
    of = {place: labels.of(place) for place in set(places)}
    return {
        tuple(sorted([pair for pair in (of[place] | own[dataset]).items() if pair[1]]))
        for place, dataset in zip(places, datasets, strict=True)
    }


def _datasets(choice: Choice, groups: Int) -> list[tuple[str, str]]:
    """The service and type of some groups."""
    totals = choice.totals
    services, kinds = totals.group_service[groups].tolist(), totals.group_type[groups].tolist()
    return [
        (totals.services[service], totals.types[kind])
        for service, kind in zip(services, kinds, strict=True)
    ]


def _different(codes: Int32) -> list[int]:
    return np.flatnonzero(np.bincount(codes)).tolist()
