"""Raw profiles to the five tables of a block, without a Python loop over anything but profiles."""

from __future__ import annotations

import gzip
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

import numpy as np
import pyarrow as pa

from maar.block.decode.batch import Batch, batch_of
from maar.block.decode.frames import frames_of
from maar.block.decode.gather import Gather
from maar.block.decode.interning import ID_WORDS, SLOTS, SeenIds
from maar.block.decode.profile_rows import profiles_of
from maar.block.decode.sample_labels import split_labels
from maar.block.decode.sample_rows import samples_of
from maar.block.decode.stack_rows import stacks_of
from maar.block.decode.weight import surely_weighs_less, weight
from maar.block.format.hashing import ALL_BITS
from maar.block.format.order import same_as_before, sorted_table
from maar.block.format.tables import LAYOUTS, ColumnMakers
from maar.model.block import TABLES
from maar.model.errors import MalformedProfile, TooLarge
from maar.model.ids import ANONYMOUS, ProfileId
from maar.model.profile import RawProfile
from maar.pprof import wire
from maar.pprof.columns import Columns
from maar.pprof.compile_once import once
from maar.pprof.decode import columns_of
from maar.pprof.decode import warm as warm_decoder
from maar.pprof.gzip import gunzip_counted
from maar.pprof.tables import TableRoom, read_tables
from maar.pprof.wire import Tables

RAW_SIZE_MAX = 256 << 20  # no profile that was admitted is larger than this when decompressed
WEIGHT_MAX = 512 << 20  # a profile that swells to more is kept raw: it would fail its neighbours
BATCH_WEIGHT = 64 << 20  # profiles that are made into tables together weigh no more than this
WHOLE = {name: tuple(LAYOUTS[name].schema.names) for name in TABLES}


@dataclass(frozen=True, slots=True)
class Decoded:
    """Tables in their order, text that repeats as dictionaries; and what could not be read."""

    tables: dict[str, pa.Table]
    quarantined: list[tuple[RawProfile, str]] = field(default_factory=list)
    collisions: int = 0


def decode_profiles(profiles: Iterable[RawProfile], *, mask: int = ALL_BITS) -> Decoded:
    """The tables of some profiles of one tenant.

    What cannot be decoded is returned with the cause and holds up nobody (S17). `mask` weakens
    the ids, so that tests can meet collisions.
    """
    (decoded,) = decode_in_batches(profiles, mask=mask, batch_weight=None)
    return decoded


def decode_in_batches(
    profiles: Iterable[RawProfile],
    *,
    mask: int = ALL_BITS,
    batch_weight: int | None = BATCH_WEIGHT,
    only: Mapping[str, Sequence[str]] | None = None,
) -> Iterator[Decoded]:
    """The same in one part or more, so that memory is bounded whatever the profiles swell to.

    Whoever adds rows up asks for `only` some columns of some tables, and gets them in no order:
    half of the work.
    """
    good: list[RawProfile] = []
    columns: list[Columns] = []
    quarantined: list[tuple[RawProfile, str]] = []
    held = 0
    for profile in profiles:
        try:
            decoded, size = decode_one(profile)
        except (MalformedProfile, TooLarge) as error:
            quarantined.append((profile, str(error)))
            continue
        if good and batch_weight is not None and held + size > batch_weight:
            yield _of_batch(good, columns, quarantined, mask=mask, only=only)
            good, columns, quarantined, held = [], [], [], 0
        good.append(profile)
        columns.append(decoded)
        held += size
    yield _of_batch(good, columns, quarantined, mask=mask, only=only)


def empty_tables() -> dict[str, pa.Table]:
    return {name: layout.working.empty_table() for name, layout in LAYOUTS.items()}


def warm() -> None:
    """Load everything that decoding and merging need, or have it compiled (seconds, once)."""
    warm_decoder()
    once("merge", wire.walk.stats.cache_path, _call_all)


