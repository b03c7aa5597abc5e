"""Moves a log to another place, entry by entry, and seals the old one against writes (S5)."""

from __future__ import annotations

import asyncio
from typing import NamedTuple, Protocol

from maar.metastore.replica import snapshot
from maar.model.errors import Corrupt, NotFound, Rejected
from maar.ports.metastore.log import EMPTY, Head, Log, LogCopy, Term
from maar.ports.stores.object_store import ObjectStore


class CopyLog(Log, LogCopy, Protocol):
    """A log that can be read, written and copied; every adapter can."""


class Moved(NamedTuple):
    base: int  # the entry that the copy begins behind: a snapshot holds all up to it
    head: int
    already: bool = False  # by an earlier call: nothing was left to do


async def migrate(source: Log, target: CopyLog, store: ObjectStore, *, note: str) -> Moved:
    """Copy a log whole, seal the old one, and only then let anybody lead in the new one.

    If interrupted it can be repeated; if it was completed before, it says so.
    """
    if leader_term := await source.leadership():
        raise Rejected(
            f"{leader_term.holder.name} leads in the log; stop the metastore, all its replicas, "
            "and migrate then"
        )
    sealed = await source.seal_note()
    if sealed not in ("", note):
        raise Rejected(f"the log was sealed: {sealed}. A second copy would be a second log")
    end = await source.head()
    if end == EMPTY:
        raise Rejected("there is nothing to move: the log is empty")
    if sealed and (await target.head()).index > end.index:  # somebody has led there since
        return await _earlier_move(target, end)
    base, term = await _beginning(source, store, end)
    try:
        at = await target.begin(base, term=term)
    except Rejected:
        if sealed and await target.head() == end:  # and what is being copied is not refused
            return Moved(base.index, end.index, already=True)
        raise
    at = await _copy(source, target, at)
    await source.seal(note)
    at = await _copy(source, target, at)  # what came before the seal; nothing comes after it
    if at != await source.head():
        raise Corrupt(
            f"the copy ends with entry {at.index} and the log with {(await source.head()).index}, "
            "or they differ there. The old log is sealed and whole; the new one must not be used: "
            "remove it and migrate again"
        )
    await target.finish()
    return Moved(base.index, at.index)


async def _earlier_move(target: Log, end: Head) -> Moved:
    """The log is sealed with a note that names this target, and the target has gone on."""
    try:
        last = (await target.read(after=end.index - 1, limit_bytes=1))[0]
    except NotFound:
        raise Rejected(
            "the log is sealed, since it was moved there before, and the new one has gone on and "
            f"forgotten entry {end.index}: it cannot be compared any more. If replicas lead there, "
            "the move was finished already"
        ) from None
    if Head(last.index, last.hash) != end:
        raise Rejected(
            f"another log is there: its entry {end.index} is not the last one of this log, which "
            "is sealed since it was moved there"
        )
    return Moved(await target.first() - 1, end.index, already=True)


async def _copy(source: Log, target: LogCopy, at: Head) -> Head:
    while records := await source.read(after=at.index):
        at = await target.add(records)
    return at


async def _beginning(source: Log, store: ObjectStore, end: Head) -> tuple[Head, Term]:
    """Where a copy begins, and the last term: at the oldest good snapshot, so that later ones stay
    usable; or at the first entry, if it still exists.
    """
    first = await source.first()
    last = (await source.read(after=end.index - 1))[-1].term if first else Term(0)
    if first == 1:
        return EMPTY, last
    for index, key in reversed(await asyncio.to_thread(snapshot.list_snapshots, store)):
        if index > end.index or index < max(first - 1, 0) or (not first and index < end.index):
            continue
        try:
            state, at = snapshot.decode(await asyncio.to_thread(store.read, key))
        except (Corrupt, NotFound):
            continue
        if await snapshot.leads_to(source, at, end):
            return at, max(last, Term(state.term))
    raise Corrupt(
        f"the log begins at entry {first or end.index + 1} and the store has no good snapshot of "
        "what came before. Give --store the store that the log was used with"
    )
