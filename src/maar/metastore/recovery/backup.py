"""A metastore in one checked file: a snapshot, the log after it, and entries stored apart.

The layout is described in docs/formats/backup.md. Writing one only reads the log and the store;
every entry is applied on the way, so that a backup that could not be restored is never completed.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import BinaryIO, NamedTuple, TypeAlias

import msgspec

from maar.metastore.records.entries import Stored, decode
from maar.metastore.replica import snapshot
from maar.metastore.replica.integrity import ReplicaHealth, StateVotes
from maar.metastore.replica.log_fold import LogFold
from maar.metastore.state.state import MetaState
from maar.model import keys
from maar.model.errors import AlreadyExists, Corrupt, InvalidInput, NotFound, Rejected, Unavailable
from maar.ports.metastore.log import EMPTY, Head, Log, Record, Term
from maar.ports.stores.object_store import ObjectStore

MAGIC = b"MAARBACK"
VERSION = 1
TRIES = 3  # the log may be truncated while it is read

_HASH_BYTES = 32
_FRAME_BYTES_MAX = 4 << 30


class Opening(msgspec.Struct, frozen=True, array_like=True, tag=1):
    version: int
    wall_ns: int  # when it was begun, to be shown


class Snapshot(msgspec.Struct, frozen=True, array_like=True, tag=2):
    body: bytes


class Entries(msgspec.Struct, frozen=True, array_like=True, tag=3):
    records: tuple[tuple[int, int, bytes, bytes], ...]  # index, term, body, hash


class ApartRecord(msgspec.Struct, frozen=True, array_like=True, tag=4):
    """An entry too large for the log, which lies in the store; before the entry that names it."""

    key: str
    body: bytes


Part: TypeAlias = Opening | Snapshot | Entries | ApartRecord

_part = msgspec.msgpack.Decoder(Part).decode
_encode = msgspec.msgpack.Encoder().encode


class Content(NamedTuple):
    """A summary of a backup."""

    state: MetaState
    head: Head
    snapshot_index: int
    entries: int  # behind the snapshot
    wall_ns: int  # when it was made


async def write(log: Log, store: ObjectStore, path: Path, *, wall_ns: int) -> Content:
    """Make a backup; an existing file is never replaced."""
    if path.exists():
        raise AlreadyExists(f"{path} exists already; a backup never replaces another file")
    part = path.with_name(f"{path.name}.part")
    try:
        content = await _write_file(log, store, part, wall_ns)
        os.link(part, path)  # fails, unlike a rename, when the file was created meanwhile
    except FileExistsError:
        raise AlreadyExists(f"{path} exists already; a backup never replaces it") from None
    except OSError as error:
        raise InvalidInput(f"{path} cannot be written: {error.strerror}") from error
    finally:
        with contextlib.suppress(OSError):
            part.unlink()
    return content


async def _write_file(log: Log, store: ObjectStore, part: Path, wall_ns: int) -> Content:
    for _ in range(TRIES):
        try:
            with part.open("wb") as file:
                content = await _write(log, store, BackupWriter(file), wall_ns)
                file.flush()
                os.fsync(file.fileno())
            return content
        except NotFound:
            continue  # truncated meanwhile, behind a newer snapshot
    raise Unavailable("the log was truncated again and again while it was read; try again")


async def _write(log: Log, store: ObjectStore, writer: BackupWriter, wall_ns: int) -> Content:
    writer.add(Opening(VERSION, wall_ns))
    replica = await snapshot.restore(log, store, state_votes=StateVotes.witness())
    begun_at, end = replica.head, await log.head()
    if begun_at != EMPTY:
        key = keys.snapshot(incarnation=replica.state.incarnation, index=begun_at.index)
        writer.add(Snapshot(await asyncio.to_thread(store.read, key)))
    while replica.head.index < end.index:
        records = await log.read(after=replica.head.index)
        for record in records:
            where = decode(record.body, index=record.index).entry
            if isinstance(where, Stored):
                writer.add(ApartRecord(where.key, await asyncio.to_thread(store.read, where.key)))
        await replica.fold(records)
        writer.add(Entries(tuple((r.index, r.term, r.body, r.hash) for r in records)))
    writer.end()
    _check_sound(replica)
    entries = replica.head.index - begun_at.index
    return Content(replica.state, replica.head, begun_at.index, entries, wall_ns)


class BackupWriter:
    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._hash = hashlib.sha256()
        self._write(MAGIC)

    def add(self, part: Part) -> None:
        body = _encode(part)
        self._write(len(body).to_bytes(8, "big"))
        self._write(body)

    def end(self) -> None:
        self._file.write(self._hash.digest())

    def _write(self, some: bytes) -> None:
        self._file.write(some)
        self._hash.update(some)


async def read(path: Path) -> Content:
    """The state of a backup, applied again from its entries; Corrupt when anything is wrong."""
    try:
        size = path.stat().st_size
        with path.open("rb") as file:
            _check_bytes(path, file, size)
            file.seek(len(MAGIC))
            return await _fold_parts(path, _parts(file, size - _HASH_BYTES))
    except OSError as error:
        raise InvalidInput(f"{path} cannot be read: {error.strerror}") from error


def _check_bytes(path: Path, file: BinaryIO, size: int) -> None:
    if file.read(len(MAGIC)) != MAGIC or size < len(MAGIC) + _HASH_BYTES:
        raise Corrupt(f"{path} is not a backup of a metastore")
    digest = hashlib.sha256(MAGIC)
    left = size - len(MAGIC) - _HASH_BYTES
    while left and (some := file.read(min(left, 1 << 20))):
        digest.update(some)
        left -= len(some)
    if digest.digest() != file.read(_HASH_BYTES):
        raise Corrupt(
            f"{path} is damaged: its checksum does not match its bytes. It was cut "
            "short or changed; use another backup"
        )


def _parts(file: BinaryIO, end: int) -> Iterator[Part]:
    while file.tell() < end:
        length = int.from_bytes(file.read(8), "big")
        if length > min(_FRAME_BYTES_MAX, end - file.tell()):
            raise Corrupt("a part of the backup is longer than the file")
        try:
            yield _part(file.read(length))
        except (msgspec.DecodeError, ValueError) as error:
            raise Corrupt(f"a part of the backup cannot be read: {error}") from error


async def _fold_parts(path: Path, parts: Iterator[Part]) -> Content:
    opening = next(parts, None)
    if not isinstance(opening, Opening):
        raise Corrupt(f"{path} does not say which version of a backup it is")
    if opening.version > VERSION:
        raise Rejected(
            f"{path} was written by a newer maar (version {opening.version}; this program knows "
            f"up to {VERSION}). Use the newer program."
        )
    apart = _Apart()
    replica = LogFold(apart, state_votes=StateVotes.witness())
    begun_at = entries = 0
    for part in parts:
        match part:
            case Opening():
                raise Corrupt(f"{path} begins twice")
            case Snapshot():
                replica.state, replica.head = snapshot.decode(part.body)
                begun_at = replica.head.index
            case ApartRecord():
                apart.bodies[part.key] = part.body
            case Entries():
                await replica.fold(_records(part.records))
                entries += len(part.records)
                apart.bodies.clear()
    _check_sound(replica)
    return Content(replica.state, replica.head, begun_at, entries, opening.wall_ns)


def _records(raw: Sequence[tuple[int, int, bytes, bytes]]) -> list[Record]:
    return [Record(index, Term(term), body, hash_) for index, term, body, hash_ in raw]


def _check_sound(replica: LogFold) -> None:
    if replica.state_votes.standing is not ReplicaHealth.SOUND:
        raise Corrupt(f"the backup is of a state that is in doubt: {replica.state_votes.trouble}")


class _Apart:
    """Entries that are too large for the log, read from the backup instead of the store."""

    def __init__(self) -> None:
        self.bodies: dict[str, bytes] = {}

    def read(self, key: str) -> bytes:
        try:
            return self.bodies[key]
        except KeyError:
            raise Corrupt(f"the backup lacks {key}, which an entry of it names") from None