def _call_all() -> None:
    # One sample with a value, a stack of an unnamed location, and a string label.
    raw = bytes.fromhex(
        "0a040801 1002 120a 0a0101 120105 1a02 0803 2202 0801 3200 3201 61 3201 62 3201 63".replace(
            " ", ""
        )
    )
    profile = RawProfile(
        id=ProfileId(bytes(16)),
        tenant=ANONYMOUS,
        service="warm",
        labels=(("service_name", "warm"),),
        types=("::::",),
        time_ns=0,
        duration_ns=0,
        samples=1,
        payload=gzip.compress(raw, mtime=0),
        raw_size=len(raw),
    )
    SeenIds(seed="").add(np.zeros((SLOTS + 1, ID_WORDS)))  # so many that its table grows
    gathered = Gather(seed="")
    gathered.add(profile, *read_one(profile))
    list(gathered.tables().samples())
    for table in decode_profiles([profile]).tables.values():
        same_as_before(pa.concat_tables([table, table]).combine_chunks())


def read_one(profile: RawProfile, room: TableRoom | None = None) -> tuple[bytes, Tables]:
    """Its bytes and what they say; MalformedProfile or TooLarge when it cannot be made into tables.
    With a room, the tables are good until its next use.
    """
    raw = gunzip_counted(profile.payload, size=profile.raw_size, limit=RAW_SIZE_MAX)
    tables = read_tables(raw, room)
    types, samples = tables.types.shape[1], tables.samples.shape[1] - 1
    if samples and not types:
        raise MalformedProfile("the profile has samples and no sample type: they have no values")
    if len(profile.types) != types:
        raise MalformedProfile(
            f"the profile has {types} sample types, and was stored as having {len(profile.types)}"
        )
    if not surely_weighs_less(tables, WEIGHT_MAX):
        size = weight(tables)
        if size > WEIGHT_MAX:
            raise TooLarge(
                f"the profile would take {size} bytes as tables, over the limit of {WEIGHT_MAX}: "
                "it refers very often to long strings or to locations of many lines"
            )
    return raw, tables


def decode_one(profile: RawProfile) -> tuple[Columns, int]:
    """Its columns, and about how many bytes they will have as tables."""
    raw, tables = read_one(profile)
    return columns_of(raw, tables), weight(tables)


def _of_batch(
    good: list[RawProfile],
    columns: list[Columns],
    quarantined: list[tuple[RawProfile, str]],
    *,
    mask: int,
    only: Mapping[str, Sequence[str]] | None,
) -> Decoded:
    if not good:
        return Decoded(empty_tables(), quarantined)
    tables, collisions = _tables(batch_of(good, columns), mask=mask, wanted=only or WHOLE)
    if not only:
        tables = {name: sorted_table(table, LAYOUTS[name].key) for name, table in tables.items()}
    return Decoded(tables, quarantined, collisions)


def _tables(
    batch: Batch, *, mask: int, wanted: Mapping[str, Sequence[str]]
) -> tuple[dict[str, pa.Table], int]:
    frames = frames_of(batch, mask=mask)
    labels = split_labels(batch, mask=mask)
    stacks, stack_of_sample, clashes = stacks_of(batch, frames, mask=mask)
    made: dict[str, Callable[[Sequence[str]], pa.Table]] = {
        "samples": partial(_table, "samples", samples_of(batch, labels, stack_of_sample)),
        "profiles": partial(_table, "profiles", profiles_of(batch, labels)),
        "stacks": partial(_table, "stacks", stacks),
        "locations": lambda columns: frames.locations().select(columns),
        "series": labels.series.select,
    }
    tables = {name: made[name](columns) for name, columns in wanted.items()}
    return tables, frames.collisions + labels.collisions + clashes


def _table(name: str, makers: ColumnMakers, columns: Sequence[str]) -> pa.Table:
    working = LAYOUTS[name].working
    schema = pa.schema([working.field(column) for column in columns])
    return pa.Table.from_arrays([makers[column]() for column in columns], schema=schema)
