"""What a part holds, profile by profile instead of sample by sample. Pure.

A *run* is a series of neighbouring samples of one profile, type and series: the samples of a part
are in that order. Labels, types and values over time follow from the runs alone, and they say
which rows of `samples` a flame graph needs.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

Int = npt.NDArray[np.int64]
Int32 = npt.NDArray[np.int32]
Flags = npt.NDArray[np.bool_]
Words = npt.NDArray[np.uint64]

COLUMNS = ("service", "profile_type", "series_id", "time", "profile_id", "value")  # of samples
RUN_BYTES = 36
TEXT_BYTES = 60  # of a text as a Python object, beside its characters
SAFE = float(1 << 62)  # sums of absolute values below it fit int64, however they were rounded


@dataclass(frozen=True, slots=True, kw_only=True)
class Totals:
    """The runs of a part. Runs of one group, which is a service, type and series, are together."""

    service: str  # whose they are; '': those of all
    services: tuple[str, ...]
    types: tuple[str, ...]
    group_service: Int32  # of each group: place in `services`
    group_type: Int32  # place in `types`
    group_series: Int
    group: Int32  # of each run
    time: Int  # microseconds
    profile: Int32  # place in `ids`
    start: Int  # its first row in `samples`
    rows: Int32
    value: Int
    ids: Words  # of the profiles, each once: two words
    first_time: int  # of all runs; 0 and -1 when there are none
    last_time: int
    size: int  # bytes in memory


@dataclass(frozen=True, slots=True, kw_only=True)
class Runs:
    """The runs of some neighbouring rows; text is a code of the piece's own dictionaries."""

    service: pa.Array
    kind: pa.Array
    series: Int
    time: Int
    words: Words
    start: Int
    rows: Int32
    value: Int


def runs_of(samples: pa.Table, *, first_row: int) -> Runs:
    """The runs of some rows of `samples`, the first of which is `first_row` of its file.

    The sum of a run fits int64: where it might not, every row is a run by itself.
    """
    samples = samples.combine_chunks()
    service, kind = (_encode(samples[name]) for name in ("service", "profile_type"))
    series = samples["series_id"].to_numpy()
    time = samples["time"].cast(pa.int64()).to_numpy()
    words = words_of(samples["profile_id"])
    value = samples["value"].to_numpy()
    if not value.size:
        starts = np.zeros(0, np.int64)
    else:
        change = np.ones(value.size, np.bool_)
        numbers = (service.indices.to_numpy(), kind.indices.to_numpy(), series, time)
        change[1:] = words[1:, 0] != words[:-1, 0]
        change[1:] |= words[1:, 1] != words[:-1, 1]
        for column in numbers:
            change[1:] |= column[1:] != column[:-1]
        starts = np.flatnonzero(change)
        if float(np.abs(value.astype(np.float64)).sum()) >= SAFE:
            starts = np.arange(value.size)
    chosen = pa.array(starts)
    return Runs(
        service=service.take(chosen),
        kind=kind.take(chosen),
        series=series[starts],
        time=time[starts],
        words=words[starts],
        start=starts + first_row,
        rows=np.diff(np.append(starts, value.size)).astype(np.int32),
        value=np.add.reduceat(value, starts) if starts.size else value,
    )


def words_of(ids: pa.ChunkedArray) -> Words:
    """Ids of 16 bytes as two words each."""
    if not len(ids):
        return np.zeros((0, 2), np.uint64)
    array = ids.combine_chunks()
    if isinstance(array, pa.ChunkedArray):
        array = array.chunk(0)
    words = np.frombuffer(array.buffers()[1], np.uint64)
    first = 2 * array.offset
    return words[first : first + 2 * len(array)].reshape(-1, 2)


