"""What a new version of the log changes in a state that an older one made: the same everywhere."""

from __future__ import annotations

from maar.metastore.fold import trust
from maar.metastore.records.effects import Effects
from maar.metastore.records.entries import VersionActivated
from maar.metastore.records.packs import outline
from maar.metastore.state.marks import WHOLE_SINCE, KnownMarks
from maar.metastore.state.queue import LANES_SINCE, Queue, key_of
from maar.metastore.state.rows import raw_id
from maar.metastore.state.state import MetaState
from maar.model.plan import QueueKey


def activate(state: MetaState, entry: VersionActivated) -> Effects:
    """All blocks are read once: seconds for a million of them, once in the life of a log."""
    before, state.version = state.version, max(state.version, entry.version)
    if before < LANES_SINCE <= state.version:
        _move_to_new_lanes(state)
    if before < WHOLE_SINCE <= state.version:
        _hash_whole_records(state)
    if before < trust.TRUST_SINCE <= state.version:
        trust.begin(state)
    return ()


def _move_to_new_lanes(state: MetaState) -> None:
    """Every block keeps its turn; also one that a plan owns, which may give it back.

    The plan itself keeps the key that it was scheduled with, and ends by the rules of that key.
    """
    places: dict[QueueKey, list[bytes]] = {}
    for partition in state.blocks.partitions():
        for chunk in partition.chunks:
            for raw, packed in zip(chunk.split_ids(), chunk.packed, strict=True):
                place = state.queue.places.plain(raw)
                if place is not None:
                    key = key_of(outline(packed), version=state.version)
                    places.setdefault(key, []).append(place)
    queue = Queue()
    queue.load(places, frozenset(map(raw_id, state.owners)), state.policy)
    queue.hash, state.queue = state.queue.hash, queue


def _hash_whole_records(state: MetaState) -> None:
    state.blocks.hash_whole()
    state.queue.hash_whole()
    state.retired.hash_whole()
    state.known_marks = KnownMarks()
