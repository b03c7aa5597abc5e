"""Deletes the objects of retired blocks, after checking that their successors exist (S1)."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass

from maar.metastore.fold import retirement
from maar.metastore.records.packs import unpack
from maar.metastore.state.state import MetaState
from maar.model import keys
from maar.model.block import BlockMeta, Kind
from maar.model.errors import NotFound
from maar.model.ids import BlockId
from maar.model.time import LeaseTime
from maar.ports.object_store import ObjectStore, exists
from maar.services.deletion import Deleter

REMOVAL_MAX = 32  # blocks; a thread cannot be interrupted, so its work is kept short


@dataclass(frozen=True, slots=True)
class Removal:
    """Blocks that one entry retired, and the blocks that must be whole before their objects go."""

    blocks: tuple[BlockMeta, ...]
    successors: tuple[BlockMeta, ...]  # none when the blocks expired or were given up
    doubt: str = ""  # why the log itself forbids it

    def ids(self) -> tuple[BlockId, ...]:
        return tuple(meta.id for meta in self.blocks)

    @property
    def title(self) -> str:
        others = len(self.blocks) - 1
        more = f" and {others} retired with it" if others else ""
        return f"block {self.blocks[0].id}{more}"


def removals(
    state: MetaState, *, now: LeaseTime, limit: int, resting: Collection[BlockId] = ()
) -> list[Removal]:
    """What may be deleted now; plain values, so that a thread can act on them."""
    groups: dict[tuple[int, tuple[BlockId, ...]], list[BlockId]] = {}
    due = retirement.due(state, now=now, limit=limit, resting=resting)
    waiting = (*due, *(block for block in resting if block in state.retired))
    looked_for = {output for block in waiting for output in state.retired[block].outputs}
    for block in due:
        if block in looked_for:
            continue  # blocks that it replaced go first: only it says what became of them
        retired = state.retired[block]
        groups.setdefault((retired.entry, retired.outputs), []).append(block)
    return [
        Removal(
            tuple(unpack(state.retired[block].packed) for block in some),
            tuple(retirement.successors(state, some[0])),
            retirement.doubt(state, some[0]),
        )
        for group in groups.values()
        for some in (group[at : at + REMOVAL_MAX] for at in range(0, len(group), REMOVAL_MAX))
    ]


def carry_out(deleter: Deleter, removal: Removal) -> str:
    """Delete the objects; '' when they are gone, else why they have to stay."""
    store = deleter.store
    trouble = _foreign(store, removal)
    doubt = trouble or removal.doubt or _incomplete(store, removal)
    if trouble or (doubt and _left(store, removal)):
        return f"{removal.title} cannot be deleted: {doubt}"
    deleter.delete([key for meta in removal.blocks for key in _objects(meta)])
    deleter.delete(list(_intents(store, removal)))
    return ""


def _objects(meta: BlockMeta) -> list[str]:
    """Manifests before tables: an index rebuilt from manifests must not name lost files."""
    files = [location.key for file in meta.files for location in file.locations]
    manifests = map(keys.manifest_of, files) if meta.kind is Kind.BLOCK else ()
    return [*dict.fromkeys(manifests), *files]


def _intents(store: ObjectStore, removal: Removal) -> Iterator[str]:
    """The outputs that they announced are known: none of them is a leftover."""
    for meta in removal.blocks:
        files = (location.key for file in meta.files for location in file.locations)
        announced = filter(keys.output_name, files)  # not the segments of writers
        for prefix in dict.fromkeys(map(keys.intents_of, announced)):
            yield from (intent.key for intent in store.list(prefix))


def _left(store: ObjectStore, removal: Removal) -> bool:
    """Whether any object of the blocks still exists."""
    return any(
        exists(store, location.key)
        for meta in removal.blocks
        for file in meta.files
        for location in file.locations
    )


def _incomplete(store: ObjectStore, removal: Removal) -> str:
    """What is wrong with the blocks that replaced these; '' when nothing is."""
    for meta in removal.successors:
        for file in meta.files:
            for location in file.locations:
                try:
                    size = store.size(location.key)
                except NotFound:
                    return f"{location.key}, which replaces it, is missing"
                if size != file.size:
                    return f"{location.key}, which replaces it, has {size} bytes, not {file.size}"
    return ""


def _foreign(store: ObjectStore, removal: Removal) -> str:
    """Copies in other stores are deleted by whoever serves those stores (S14)."""
    name = store.settings().name
    others = [
        location.store
        for meta in removal.blocks
        for file in meta.files
        for location in file.locations
        if location.store != name
    ]
    return f"it has a copy in the store {others[0]!r}, this is {name!r}" if others else ""
