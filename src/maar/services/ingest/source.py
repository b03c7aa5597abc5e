"""From files to profiles: what a bulk write reads, and what is wrong with a file.

A file is one profile. Which of them are admitted is decided as for a push, with two differences: a
file without a time of its own is refused, since nobody could say when it was; and a bad file is
kept in quarantine, since its owner may be gone.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator
from enum import StrEnum

import msgspec

from maar.model.errors import InvalidInput, MaarError, NotFound, Retryable
from maar.model.ids import TenantId
from maar.model.labels import SERVICE_NAME, Labels, labels_of
from maar.model.profile import RawProfile, profile_id
from maar.model.time import utc_day
from maar.pprof.gzip import compress, gunzip

Admit = Callable[[Labels, bytes, str], RawProfile]  # labels, a file's bytes, its client id
Read = Callable[[str], bytes]  # a file's bytes, by its name

FILE_BYTES_MAX = 64 << 20  # of a file, as it is: a larger one is refused unread
RAW_BYTES_MAX = 512 << 20  # of what identifies it, decompressed


class FileState(StrEnum):
    GOOD = "good"
    BAD = "bad"  # its bytes are no profile: it goes to quarantine
    REFUSED = "refused"  # it is one, and may not come in: too old, undated, too large


class SourceFile(msgspec.Struct, frozen=True, array_like=True):
    name: str
    size: int


class ReadFile(msgspec.Struct, frozen=True, array_like=True):
    """A file that was read, and what became of it."""

    name: str
    state: FileState
    profile: RawProfile | None  # None: it is refused
    cause: str = ""


class Whose(msgspec.Struct, frozen=True, array_like=True):
    """Whose profiles the files are."""

    tenant: TenantId
    service: str
    labels: tuple[tuple[str, str], ...] = ()

    def all_labels(self) -> Labels:
        return labels_of([*self.labels, (SERVICE_NAME, self.service)])


def listing_id(whose: Whose, files: Iterable[SourceFile]) -> str:
    """The same for the same files and the same owner: a wish that is repeated is one plan."""
    digest = hashlib.blake2b(msgspec.msgpack.encode(whose), digest_size=16)
    for file in sorted(files, key=lambda each: each.name):
        digest.update(msgspec.msgpack.encode(file))
    return f"backfill-{digest.hexdigest()}"


def client_id(body: bytes) -> str:
    """As `maar push` gives it: a file that was pushed before is the same profile."""
    raw = gunzip(body, limit=RAW_BYTES_MAX)
    return f"maar-push-{hashlib.blake2b(raw, digest_size=16).hexdigest()}"


def read_files(
    files: Iterable[tuple[str, int, bytes | None]],  # name, size, and bytes if they are at hand
    *,
    whose: Whose,
    admit: Admit,
    read: Read,
    wall_ns: int,
) -> Iterator[ReadFile]:
    for name, size, body in files:
        if size > FILE_BYTES_MAX:
            cause = f"it has {size:,} bytes, over {FILE_BYTES_MAX:,}"
            yield ReadFile(name, FileState.REFUSED, None, cause)
            continue
        try:
            found = read(name) if body is None else body
        except NotFound as error:
            yield ReadFile(name, FileState.REFUSED, None, str(error))
            continue
        yield _judge(name, found, whose=whose, admit=admit, wall_ns=wall_ns)


def _judge(name: str, body: bytes, *, whose: Whose, admit: Admit, wall_ns: int) -> ReadFile:
    labels = whose.all_labels()
    try:
        profile = admit(labels, body, client_id(body))
    except Retryable:
        raise
    except MaarError as error:
        if isinstance(error, InvalidInput) and error.reason == "time":
            return ReadFile(name, FileState.REFUSED, None, str(error))
        bad = _raw(body, whose=whose, labels=labels, wall_ns=wall_ns)
        return ReadFile(name, FileState.BAD, bad, str(error))
    if not profile.dated:
        cause = "it has no time of its own, so nobody could say which day it belongs to"
        return ReadFile(name, FileState.REFUSED, None, cause)
    return ReadFile(name, FileState.GOOD, profile)


def _raw(body: bytes, *, whose: Whose, labels: Labels, wall_ns: int) -> RawProfile:
    """The bytes of a file that is no profile, as quarantine keeps them. Its time is that of the
    reading, and its id is of the bytes alone: the same file again is the same.
    """
    return RawProfile(
        id=profile_id(tenant=whose.tenant, labels=labels, time_ns=0, client_id="file", body=body),
        tenant=whose.tenant,
        service=whose.service,
        labels=labels,
        types=(),
        time_ns=wall_ns,
        duration_ns=0,
        samples=0,
        payload=compress(body),
        raw_size=len(body),
        dated=False,
    )


def place(file: ReadFile, *, spread: int) -> int:
    """Files of a number are written by one task: those of a day together, or, of a large source,
    in so many parts; copies of a profile always meet.
    """
    if file.profile is None:
        return 0
    day = utc_day(file.profile.time_ns)
    return day * spread + int.from_bytes(file.profile.id[:4], "little") % spread
