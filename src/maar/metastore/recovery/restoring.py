"""Restores a lost log from a snapshot, a backup, or the objects in the store (S5).

The new log has another incarnation and begins far above the last index that was saved, so that no
token, plan or index of the lost entries is used again. Its first snapshot already says that it
adopts: no leader deletes anything before the store has been searched
(metastore/leader/stores/adoption.py).
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Container
from typing import NamedTuple

import msgspec

from maar.metastore.fold.deleting import trust
from maar.metastore.leader.stores import claim
from maar.metastore.records.entries import (
    Entry,
    Reincarnated,
    RetentionHeld,
    TermStarted,
    encode,
    encode_entry,
)
from maar.metastore.recovery.copying import CopyLog
from maar.metastore.replica import snapshot
from maar.metastore.replica.log_fold import LogFold
from maar.metastore.state.state import MetaState
from maar.model import keys
from maar.model.errors import AlreadyExists, Corrupt, InvalidInput, NotFound, Rejected
from maar.model.ids import Incarnation
from maar.model.predicate import Predicate
from maar.model.time import WallTime
from maar.ports.metastore.log import EMPTY, Head, Term, follow
from maar.ports.stores.object_store import ObjectStore

LIFE = 10_000_000_000  # indexes; more than a log can lose between a backup and its end
NAME = "restore"  # who led the term in which the log was restored
ORDERS_LOST = (
    "the log was restored without a snapshot, so that the periods of tenants are not known: give "
    "them again (maar retention set), then release retention"
)


class Origin(NamedTuple):
    """What was saved."""

    state: MetaState
    head: Head
    name: str  # where it comes from, for messages
    incarnations: tuple[
        Incarnation, ...
    ] = ()  # put together from their objects, without a snapshot


class Restored(NamedTuple):
    incarnation: Incarnation
    adopts: tuple[Incarnation, ...]
    head: int
    resumed: bool  # an earlier restore had been interrupted


async def newest(store: ObjectStore, key: str = "") -> Origin:
    """The newest good snapshot in a store, of any incarnation of the log; or the one named."""
    found = await asyncio.to_thread(snapshot.list_snapshots, store)
    best: Origin | None = None
    seen: set[str] = set()  # incarnations whose newest good one was read
    for _, each in found:
        incarnation = each.rpartition("/")[0]
        if incarnation in seen or (key and each != key):
            continue
        try:
            state, head = snapshot.decode(await asyncio.to_thread(store.read, each))
        except (Corrupt, NotFound):
            if key:
                raise
            continue
        seen.add(incarnation)
        if best is None or state.wall_time > best.state.wall_time:
            # By time: an incarnation that nobody led has high indexes too.
            best = Origin(state, head, each)
    if best is not None:
        return best
    url = store.settings().url
    raise NotFound(
        f"{url} has no snapshot {key}" if key else f"{url} has no good snapshot of a metastore"
    )


def other_incarnations(store: ObjectStore, state: MetaState) -> tuple[Incarnation, ...]:
    """Logs that marked this store, and that a restored one would not adopt from by itself."""
    marked = (info.key.removeprefix(keys.MARKERS) for info in store.list(keys.MARKERS))
    own = {state.incarnation, *state.adopting}
    return tuple(Incarnation(each) for each in marked if each not in own)


def stored_predicates(store: ObjectStore, incarnations: Container[str]) -> tuple[Predicate, ...]:
    """Deletions that logs of some incarnations were asked for and had not carried out (S8)."""
    found: list[Predicate] = []
    for info in store.list(keys.DELETIONS):
        name = keys.deletion_name(info.key)
        if name is None or name.incarnation not in incarnations:
            continue
        try:
            found.append(msgspec.msgpack.decode(store.read(info.key), type=Predicate))
        except (msgspec.ValidationError, msgspec.DecodeError) as error:
            raise Corrupt(
                f"{info.key} cannot be read ({error}), so that what it deletes would come back; "
                "restore the object from a copy, or delete it to have those profiles again"
            ) from error
    return tuple(sorted(found, key=lambda each: each.id))


def check_store(store: ObjectStore, state: MetaState) -> None:
    """InvalidInput when the blocks of a backup are in another store: all would seem lost."""
    prefix = keys.snapshot_prefix(state.incarnation)
    marked = next(iter(store.list(keys.marker(state.incarnation))), None)
    if marked is None and next(iter(store.list(prefix)), None) is None:
        raise InvalidInput(
            f"{store.settings().url} is not the store of this log: it has neither "
            f"{keys.marker(state.incarnation)} nor a snapshot of it; give --store the URL that the "
            "server used",
            reason="settings",
        )


async def restore(
    log: CopyLog,
    store: ObjectStore,
    origin: Origin,
    *,
    incarnation: Incarnation,
    adopts: tuple[Incarnation, ...] = (),
    wall: WallTime,
) -> Restored:
    """Fill an empty log. If interrupted it can be repeated; `origin` is consumed."""
    if not origin.incarnations:
        await asyncio.to_thread(check_store, store, origin.state)
    begun = await _earlier_restore(log, store)
    if begun is not None:
        try:
            await log.begin(begun.head, term=Term(begun.state.term))
        except Rejected as error:
            await asyncio.to_thread(claim.end_former, store, begun.state)
            raise Rejected(
                f"the log is not empty: it was restored already, as {begun.state.incarnation}, and "
                "nobody has led in it since. Start the replicas"
            ) from error
        await asyncio.to_thread(claim.end_former, store, begun.state)
        await log.finish()
        return _summary(begun.state, begun.head, resumed=True)
    listed = await asyncio.to_thread(snapshot.list_snapshots, store)
    above = max((index for index, _ in listed), default=0)
    incarnations = {origin.state.incarnation, *origin.state.adopting, *origin.state.former, *adopts}
    predicates = await asyncio.to_thread(stored_predicates, store, incarnations)
    replica = await begin_restored(
        origin,
        incarnation=incarnation,
        adopts=adopts,
        wall=wall,
        above=above,
        predicates=predicates,
    )
    state, head = replica.state, replica.head
    if state.incarnation != incarnation or not state.adopting:
        raise Rejected(f"the log cannot become {incarnation!r}: that incarnation was used before")
    body = snapshot.encode(state, head)
    key = keys.snapshot(incarnation=incarnation, index=head.index)
    try:
        await asyncio.to_thread(store.create, key, body)
    except AlreadyExists:
        snapshot.decode(await asyncio.to_thread(store.read, key))
    await asyncio.to_thread(claim.mark, store, incarnation)  # the new incarnation's store, too
    await log.begin(head, term=Term(state.term))
    await asyncio.to_thread(claim.end_former, store, state)
    await log.finish()
    return _summary(state, head, resumed=False)


async def begin_restored(
    origin: Origin,
    *,
    incarnation: Incarnation,
    adopts: tuple[Incarnation, ...] = (),
    wall: WallTime,
    above: int = 0,
    predicates: tuple[Predicate, ...] = (),
) -> LogFold:
    """The state that a restored log begins with, made by applying the entries that lead to it.

    `above` is the last index of any incarnation in the store: a log that is restored twice must not
    use the indexes of the first restore again, since blocks are named by them.
    """
    state, head = origin.state, origin.head
    if not state.incarnation:
        raise Rejected(f"{origin.name} is of a log that never began; start a new one instead")
    last = max(head.index, above)
    base = Head((last // LIFE + 2) * LIFE, hashlib.sha256(b"restored" + head.hash).digest())
    state.index = base.index
    term = Term(state.term + 1)
    opening: list[Entry] = [TermStarted(term, NAME), Reincarnated(incarnation, adopts, predicates)]
    if origin.incarnations:
        state.wall_time = wall
        trust.begin(state)
        opening.append(RetentionHeld(True, ORDERS_LOST))
    bodies = [_envelope(state, wall, entry) for entry in opening]
    replica = LogFold(_NoStore(), state, base)
    await replica.fold(follow(base, bodies, term))
    return replica


def _envelope(state: MetaState, wall: WallTime, entry: Entry) -> bytes:
    return encode(state.version, state.lease_time, wall, encode_entry(entry))


async def _earlier_restore(log: CopyLog, store: ObjectStore) -> Origin | None:
    """What an earlier restore into this log had written; None when the log is empty."""
    head = await log.head()
    if head == EMPTY:
        return None
    for index, key in await asyncio.to_thread(snapshot.list_snapshots, store):
        if index == head.index:
            state, at = snapshot.decode(await asyncio.to_thread(store.read, key))
            if at == head and state.adopting:
                return Origin(state, at, key)
    raise Rejected(
        f"the log is not empty: it is at entry {head.index}. Restore into an empty one; of a log "
        "that still has entries, take a backup first and restore that elsewhere"
    )


def _summary(state: MetaState, head: Head, *, resumed: bool) -> Restored:
    return Restored(state.incarnation, state.adopting, head.index, resumed)


class _NoStore:
    """The few entries of a restore are small: none is stored apart from the log."""

    def read(self, key: str) -> bytes:
        raise NotFound(key)
