"""Checks that a block has every file of its kind, under keys that belong to it alone.

A key contains the id of its block (model/keys.py), and ids are unique in the index. So every object
has one owner, and no list of owners has to be kept.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from maar.model import keys
from maar.model.block import NO_DAY, SEGMENT_TABLE, TABLES, BlockOutline, File, Kind, Location
from maar.model.ids import FencingToken, Incarnation, PlanId
from maar.model.stores import only_in, stores_of
from maar.model.time import utc_day

_TABLES = {
    Kind.SEGMENT: [SEGMENT_TABLE],
    Kind.BLOCK: sorted(TABLES),
    Kind.QUARANTINE: [SEGMENT_TABLE],
}

OwnKey = Callable[[File, str], bool]


def wrong_with_segment(meta: BlockOutline, incarnations: Sequence[Incarnation]) -> str:
    """Why a segment's object cannot be its own; '' when it can. `incarnations` are those of the
    log, the present one first: nearly all segments are of that one.
    """
    if meta.level or meta.tenant or meta.day != NO_DAY:
        return f"block {meta.id} is no segment: it has a level, a tenant or a day"
    if meta.since:
        return f"block {meta.id} is a writer's segment, and says that a plan wrote it"
    if len(meta.files) == 1 and len((file := meta.files[0]).locations) == 1 and file.size > 0:
        own = keys.segment(shard=meta.shard, block=meta.id, incarnation=incarnations[0])
        if (file.table, *file.locations) == (SEGMENT_TABLE, Location(meta.store, own)):
            return ""
    if trouble := wrong_with_files(meta):
        return trouble
    every = [
        keys.segment(shard=meta.shard, block=meta.id, incarnation=incarnation)
        for incarnation in incarnations
    ]
    return _foreign(meta, lambda _, key: key in every)


def wrong_with_files(meta: BlockOutline) -> str:
    """Which file is missing or unwanted, empty, or nowhere; '' when every one is as it must be."""
    had, wanted = sorted([file.table for file in meta.files]), _TABLES[meta.kind]
    if had != wanted:
        has = ", ".join(had)[:200] or "no files"
        return f"block {meta.id} has {has}, and must have {', '.join(wanted)}"
    for file in meta.files:
        if file.size < 1:
            return f"block {meta.id} has no bytes in {file.table}"
        stores = [at.store for at in file.locations]
        if meta.store not in stores:
            return f"block {meta.id} has no {file.table} in its own store {meta.store!r}"
        if stores != [at.store for at in meta.files[0].locations] or len(set(stores)) < len(stores):
            return f"block {meta.id} has files in some stores that lack others, or one twice"
    return ""


def wrong_with_keys(meta: BlockOutline, *, plan: PlanId, token: FencingToken) -> str:
    """Which object is not one that this attempt wrote for this block; '' when all are."""
    if meta.kind is Kind.SEGMENT and (meta.level or meta.tenant or meta.day != NO_DAY):
        return f"block {meta.id} is no segment: it has a level, a tenant or a day"
    days = {meta.day, utc_day(meta.min_time_ns), utc_day(meta.max_time_ns)}
    if meta.kind is Kind.BLOCK and len(days) > 1:
        return f"block {meta.id} holds profiles that are not of its day"
    if meta.kind is Kind.QUARANTINE and meta.day != NO_DAY:
        return f"block {meta.id} is in quarantine, where profiles of any day are"
    stem = keys.stem(block=meta.id, plan=plan, token=token, attempt="")
    return _foreign(
        meta, lambda file, key: keys.is_of_attempt(key, _object_key(meta, file, stem=stem))
    )


def wrong_with_since(meta: BlockOutline) -> str:
    """Whether a block that was just written says another entry gave leave than its keys do: then
    deletions would take it for older or younger than it is (S8).
    """
    told = keys.since(meta.files[0].locations[0].key)
    return (
        f"block {meta.id} says {meta.since}, its keys {told}" if meta.since not in (0, told) else ""
    )


def wrong_with_adopted(meta: BlockOutline, incarnations: Iterable[Incarnation]) -> str:
    """As for an output, of the attempt that its keys name, in an incarnation that is adopted."""
    if trouble := wrong_with_files(meta):
        return trouble
    every = tuple(incarnations)
    return next(filter(None, (_wrong_copy(only_in(meta, at), every) for at in stores_of(meta))), "")


def _wrong_copy(meta: BlockOutline, incarnations: Sequence[Incarnation]) -> str:
    """Each copy of a block was written by an attempt of its own."""
    named = keys.output_name(meta.files[0].locations[0].key)
    if named is None or named.token.incarnation not in incarnations:
        return f"block {meta.id} was written by no plan of a log that is being adopted"
    return wrong_with_keys(meta, plan=named.plan, token=named.token)


def _foreign(meta: BlockOutline, own: OwnKey) -> str:
    for file in meta.files:
        for at in file.locations:
            if not own(file, at.key):
                return f"block {meta.id} names the object {at.key[:200]!r}, which is not its own"
    return ""


def _object_key(meta: BlockOutline, file: File, *, stem: str) -> str:
    if meta.kind is Kind.SEGMENT:
        return keys.joined_segment(shard=meta.shard, stem=stem)
    if meta.kind is Kind.QUARANTINE:
        return keys.quarantine(tenant=meta.tenant, stem=stem)
    return keys.table(name=file.table, tenant=meta.tenant, day=meta.day, stem=stem)
