"""The labels of the series of a part, as codes: conditions and groups are about values. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from maar.model.errors import Corrupt
from maar.model.labels import SERVICE_NAME
from maar.ports.reader.query import Matcher
from maar.query.decide.select import PROFILE_TYPE, SERVICE_TOO, TYPE_FIELDS
from maar.query.decide.totals import Flags, Int, Int32, Totals

Regex = Callable[[str, Sequence[str]], Flags]  # which values a pattern matches as a whole


@dataclass(frozen=True, slots=True, kw_only=True)
class SeriesLabels:
    """Series i, in the order of ids, has the labels from offset[i] to offset[i + 1]."""

    ids: Int
    offset: Int
    key: Int32  # place in `names`
    item: Int32  # place in `values`
    names: tuple[str, ...]
    values: tuple[str, ...]
    text: Int  # characters of the labels of each series
    size: int  # bytes in memory

    def places(self, ids: Int) -> Int:
        """Where some series are; those that samples refer to must be there."""
        place = np.minimum(np.searchsorted(self.ids, ids), max(self.ids.size - 1, 0))
        if ids.size and (not self.ids.size or (self.ids[place] != ids).any()):
            raise Corrupt(
                "series that samples refer to are missing from their block; compare its objects "
                "with the checksums in the index"
            )
        return place

    def column(self, name: str) -> Int32:
        """The value of one label for every series, -1 where it has none."""
        column = np.full(self.ids.size, -1, np.int32)
        if name in self.names:
            found = np.flatnonzero(self.key == self.names.index(name))
            column[np.searchsorted(self.offset, found, side="right") - 1] = self.item[found]
        return column

    def of(self, place: int) -> dict[str, str]:
        first, end = int(self.offset[place]), int(self.offset[place + 1])
        keys, items = self.key[first:end].tolist(), self.item[first:end].tolist()
        return {self.names[key]: self.values[item] for key, item in zip(keys, items, strict=True)}

    def names_of(self, places: Int) -> set[str]:
        """The names of the labels, other than empty ones, that some series have."""
        wanted = np.zeros(self.ids.size, np.bool_)
        wanted[places] = True
        kept = np.repeat(wanted, np.diff(self.offset))
        if "" in self.values:
            kept &= self.item != self.values.index("")
        return {self.names[key] for key in np.unique(self.key[kept]).tolist()}


def labels_of_series(series: pa.Table) -> SeriesLabels:
    """From the columns series_id and labels; a series that is there twice counts once."""
    series = series.combine_chunks()
    ids = series["series_id"].to_numpy()
    ids, first = np.unique(ids, return_index=True)
    maps = series["labels"].combine_chunks()
    if isinstance(maps, pa.ChunkedArray):
        maps = maps.chunk(0) if maps.num_chunks else pa.array([], maps.type)
    maps = maps.take(pa.array(first))
    offset = maps.offsets.to_numpy().astype(np.int64)
    begin, end = int(offset[0]), int(offset[-1])
    names, key = _codes(maps.keys.slice(begin, end - begin))
    values, item = _codes(maps.items.slice(begin, end - begin))
    name_size, value_size = (np.array([*map(len, some), 0]) for some in (names, values))
    ends = np.append(0, np.cumsum(name_size[key] + value_size[item]))
    return SeriesLabels(
        ids=ids,
        offset=offset - begin,
        key=key,
        item=item,
        names=names,
        values=values,
        text=ends[offset[1:] - begin] - ends[offset[:-1] - begin],
        size=24 * ids.size
        + 8 * key.size
        + 2 * int(name_size.sum() + value_size.sum())
        + 80 * (len(names) + len(values))
        + 512,
    )


def matching_groups(
    totals: Totals,
    labels: SeriesLabels | None,
    matchers: Iterable[Matcher],
    profile_type: str,
    regex: Regex,
) -> Flags:
    """Which groups a query is about. Labels are None when no condition asks for them."""
    wanted = np.ones(totals.group_series.size, np.bool_)
    if profile_type:
        wanted &= _of_names(totals.types, lambda name: name == profile_type)[totals.group_type]
    for matcher in matchers:
        name = matcher.name
        if name in (SERVICE_NAME, SERVICE_TOO):
            wanted &= _matches(matcher, totals.services, regex)[totals.group_service]
        elif name == PROFILE_TYPE or name in TYPE_FIELDS:
            texts = [type_label(kind, name) for kind in totals.types]
            wanted &= _matches(matcher, texts, regex)[totals.group_type]
        else:
            assert labels is not None
            codes = labels.column(name)
            different, place = np.unique(codes, return_inverse=True)
            texts = [labels.values[code] if code >= 0 else "" for code in different.tolist()]
            flags = _matches(matcher, texts, regex)[place]
            wanted &= flags[labels.places(totals.group_series)]
    return wanted


def type_label(kind: str, name: str) -> str:
    """A label that follows from a profile type."""
    if name == PROFILE_TYPE:
        return kind
    fields = kind.split(":")
    place = TYPE_FIELDS.index(name)
    return fields[place] if place < len(fields) else ""


def group_values(
    totals: Totals, labels: SeriesLabels | None, groups: Int, name: str
) -> tuple[Int, list[str]]:
    """One label of some groups, as codes of a list; absent is ''."""
    if name in (SERVICE_NAME, SERVICE_TOO):
        return totals.group_service[groups].astype(np.int64), list(totals.services)
    if name == PROFILE_TYPE or name in TYPE_FIELDS:
        texts = [type_label(kind, name) for kind in totals.types]
        return totals.group_type[groups].astype(np.int64), texts
    assert labels is not None
    codes = labels.column(name)[labels.places(totals.group_series[groups])]
    different, place = np.unique(codes, return_inverse=True)
    return place, [labels.values[code] if code >= 0 else "" for code in different.tolist()]


def _matches(matcher: Matcher, texts: Sequence[str], regex: Regex) -> Flags:
    match matcher.op:
        case "=":
            return _of_names(texts, lambda text: text == matcher.value)
        case "!=":
            return _of_names(texts, lambda text: text != matcher.value)
        case "=~":
            return regex(matcher.value, texts)
        case _:
            return ~regex(matcher.value, texts)


def _of_names(names: Sequence[str], test: Callable[[str], bool]) -> Flags:
    return np.array([test(name) for name in names], np.bool_)


def _codes(texts: pa.Array) -> tuple[tuple[str, ...], Int32]:
    coded = texts if pa.types.is_dictionary(texts.type) else texts.dictionary_encode()
    return tuple(coded.dictionary.to_pylist()), coded.indices.to_numpy().astype(np.int32)
