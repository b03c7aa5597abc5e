"""String labels of samples become series labels where that can be undone; the rest stays put.

A label is promoted to the sample's series when it could as well have been a label of the profile:
a text under a plain name, once in the sample, and not a name that the profile's own labels use.
Ids of spans, traces and profiles are never promoted, nor anything of a profile that would make
more series than `SERIES_PER_PROFILE_MAX`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from maar.block.decode.batch import Batch
from maar.block.decode.interning import intern_lists
from maar.block.format import hashing
from maar.block.format.hashing import ALL_BITS, Int
from maar.block.format.tables import LAYOUTS, SAMPLES, SERIES
from maar.model.labels import (
    LABELS_MAX,
    NAME_LENGTH_MAX,
    VALUE_LENGTH_MAX,
    Labels,
    series_id,
    value_of,
)

SERIES_PER_PROFILE_MAX = 128
NEVER_PROMOTED = frozenset({"span_id", "trace_id", "profile_id"})
SPAN_ID = "span_id"
VERSION_LABELS = ("version", "service_version")
SAMPLES_AT_ONCE = 1 << 17  # whose labels are split: each costs a hundred bytes for that long

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


class SampleSeries(NamedTuple):
    """The series id of each sample, in half the memory."""

    ids: Int  # of all series
    number: Any  # int32, of each sample

    def __getitem__(self, samples: Any) -> Any:
        return self.ids[self.number[samples]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Labelled:
    """Which series each sample and each profile belongs to, and what stays on the sample."""

    series: pa.Table
    profile_series: Int  # series id of each profile's own labels
    sample_series: SampleSeries
    sample_labels: pa.Array | None  # per sample; None when nothing stays
    span_id: pa.Array | None
    collisions: int


def split_labels(batch: Batch, *, mask: int, at_once: int = SAMPLES_AT_ONCE) -> Labelled:
    """Split the samples' labels between series and samples, some profiles at a time.

    What becomes of a label is decided within its profile, so the result is the same for any number.
    """
    series = _Series()
    base = [series.number(profile.service, profile.labels) for profile in batch.profiles]
    profile_series = np.array(base, np.int64)
    number = np.repeat(profile_series.astype(np.int32), np.diff(batch.sample_base))
    verbatim: list[pa.Array] = []
    spans: list[pa.Array] = []
    if batch.label_key.size:
        span_key = pc.index(batch.strings.text, SPAN_ID).as_py()
        for first, part in _parts(batch, at_once):
            samples = part.sample_label_offset.size - 1
            verbatim.append(pa.nulls(samples, SAMPLES.field("sample_labels").type))
            spans.append(pa.nulls(samples, pa.string()))
            if not part.label_key.size:
                continue
            owner = part.profile_of_sample
            sample = np.repeat(np.arange(samples), np.diff(part.sample_label_offset))
            promoted = _promotable(part, sample, owner[sample])
            if promoted.any():
                promoted, sets = _limit_series(part, sample, owner, promoted)
                own = profile_series[first : first + len(part.profiles)]
                start = int(batch.sample_base[first])
                number[start : start + samples] = _series_of_sets(part, owner, sets, series, own)
            if not promoted.all():
                verbatim[-1] = _verbatim(part, sample[~promoted], ~promoted, samples)
            spans[-1] = _spans(part, sample, samples, span_key)
    ids, collisions = series.ids(mask=mask)
    return Labelled(
        series=series.table(ids),
        profile_series=ids[profile_series],
        sample_series=SampleSeries(ids, number),
        sample_labels=_join_parts(verbatim),
        span_id=_join_parts(spans),
        collisions=collisions,
    )


def _parts(batch: Batch, at_once: int) -> Iterator[tuple[int, Batch]]:
    """Whole profiles with at least so many samples, or the rest; and the first one's number."""
    first, profiles = 0, len(batch.profiles)
    while first < profiles:
        reached = int(batch.sample_base[first]) + at_once
        end = min(profiles, int(np.searchsorted(batch.sample_base, reached)))
        base = batch.sample_base[first : end + 1]
        offset = batch.sample_label_offset[int(base[0]) : int(base[-1]) + 1]
        labels = slice(int(offset[0]), int(offset[-1]))
        yield (
            first,
            replace(
                batch,
                profiles=batch.profiles[first:end],
                sample_base=base - base[0],
                sample_label_offset=offset - offset[0],
                label_key=batch.label_key[labels],
                label_str=batch.label_str[labels],
                label_num=batch.label_num[labels],
                label_num_unit=batch.label_num_unit[labels],
            ),
        )
        first = end


