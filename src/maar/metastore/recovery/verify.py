"""Reads everything again and says what is wrong: log, snapshots, state, objects. Changes nothing.

The log is replayed from the oldest snapshot that leads to it. The result must match the newer
snapshots, and every hash that leaders stated in the log.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field

from maar.metastore.leader.stores.store_inventory import StoreListing
from maar.metastore.records.entries import StateHashed, decode
from maar.metastore.recovery import orphan_count
from maar.metastore.recovery.orphan_count import OrphanCount
from maar.metastore.replica import snapshot
from maar.metastore.replica.integrity import StateVotes
from maar.metastore.replica.log_fold import LogFold
from maar.metastore.state import audit
from maar.metastore.state.digest import digest
from maar.metastore.state.index import blocks_in
from maar.metastore.state.state import NO_INCARNATION, MetaState
from maar.model import keys
from maar.model.block import BlockMeta
from maar.model.errors import Corrupt, NotFound
from maar.model.ids import Incarnation, StoreName
from maar.model.stores import stores_of as copies_in
from maar.ports.metastore.log import Head, Log
from maar.ports.metastore.replica import ReplicaStatus
from maar.ports.stores.object_store import ObjectStore
from maar.ports.stores.stores import Stores, stores_of

TOLD_MAX = 100  # sentences


@dataclass(slots=True)
class Findings:
    incarnation: Incarnation = NO_INCARNATION
    first: int = 0  # entry of the log
    head: int = 0
    digest: bytes = b""  # of the state at the head
    snapshots: dict[str, str] = field(default_factory=dict)  # by key, newest first; '' when good
    hashes: dict[int, bytes] = field(default_factory=dict)  # of the states that leaders stated
    blocks: int = 0  # live
    objects: int = -1  # of them, that were looked for; -1: none were
    orphans: OrphanCount = field(default_factory=OrphanCount)  # if objects were looked for
    adopting: bool = False
    wrong: list[str] = field(default_factory=list)
    elsewhere: list[str] = field(default_factory=list)  # damage of other logs in the store

    def tell(self, sentence: str) -> None:
        if len(self.wrong) < TOLD_MAX:
            self.wrong.append(sentence)


async def verify(log: Log, store: ObjectStore | Stores, *, objects: bool = False) -> Findings:
    """`objects`: also whether the stores hold every copy of every live block, by its size."""
    found = Findings()
    stores = stores_of(store)
    store = stores.open(stores.names()[0])
    end, found.first = await log.head(), await log.first()
    good = await _snapshots(log, store, end, found)
    damaged = {key: cause for key, cause in found.snapshots.items() if cause}
    replica = await _oldest(store, good)
    if replica is None:
        if found.first > 1 or (end.index and not found.first):
            _tell_damaged(found, damaged)
            found.tell(
                f"the log begins at entry {found.first or end.index + 1}, and no good snapshot "
                "leads to it: it cannot be replayed"
            )
            return found
        replica = LogFold(store, state_votes=StateVotes.witness())
    await _fold(log, replica, end, good, found)
    state = replica.state
    _tell_damaged(found, damaged, own=keys.snapshot_prefix(state.incarnation))
    found.incarnation, found.head, found.digest = state.incarnation, state.index, digest(state)
    found.blocks, found.adopting = len(state.blocks), bool(state.adopting)
    if objects:
        await asyncio.to_thread(_look_for_objects, stores, state, found)
        every = [stores.open(name) for name in stores.names()]
        found.orphans = await orphan_count.count(every, state)
    return found


async def _snapshots(
    log: Log, store: ObjectStore, end: Head, found: Findings
) -> dict[int, tuple[str, bytes]]:
    """The good snapshots that lead to the log, by index: key and hash of the state."""
    good: dict[int, tuple[str, bytes]] = {}
    for index, key in await asyncio.to_thread(snapshot.list_snapshots, store):
        try:
            state, at = await asyncio.to_thread(_load_snapshot, store, key)
        except (Corrupt, NotFound) as error:
            found.snapshots[key] = str(error)
            continue
        if index <= end.index and await snapshot.leads_to(log, at, end):
            good[index] = key, digest(state)
            found.snapshots[key] = ""
    return good


def _tell_damaged(found: Findings, damaged: dict[str, str], own: str = "") -> None:
    """Snapshots of other logs or of earlier incarnations do not belong to this log."""
    for key, cause in damaged.items():
        sentence = f"the snapshot {key} is damaged: {cause}"
        if key.startswith(own):
            found.tell(sentence)
        else:
            found.elsewhere.append(sentence)


def _load_snapshot(store: ObjectStore, key: str) -> tuple[MetaState, Head]:
    state, at = snapshot.decode(store.read(key))
    audit.check_sums(state)
    return state, at


async def _oldest(store: ObjectStore, good: dict[int, tuple[str, bytes]]) -> LogFold | None:
    if not good:
        return None
    key, _ = good[min(good)]
    state, at = await asyncio.to_thread(_load_snapshot, store, key)
    return LogFold(store, state, at, StateVotes.witness())


async def _fold(
    log: Log, replica: LogFold, end: Head, good: dict[int, tuple[str, bytes]], found: Findings
) -> None:
    """Entry by entry, since after each there may be something to compare."""
    try:
        while replica.head.index < end.index:
            for record in await log.read(after=replica.head.index):
                await replica.fold([record])
                entry = decode(record.body, index=record.index).entry
                if isinstance(entry, StateHashed):
                    _compare_hash(entry, replica, found)
                _compare_snapshot(replica, good, found)
    except Corrupt as error:
        found.tell(str(error))


def _compare_hash(entry: StateHashed, replica: LogFold, found: Findings) -> None:
    if not entry.replica:
        found.hashes[entry.at] = replica.state_votes.digest
    ours = found.hashes.get(entry.at)
    if ours is not None and ours != entry.digest:
        who = entry.replica or "the leader"
        found.tell(f"at entry {entry.at}, {who} had another state than this replay gives")


def _compare_snapshot(
    replica: LogFold, good: dict[int, tuple[str, bytes]], found: Findings
) -> None:
    at = replica.head.index
    if at in good and good[at][1] != digest(replica.state):
        found.snapshots[good[at][0]] = "it differs from what replaying the log gives"
        found.tell(
            f"the snapshot {good[at][0]} differs from what replaying the log gives at entry {at}"
        )


def _look_for_objects(stores: Stores, state: MetaState, found: Findings) -> None:
    listings = {name: StoreListing(stores.open(name)) for name in stores.names()}
    found.objects = 0
    for partition in state.blocks.partitions():
        for meta in blocks_in(partition.chunks):
            for name in copies_in(meta):
                _look_for_copy(listings, meta, name, found)


def _look_for_copy(
    listings: Mapping[StoreName, StoreListing], meta: BlockMeta, name: StoreName, found: Findings
) -> None:
    found.objects += len(meta.files)
    if name not in listings:
        found.tell(f"block {meta.id} has a copy in store {name}, which is not in the settings")
        return
    where = f" in store {name}" if len(listings) > 1 else ""
    if lacking := listings[name].lacks(meta):
        found.tell(f"block {meta.id} is in the index, but {lacking} is missing{where}")
    elif not listings[name].whole(meta):
        found.tell(f"block {meta.id} has an object of another size than was written{where}")


def compare_replicas(found: Findings, replicas: list[ReplicaStatus]) -> None:
    """What running replicas hold, as far as their last hash can be compared with the log's."""
    for replica in replicas:
        ours = found.hashes.get(replica.hashed_at)
        if replica.fault:
            found.tell(f"the replica {replica.name} at {replica.address}: {replica.fault}")
        elif ours is not None and ours != replica.digest:
            found.tell(
                f"the replica {replica.name} at {replica.address} differs from what replaying the "
                f"log gives at entry {replica.hashed_at}; run `maar metastore rebuild` for it"
            )