def totals_of(pieces: Sequence[Runs], *, service: str = "") -> Totals:
    """All runs of a part, or those of one service of it."""
    services, service_code = _join_codes([piece.service for piece in pieces])
    types, type_code = _join_codes([piece.kind for piece in pieces])
    series = _all([piece.series for piece in pieces])
    time = _all([piece.time for piece in pieces])
    words = np.concatenate([np.zeros((0, 2), np.uint64), *(piece.words for piece in pieces)])
    start = _all([piece.start for piece in pieces])
    rows = np.concatenate([np.zeros(0, np.int32), *(piece.rows for piece in pieces)])
    value = _all([piece.value for piece in pieces])
    if service:
        code = services.index(service) if service in services else -1
        kept = np.flatnonzero(service_code == code)
        service_code, type_code, series = service_code[kept], type_code[kept], series[kept]
        time, words, start = time[kept], words[kept], start[kept]
        rows, value = rows[kept], value[kept]
    change = np.ones(series.size, np.bool_)
    change[1:] = series[1:] != series[:-1]
    change[1:] |= service_code[1:] != service_code[:-1]
    change[1:] |= type_code[1:] != type_code[:-1]
    heads = np.flatnonzero(change)
    ids, profile = _different(words)
    text = sum(TEXT_BYTES + len(name) for name in [*services, *types])
    return Totals(
        service=service,
        services=tuple(services),
        types=tuple(types),
        group_service=service_code[heads],
        group_type=type_code[heads],
        group_series=series[heads],
        group=(np.cumsum(change) - 1).astype(np.int32),
        time=time,
        profile=profile,
        start=start,
        rows=rows,
        value=value,
        ids=ids,
        first_time=int(time.min()) if time.size else 0,
        last_time=int(time.max()) if time.size else -1,
        size=RUN_BYTES * series.size + 16 * len(ids) + 24 * heads.size + text + 1024,
    )


def hidden_runs(totals: Totals, masks: Iterable[tuple[str, int, int]]) -> Flags:
    """Runs that were deleted, by masks of a service ('': all) and a range of microseconds."""
    found = np.zeros(totals.time.size, np.bool_)
    for service, start, end in masks:
        here = (totals.time >= start) & (totals.time < end)
        if service:
            of_service = np.array([name == service for name in totals.services], np.bool_)
            here &= of_service[totals.group_service][totals.group]
        found |= here
    return found


def share_words(ids: Sequence[Words]) -> bool:
    """Whether the same profile may be in two parts; each part has each of its ids once.

    By one word of two: equal ids have equal words.
    """
    words = np.concatenate([np.zeros(0, np.uint64), *(each[:, 0] for each in ids)])
    words.sort()
    return bool((words[1:] == words[:-1]).any())


def first_copies(ids: Sequence[Words]) -> list[Flags]:
    """Of ids that several parts have, the first part's count; a flag for each id of each part."""
    part = np.repeat(np.arange(len(ids)), [len(each) for each in ids])
    words = np.concatenate([np.zeros((0, 2), np.uint64), *ids])
    order = np.lexsort((part, words[:, 1], words[:, 0]))
    ordered = words[order]
    counts = np.ones(len(words), np.bool_)
    counts[order[1:]] = (ordered[1:] != ordered[:-1]).any(axis=1)
    return np.split(counts, np.cumsum([len(each) for each in ids])[:-1])


def _encode(column: pa.ChunkedArray) -> pa.DictionaryArray:
    array = column.combine_chunks()
    if isinstance(array, pa.ChunkedArray):
        array = array.chunk(0)
    return array if pa.types.is_dictionary(array.type) else array.dictionary_encode()


def _join_codes(arrays: Sequence[pa.DictionaryArray]) -> tuple[list[str], Int32]:
    """Codes of one list of names, from codes of each piece's own."""
    number: dict[str, int] = {}
    codes = [np.zeros(0, np.int32)]
    for array in arrays:
        names = array.dictionary.to_pylist()
        fresh = np.array([number.setdefault(name, len(number)) for name in names], np.int32)
        codes.append(fresh[array.indices.to_numpy()] if len(array) else codes[0])
    return list(number), np.concatenate(codes)


def _all(arrays: Sequence[Int]) -> Int:
    return np.concatenate([np.zeros(0, np.int64), *arrays])


def _different(words: Words) -> tuple[Words, Int32]:
    """Each id once, and which of them every run has."""
    order = np.lexsort((words[:, 1], words[:, 0]))
    ordered = words[order]
    fresh = np.ones(len(words), np.bool_)
    fresh[1:] = (ordered[1:] != ordered[:-1]).any(axis=1)
    place = np.empty(len(words), np.int32)
    place[order] = np.cumsum(fresh) - 1
    return ordered[fresh], place