def _join_parts(parts: list[pa.Array]) -> pa.Array | None:
    """One column; None when it has nothing."""
    if all(part.null_count == len(part) for part in parts):
        return None
    return pa.concat_arrays(parts)


class _Series:
    """Different (service, labels), numbered in order of appearance."""

    def __init__(self) -> None:
        self._numbers: dict[tuple[str, Labels], int] = {}

    def number(self, service: str, labels: Labels) -> int:
        return self._numbers.setdefault((service, labels), len(self._numbers))

    def ids(self, *, mask: int) -> tuple[Int, int]:
        hashes = [series_id(labels) & ALL_BITS for _, labels in self._numbers]
        return hashing.distinct_ids(np.array(hashes, np.uint64), mask=mask)

    def table(self, ids: Int) -> pa.Table:
        services = [service for service, _ in self._numbers]
        labels = [labels for _, labels in self._numbers]
        return pa.Table.from_arrays(
            [
                pa.array(ids),
                pa.array(services, pa.string()).dictionary_encode(),
                pa.array([_version(each) for each in labels], pa.string()),
                pa.array(labels, SERIES.field("labels").type),
            ],
            schema=LAYOUTS["series"].working,
        )


def _version(labels: Labels) -> str | None:
    return next((found for name in VERSION_LABELS if (found := value_of(labels, name))), None)


def _promotable(batch: Batch, sample: Int, profile: Int) -> Any:
    """One flag per label: could it as well have been a label of the profile?"""
    keys, key = np.unique(batch.label_key, return_inverse=True)
    names = batch.strings.text.take(pa.array(keys)).to_pylist()
    plain = np.array([_plain_name(name) for name in names])
    text = (batch.label_str != 0) & (batch.label_num == 0) & (batch.label_num_unit == 0)
    flags = plain[key] & text & _plain_value(batch)
    flags &= ~_own_names(batch, names, key, profile)
    pair = sample * keys.size + key
    _, which, times = np.unique(pair, return_inverse=True, return_counts=True)
    flags &= times[which] == 1
    owned = np.array([len(raw.labels) for raw in batch.profiles])
    added = np.bincount(sample[flags], minlength=int(sample.max()) + 1)
    return flags & (owned[profile] + added[sample] <= LABELS_MAX)


def _plain_name(name: str) -> bool:
    return (
        name not in NEVER_PROMOTED
        and len(name) <= NAME_LENGTH_MAX
        and _NAME.fullmatch(name) is not None
    )


def _plain_value(batch: Batch) -> Any:
    values, which = np.unique(batch.label_str, return_inverse=True)
    text = batch.strings.text.take(pa.array(values))
    short = pc.less_equal(pc.utf8_length(text), VALUE_LENGTH_MAX)
    clean = pc.invert(pc.match_substring_regex(text, r"[\x00-\x1f\x7f]"))
    return pc.and_(short, clean).to_numpy(zero_copy_only=False)[which]


