"""The state as one checked object: a restart loads the newest good one and replays the log.

`make` runs in another process than the leader. It replays the log itself, and the leader's
`StateHashed` entries tell it whether both states agree; so every snapshot also verifies the
leader's state (S13). The layout is described in docs/formats/snapshot.md.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import re
from collections.abc import Iterable, Iterator
from contextlib import suppress
from functools import partial
from itertools import chain

import msgspec
import pyarrow as pa

from maar.metastore.records.entries import VERSION
from maar.metastore.records.entries import decode as decode_record
from maar.metastore.records.former_formats import MARK, is_former, way_over
from maar.metastore.replica.integrity import ReplicaHealth, StateVotes
from maar.metastore.replica.log_fold import NEWEST, Edition, LogFold
from maar.metastore.state import audit
from maar.metastore.state import snapshot_parts as parts
from maar.metastore.state.digest import digest
from maar.metastore.state.snapshot_records import Part
from maar.metastore.state.state import MetaState
from maar.model import keys
from maar.model.errors import AlreadyExists, Corrupt, NotFound, Rejected
from maar.model.ids import Incarnation
from maar.ports.metastore.log import GENESIS_HASH, Head, Log, chain_hash
from maar.ports.stores.object_store import ObjectStore

log_ = logging.getLogger("maar.metastore")

MAGIC = b"MAARSNAP"
KEPT = 3

_KEY = re.compile(r"metastore/v1/([^/]+)/snapshot-(\d+)\.maar")
_STORED = re.compile(r"metastore/v1/[^/]+/entry-(\d+)-")
_HASH_BYTES = 32

_part = msgspec.msgpack.Decoder(Part).decode


class Header(msgspec.Struct, frozen=True, array_like=True, tag=MARK):
    version: int
    incarnation: Incarnation
    index: int
    chain: bytes  # the hash of the entry at the index: the log goes on from it
    digest: bytes  # of the state

    @property
    def head(self) -> Head:
        return Head(self.index, self.chain)


def encode(state: MetaState, head: Head) -> bytes:
    """In the version that is active in the log: whoever can read the log can read its snapshots."""
    return _assemble(_raw_parts(state, head))


def _raw_parts(state: MetaState, head: Head) -> Iterator[bytes]:
    header = Header(state.version, state.incarnation, head.index, head.hash, digest(state))
    yield from map(msgspec.msgpack.encode, chain((header,), parts.parts_of(state)))


def _assemble(raw_parts: Iterable[bytes]) -> bytes:
    body = bytearray(MAGIC)
    for raw in raw_parts:
        body += frame(raw)
    body += hashlib.sha256(body).digest()
    return bytes(body)


def decode(body: bytes, *, knows: int = VERSION) -> tuple[MetaState, Head]:
    """The state, checked against its own hash; Corrupt when anything is wrong.

    Rejected when it is of a version that the program does not know.
    """
    if body[: len(MAGIC)] != MAGIC or len(body) < len(MAGIC) + _HASH_BYTES:
        raise Corrupt("it is not a snapshot of maar")
    check(body)
    try:
        frames = _frames(body)
        header = _header(next(frames))
        if header.version > knows:
            raise Rejected(
                f"a newer maar wrote it (version {header.version}; this program knows up to "
                f"{knows}). Start the newer program."
            )
        state = parts.state_of(map(_part, frames))
    except (msgspec.ValidationError, msgspec.DecodeError, StopIteration) as error:
        raise Corrupt(f"its parts cannot be read: {error}") from error
    if state.index != header.index or digest(state) != header.digest:
        raise Corrupt("its content does not have the hash that it states")
    return state, header.head


def _header(raw: bytes) -> Header:
    try:
        return msgspec.msgpack.decode(raw, type=Header)
    except msgspec.ValidationError as error:
        if is_former(raw):
            raise Corrupt(f"it {way_over()}") from error
        raise


def check(body: bytes) -> None:
    """Whether the bytes are those that were written; cheaper than decoding them."""
    if hashlib.sha256(memoryview(body)[:-_HASH_BYTES]).digest() != body[-_HASH_BYTES:]:
        raise Corrupt("the snapshot's checksum does not match its bytes")


def frame(raw: bytes) -> bytes:
    packed = pa.compress(raw, codec="zstd", asbytes=True)
    return len(packed).to_bytes(4, "big") + len(raw).to_bytes(4, "big") + bytes(packed)


def _frames(body: bytes) -> Iterator[bytes]:
    at, end = len(MAGIC), len(body) - _HASH_BYTES
    while at < end:
        size = int.from_bytes(body[at : at + 4], "big")
        raw = int.from_bytes(body[at + 4 : at + 8], "big")
        packed = body[at + 8 : at + 8 + size]
        yield pa.decompress(packed, decompressed_size=raw, codec="zstd", asbytes=True)
        at += 8 + size


def list_snapshots(store: ObjectStore) -> list[tuple[int, str]]:
    """Every snapshot in the store, newest first, of any incarnation."""
    found = (_KEY.fullmatch(info.key) for info in store.list(keys.SNAPSHOTS))
    return sorted(((int(match[2]), match[0]) for match in found if match), reverse=True)


async def restore(
    log: Log,
    store: ObjectStore,
    *,
    state_votes: StateVotes | None = None,
    edition: Edition = NEWEST,
) -> LogFold:
    """The newest good snapshot that belongs to this log; the empty state when there is none."""
    begun = partial(LogFold, store, state_votes=state_votes or StateVotes(), edition=edition)
    head, first = await log.head(), await log.first()
    found = await asyncio.to_thread(list_snapshots, store)
    for index, key in found:
        if index > head.index or (first and index < first - 1):
            continue
        try:
            state, at = await asyncio.to_thread(_load, store, key, edition.version)
        except (Corrupt, NotFound) as error:
            log_.error("snapshot damaged, trying an older one key=%s cause=%s", key, error)
            continue
        if await leads_to(log, at, head):
            return begun(state=state, head=at)
    if first > 1 or (head.index and not first):
        for record in await log.read(after=first - 1, limit_bytes=1) if first else ():
            decode_record(record.body, index=record.index)  # of a format that is read at all?
        raise Corrupt(
            f"the log begins at entry {first or head.index + 1} and the store has no good snapshot "
            "of what came before. Restore the snapshots, or the log, from a copy. Of several "
            "stores, the first one of the settings has them: their order must not change."
        )
    return begun()


def _load(store: ObjectStore, key: str, knows: int) -> tuple[MetaState, Head]:
    return decode(store.read(key), knows=knows)


async def leads_to(log: Log, at: Head, head: Head) -> bool:
    """Whether the log continues from the snapshot: one of another incarnation does not."""
    if at.index == head.index:
        return at.hash == head.hash
    try:
        following = (await log.read(after=at.index, limit_bytes=1))[0]
    except NotFound:
        return False
    hash_ = chain_hash(at.hash, index=following.index, term=following.term, body=following.body)
    return hash_ == following.hash


async def make(log: Log, store: ObjectStore, *, edition: Edition = NEWEST) -> int:
    """Make a new snapshot from the newest good one and the log after it; its index."""
    replica = await restore(log, store, state_votes=StateVotes.witness(), edition=edition)
    begun_at = replica.head.index
    await replica.catch_up(log)
    if replica.state_votes.standing is not ReplicaHealth.SOUND:
        raise Corrupt(
            f"no snapshot is made of a state that is in doubt: {replica.state_votes.trouble}"
        )
    head, state = replica.head, replica.state
    if head.index == begun_at or head.hash == GENESIS_HASH:
        return head.index
    body = encode(state, head)
    again, _ = decode(body, knows=edition.version)  # it must read back, or nothing is written
    audit.check_sums(again)
    audit.check_derived(state, again)
    key = keys.snapshot(incarnation=state.incarnation, index=head.index)
    try:
        await asyncio.to_thread(store.create, key, body)
    except AlreadyExists:
        await asyncio.to_thread(_load, store, key, edition.version)  # as good as ours, or Corrupt
    await asyncio.to_thread(_prune, store, state.incarnation)
    log_.info("snapshot made key=%s bytes=%d blocks=%d", key, len(body), len(state.blocks))
    return head.index


async def save(state: MetaState, head: Head, store: ObjectStore) -> None:
    """Write a state that nobody could fold again, since the snapshots before it are lost.

    While its parts are packed the caller's loop waits; all else is done in a thread.
    """
    raw_parts = list(_raw_parts(state, head))
    key = keys.snapshot(incarnation=state.incarnation, index=head.index)
    await asyncio.to_thread(_save, store, key, raw_parts)
    log_.warning("snapshot made of the state in memory key=%s", key)


def _save(store: ObjectStore, key: str, raw_parts: list[bytes]) -> None:
    body = _assemble(raw_parts)
    again, _ = decode(body)
    audit.check_sums(again)
    with suppress(AlreadyExists):  # since an earlier try: the same state
        store.create(key, body)


def _prune(store: ObjectStore, incarnation: Incarnation) -> None:
    """Delete all but the newest few, and the stored entries that the oldest of these covers."""
    prefix = keys.snapshot_prefix(incarnation)
    kept = [(index, key) for index, key in list_snapshots(store) if key.startswith(prefix)]
    for _, key in kept[KEPT:]:
        store.delete(key)
    oldest = min((index for index, _ in kept[:KEPT]), default=0)
    for info in list(store.list(keys.stored_entry_prefix(incarnation))):
        match = _STORED.match(info.key)
        if match and len(kept) >= KEPT and int(match[1]) <= oldest:
            store.delete(info.key)
