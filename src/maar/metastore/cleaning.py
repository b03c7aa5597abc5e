"""Deletes the objects of retired blocks, once what replaced them is seen to be there (S1)."""

from __future__ import annotations

from dataclasses import dataclass

from maar.metastore import retirement
from maar.metastore.index import unpack
from maar.metastore.state import MetaState
from maar.model import keys
from maar.model.block import BlockMeta, Kind
from maar.model.errors import NotFound
from maar.model.ids import BlockId
from maar.model.time import LeaseTime
from maar.ports.object_store import ObjectStore


@dataclass(frozen=True, slots=True)
class Removal:
    """A retired block and the blocks that must be whole before its objects go."""

    block: BlockMeta
    successors: tuple[BlockMeta, ...]


@dataclass(frozen=True, slots=True)
class Cleaned:
    gone: tuple[BlockId, ...]
    blocked: tuple[str, ...]  # a sentence for each block that had to stay


def removals(state: MetaState, *, now: LeaseTime, limit: int) -> list[Removal]:
    """What may be deleted now; plain values, so that a thread can act on them."""
    return [
        Removal(unpack(state.retired[block].packed), tuple(retirement.successors(state, block)))
        for block in retirement.due(state, now=now, limit=limit)
    ]


def carry_out(store: ObjectStore, work: list[Removal]) -> Cleaned:
    gone: list[BlockId] = []
    blocked: list[str] = []
    checked: dict[BlockId, str] = {}
    for removal in work:
        trouble = _foreign(store, removal.block)
        for meta in removal.successors:
            if meta.id not in checked:
                checked[meta.id] = _missing(store, meta)
            trouble = trouble or checked[meta.id]
        if trouble:
            blocked.append(f"block {removal.block.id} is kept: {trouble}")
            continue
        _delete(store, removal.block)
        gone.append(removal.block.id)
    return Cleaned(tuple(gone), tuple(blocked))


def _delete(store: ObjectStore, meta: BlockMeta) -> None:
    """First what leads to the files: an index made from manifests must not name lost ones."""
    files = [location.key for file in meta.files for location in file.locations]
    written = files if meta.kind is Kind.BLOCK else []  # by a plan: segments have no such company
    for key in dict.fromkeys(map(keys.manifest_of, written)):
        store.delete(key)
    for key in files:
        store.delete(key)
    for prefix in dict.fromkeys(map(keys.intents_of, written)):
        for intent in list(store.list(prefix)):  # its outputs are known: nothing is litter
            store.delete(intent.key)


def _missing(store: ObjectStore, meta: BlockMeta) -> str:
    """What is wrong with a block that should be readable; '' when nothing is."""
    for file in meta.files:
        for location in file.locations:
            try:
                size = store.size(location.key)
            except NotFound:
                return f"{location.key}, which replaces it, is missing"
            if size != file.size:
                return f"{location.key}, which replaces it, has {size} bytes, not {file.size}"
    return ""


def _foreign(store: ObjectStore, meta: BlockMeta) -> str:
    """Copies in other stores are deleted by whoever serves those stores (S14)."""
    name = store.settings().name
    others = [at.store for file in meta.files for at in file.locations if at.store != name]
    return f"it has a copy in the store {others[0]!r}, this is {name!r}" if others else ""