def _own_names(batch: Batch, names: list[str], key: Int, profile: Int) -> Any:
    """Is the label's name one of the profile's own?"""
    different, which = np.unique(profile * len(names) + key, return_inverse=True)
    own = [{name for name, _ in raw.labels} for raw in batch.profiles]
    taken = [names[pair % len(names)] in own[pair // len(names)] for pair in different.tolist()]
    return np.array(taken)[which]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Sets:
    """The different sets of promoted labels, each of one profile."""

    number: Int  # set of each sample
    first: Int  # a sample that has the set
    label: Int  # rows of labels, by name within each sample
    offset: Int  # per sample


def _limit_series(batch: Batch, sample: Int, owner: Int, promoted: Any) -> tuple[Any, _Sets]:
    sets = _sets(batch, sample, owner, promoted)
    counts = np.bincount(owner[sets.first], minlength=len(batch.profiles))
    over = counts > SERIES_PER_PROFILE_MAX
    if not over.any():
        return promoted, sets
    promoted = promoted & ~over[owner[sample]]
    return promoted, _sets(batch, sample, owner, promoted)


def _sets(batch: Batch, sample: Int, owner: Int, promoted: Any) -> _Sets:
    rows = np.flatnonzero(promoted)
    rows = rows[np.lexsort((batch.label_key[rows], sample[rows]))]
    offset = np.zeros(owner.size + 1, np.int64)
    np.cumsum(np.bincount(sample[rows], minlength=owner.size), out=offset[1:])
    # Each list is (profile, key, value, key, value …).
    words = np.empty(owner.size + 2 * rows.size, np.int64)
    starts = 2 * offset + np.arange(owner.size + 1)
    words[starts[:-1]] = owner
    place = starts[sample[rows]] + 1 + 2 * (np.arange(rows.size) - offset[sample[rows]])
    words[place] = batch.label_key[rows]
    words[place + 1] = batch.label_str[rows]
    number, first = intern_lists(words, starts)
    return _Sets(number=number, first=first, label=rows, offset=offset)


def _series_of_sets(
    batch: Batch, owner: Int, sets: _Sets, series: _Series, profile_series: Int
) -> Int:
    text = batch.strings.text
    numbers = np.empty(sets.first.size, np.int64)
    for place, sample in enumerate(sets.first.tolist()):
        profile = int(owner[sample])
        rows = sets.label[sets.offset[sample] : sets.offset[sample + 1]]
        if not rows.size:
            numbers[place] = profile_series[profile]
            continue
        raw = batch.profiles[profile]
        own = zip(
            text.take(pa.array(batch.label_key[rows])).to_pylist(),
            text.take(pa.array(batch.label_str[rows])).to_pylist(),
            strict=True,
        )
        numbers[place] = series.number(raw.service, tuple(sorted((*raw.labels, *own))))
    return numbers[sets.number]


def _verbatim(batch: Batch, sample: Int, rows: Any, samples: int) -> pa.Array:
    """Labels that stay on their sample, in their order; null where none does."""
    text = batch.strings.text
    counts = np.bincount(sample, minlength=samples)
    offset = np.zeros(samples + 1, np.int32)
    np.cumsum(counts, out=offset[1:])
    kind = SAMPLES.field("sample_labels").type
    labels = pa.StructArray.from_arrays(
        [
            text.take(pa.array(batch.label_key[rows])),
            text.take(pa.array(batch.label_str[rows])),
            pa.array(batch.label_num[rows]),
            text.take(pa.array(batch.label_num_unit[rows])),
        ],
        fields=list(kind.value_type),
    )
    return pa.ListArray.from_arrays(pa.array(offset), labels, type=kind, mask=pa.array(counts == 0))


def _spans(batch: Batch, sample: Int, samples: int, key: int) -> pa.Array:
    """The span of each sample that names one: a copy for SQL, the label itself stays."""
    rows = np.flatnonzero((batch.label_key == key) & (batch.label_str != 0))
    found = np.zeros(samples, np.int64)
    found[sample[rows]] = batch.label_str[rows]
    return batch.strings.text.take(pa.array(found, mask=found == 0))
