"""A version of the log that no program has yet: one more kind of entry, for tests of upgrades."""

from __future__ import annotations

from typing import Any, cast

import msgspec

from maar.metastore.fold.apply import fold_entry
from maar.metastore.records.effects import Effects
from maar.metastore.records.entries import (
    VERSION,
    BlocksOutlined,
    Entry,
    Envelope,
    Tick,
    decode,
    encode,
    encode_entry,
    open_envelope,
)
from maar.metastore.replica.log_fold import Edition
from maar.metastore.state.state import NOT_RAISED, MetaState

NEXT_VERSION = VERSION + 1


class LimitDropped(msgspec.Struct, frozen=True, array_like=True, tag=1_000):
    """A raised limit of failures ends before its time."""

    why: str


def drop_entries(state: MetaState) -> list[Entry]:
    """What a leader of the next program would append, as soon as everybody can read it."""
    if state.version < NEXT_VERSION:
        return []
    return [cast(Entry, LimitDropped("the disk was replaced"))]


def read_whole(body: bytes, *, index: int) -> Envelope:
    """With all that an entry says; the fold reads less of some."""
    envelope = _read(body, index=index, knows=NEXT_VERSION)
    if isinstance(envelope.entry, BlocksOutlined):
        return decode(body, index=index, knows=NEXT_VERSION)
    return envelope


def _read(body: bytes, *, index: int, knows: int) -> Envelope:
    raw: list[Any] = msgspec.msgpack.decode(body)
    if raw[-1][0] != LimitDropped.__struct_config__.tag:
        return open_envelope(body, index=index, knows=knows)
    _, version, lease_time, wall_time, entry = raw
    same = encode(version, lease_time, wall_time, encode_entry(Tick()))
    open_envelope(same, index=index, knows=knows)  # its envelope is checked like any other
    found = cast(Entry, msgspec.convert(entry, LimitDropped))
    return Envelope(version, lease_time, wall_time, found)


def _fold(state: MetaState, entry: Entry | BlocksOutlined) -> Effects:
    if isinstance(cast(object, entry), LimitDropped):
        state.raised = NOT_RAISED
        return ()
    return fold_entry(state, entry)


NEXT = Edition(NEXT_VERSION, _read, _fold)
