"""Where every object lives. The only module that spells an object key.

    segments/v1/shard=<n>/<segment>-<incarnation>.parquet
    segments/v1/shard=<n>/joined/<segment>-<plan>-<token>-<attempt>.parquet     many in one
    lake/v1/<table>/tenant=<t>/date=<day>/<block>-<plan>-<token>-<attempt>.parquet
    lake/v1/manifests/tenant=<t>/date=<day>/<block>-<plan>-<token>-<attempt>.msgpack
    quarantine/v1/tenant=<t>/<block>-<plan>-<token>-<attempt>.parquet
    attempts/v1/<plan>/<token>/<attempt>-<n>     what the attempt is about to write, one key a line
    commits/v1/<plan>-<token>     what a bulk write wrote, one key a line: all of it is in the index
    metastore/v1/<incarnation>/snapshot-<index>.maar
    metastore/v1/<incarnation>/entry-<index>-<hash>.msgpack     an entry too large for the log
    metastore/v1/<incarnation>/successor     the log was restored as another incarnation
    metastore/v1/claim     the incarnation of the log that began in this store
    deletions/v1/<incarnation>-<index>.msgpack     a deletion by predicate, until it is carried out
    markers/v1/<incarnation>     the log of that incarnation uses this store; its name is in it
    dlq/v1/<incarnation>/<segment>.msgpack      a dead letter: a segment's metadata, not yet indexed
    dlq/v1/<incarnation>-held/<segment>.msgpack     one that cannot be delivered
    placement/v1/<incarnation>/rules-<created>.binpb     what the placement manager decided
    placement/v1/<incarnation>/stats-<created>.binpb     and from what

Every key that a plan writes contains plan, token and task attempt: no two attempts share one (S3).
The attempts of bulk writes begin with `ingest.`: what they wrote counts only with a commit object.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from typing import NamedTuple
from urllib.parse import quote, unquote

from maar.model.errors import InvalidInput
from maar.model.ids import BlockId, FencingToken, Incarnation, PlanId, Shard, TenantId

SEGMENTS = "segments/v1/"
LAKE = "lake/v1/"  # the files of all blocks, and their manifests
MANIFESTS = "lake/v1/manifests/"
QUARANTINES = "quarantine/v1/"
ATTEMPTS = "attempts/v1/"  # the intents of all attempts
COMMITS = "commits/v1/"  # of bulk writes
INGEST = "ingest."  # how the attempts of bulk writes begin
MARKERS = "markers/v1/"
DELETIONS = "deletions/v1/"  # of every incarnation
SNAPSHOTS = "metastore/v1/"  # of every incarnation
CLAIM = "metastore/v1/claim"  # one key, created once: of two logs that begin at once, one wins
DEAD_LETTERS = "dlq/v1/"  # of every incarnation, held ones too
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_WRITTEN = re.compile(  # by a plan: any object that an intent may name
    r"(?:lake/v1/[a-z]+/tenant=[^/]+/date=[0-9-]+|quarantine/v1/tenant=[^/]+"
    r"|segments/v1/shard=[0-9]{1,9}/joined)"
    r"/([0-9a-f]{32})-([^/-]+)-([^/-]+)-[^/]+\.(?:parquet|msgpack)"
)
_OF_TENANT = re.compile(r"(?:lake/v1/[a-z]+|quarantine/v1)/tenant=([^/]+)/")
_INTENT = re.compile(r"attempts/v1/([^/]+)/([^/]+)/[^/]+-[0-9]+")
_COMMIT = re.compile(r"commits/v1/([^/-]+)-([^/-]+)")
_SEGMENT = re.compile(r"segments/v1/shard=([0-9]{1,9})/([0-9a-f]{32})-([^/-]+)\.parquet")
_JOINED = re.compile(r"segments/v1/shard=([0-9]{1,9})/joined/[^/]+\.parquet")
_DELETION = re.compile(r"deletions/v1/([^/-]+)-([0-9]{1,20})\.msgpack")
_LETTER = re.compile(r"([0-9a-f]{32})\.msgpack")
_ABOUT = re.compile(r"([0-9a-f]{32})(?:-[0-9a-f]+)*\.msgpack")
_HELD = "-held"
_PLACEMENT = re.compile(r"placement/v1/[^/]+/(rules|stats)-([0-9]{20})\.binpb")


def segment(*, shard: Shard, block: BlockId, incarnation: Incarnation) -> str:
    return f"segments/v1/shard={shard}/{block}-{incarnation}.parquet"


def joined_segment(*, shard: Shard, stem: str) -> str:
    """Written by an attempt at a plan; apart from the segments of writers, which are of none."""
    return f"segments/v1/shard={shard}/joined/{stem}.parquet"


def tenant_of(key: str) -> TenantId | None:
    """Whose block an object belongs to; None of segments, which mix tenants."""
    parts = _OF_TENANT.match(key)
    return TenantId(unquote(parts[1])) if parts else None


def joined_shard(key: str) -> Shard | None:
    """The shard of a segment that a plan wrote; None when it is no such key."""
    parts = _JOINED.fullmatch(key)
    return Shard(int(parts[1])) if parts else None


def table(*, name: str, tenant: TenantId, day: int, stem: str) -> str:
    return f"lake/v1/{name}/tenant={_tenant_text(tenant)}/date={date_text(day)}/{stem}.parquet"


def manifest(*, tenant: TenantId, day: int, stem: str) -> str:
    return f"lake/v1/manifests/tenant={_tenant_text(tenant)}/date={date_text(day)}/{stem}.msgpack"


def manifest_of(table_key: str) -> str:
    """The manifest of the block that a table's file belongs to."""
    place = table_key.split("/", 3)[3].removesuffix(".parquet")
    return f"lake/v1/manifests/{place}.msgpack"


def objects_beside(key: str, tables: Iterable[str]) -> tuple[str, ...]:
    """All objects of the block that an object of a plan belongs to, a manifest first; () when it is
    none that a plan writes for one of these tables. A block that is no set of tables is one object.
    """
    if not key.startswith(LAKE):
        return (key,)
    place = key.removeprefix(LAKE).partition("/")[2].rpartition(".")[0]
    every = (f"{MANIFESTS}{place}.msgpack", *(f"{LAKE}{name}/{place}.parquet" for name in tables))
    return every if key in every else ()


def manifests_first(written: Iterable[str]) -> list[str]:
    """The order in which objects are deleted: a manifest must not name files that are gone."""
    return sorted(written, key=lambda key: not key.startswith(MANIFESTS))


def quarantine(*, tenant: TenantId, stem: str) -> str:
    return f"quarantine/v1/tenant={_tenant_text(tenant)}/{stem}.parquet"


class SegmentName(NamedTuple):
    """What the key of a segment says."""

    shard: Shard
    block: BlockId
    incarnation: Incarnation


class OutputName(NamedTuple):
    """What the key of an object that a plan wrote says."""

    block: BlockId
    plan: PlanId
    token: FencingToken


class AttemptName(NamedTuple):
    """What the key of an intent or a commit object says."""

    plan: PlanId
    token: FencingToken


def segment_name(key: str) -> SegmentName | None:
    """None when it is not the key of a segment that a writer wrote."""
    parts = _SEGMENT.fullmatch(key)
    if parts is None:
        return None
    return SegmentName(Shard(int(parts[1])), BlockId(parts[2]), Incarnation(parts[3]))


def output_name(key: str) -> OutputName | None:
    """None when no plan can have written it."""
    parts = _WRITTEN.fullmatch(key)
    if parts is None:
        return None
    try:
        return OutputName(BlockId(parts[1]), PlanId.parse(parts[2]), FencingToken.parse(parts[3]))
    except InvalidInput:
        return None


def intent(*, plan: PlanId, token: FencingToken, attempt: str, ordinal: int) -> str:
    return f"{attempt_prefix(plan=plan, token=token)}{attempt}-{ordinal}"


def intent_name(key: str) -> AttemptName | None:
    """None when no attempt can have written it as an intent."""
    named = _attempt_name(_INTENT.fullmatch(key))
    if named is None or not key.startswith(attempt_prefix(plan=named.plan, token=named.token)):
        return None
    return named


def attempt_prefix(*, plan: PlanId, token: FencingToken) -> str:
    return f"attempts/v1/{plan}/{token}/"


def intents_of(key: str) -> str:
    """What the intents of the attempt that wrote an object have in common."""
    _, plan, token, attempt = key.rpartition("/")[2].rpartition(".")[0].split("-", 3)
    return f"attempts/v1/{plan}/{token}/{attempt}-"


def attempt_block(key: str, *, plan: PlanId, token: FencingToken) -> BlockId | None:
    """The block that an object of this attempt belongs to; None when it is no such object."""
    parts = _WRITTEN.fullmatch(key)
    if parts is None or (parts[2], parts[3]) != (str(plan), str(token)):
        return None
    return BlockId(parts[1])


def stem(*, block: BlockId, plan: PlanId, token: FencingToken, attempt: str) -> str:
    return f"{block}-{plan}-{token}-{attempt}"


def ingest_attempt(attempt: str) -> str:
    """The attempt of a bulk write, so named that every key tells."""
    return f"{INGEST}{attempt}"


def is_ingested(key: str) -> bool:
    """Whether an object that a plan wrote is of a bulk write: none without its commit object."""
    parts = _WRITTEN.fullmatch(key)
    return parts is not None and key.rpartition("/")[2].split("-", 3)[3].startswith(INGEST)


def since(key: str) -> int:
    """The entry that gave leave to write an object: what granted the plan; of a bulk write, which
    has its data from when it was opened, what scheduled it. 0 when no plan wrote it.
    """
    written = output_name(key)
    if written is None:
        return 0
    return written.plan.index if is_ingested(key) else written.token.index


def commit(*, plan: PlanId, token: FencingToken) -> str:
    """Written when a bulk write is in the index whole, before anybody is told."""
    return f"{COMMITS}{plan}-{token}"


def commit_name(key: str) -> AttemptName | None:
    """The attempt that a commit object is of; None when it is no such key."""
    named = _attempt_name(_COMMIT.fullmatch(key))
    if named is None or key != commit(plan=named.plan, token=named.token):
        return None
    return named


def _attempt_name(parts: re.Match[str] | None) -> AttemptName | None:
    """Plan and token, if they are the first two groups of a key that matched."""
    if parts is None:
        return None
    try:
        return AttemptName(PlanId.parse(parts[1]), FencingToken.parse(parts[2]))
    except InvalidInput:
        return None


def is_of_attempt(key: str, of_none: str) -> bool:
    """Whether a key is the same as one whose stem has an empty attempt, with any attempt in it."""
    head, dot, suffix = of_none.rpartition(".")
    attempt = key.removeprefix(head).removesuffix(dot + suffix)
    return key == f"{head}{attempt}{dot}{suffix}" and attempt != "" and "/" not in attempt


def snapshot(*, incarnation: Incarnation, index: int) -> str:
    return f"{snapshot_prefix(incarnation)}snapshot-{index:016d}.maar"


def stored_entry(*, incarnation: Incarnation, index: int, sha256: bytes) -> str:
    return f"{stored_entry_prefix(incarnation)}{index:016d}-{sha256.hex()}.msgpack"


def stored_entry_prefix(incarnation: Incarnation) -> str:
    return f"metastore/v1/{incarnation}/entry-"


def snapshot_prefix(incarnation: Incarnation) -> str:
    return f"{SNAPSHOTS}{incarnation}/"


def successor(incarnation: Incarnation) -> str:
    """Says as which incarnation a log was restored: the old one must not be used any more."""
    return f"{snapshot_prefix(incarnation)}successor"


class DeletionName(NamedTuple):
    """What the key of a deletion says."""

    incarnation: Incarnation
    predicate: int  # its id


def deletion(*, incarnation: Incarnation, index: int) -> str:
    return f"{DELETIONS}{incarnation}-{index:020d}.msgpack"


def deletion_name(key: str) -> DeletionName | None:
    parts = _DELETION.fullmatch(key)
    return DeletionName(Incarnation(parts[1]), int(parts[2])) if parts else None


def marker(incarnation: Incarnation) -> str:
    return f"markers/v1/{incarnation}"


def dead_letter(*, incarnation: Incarnation, block: BlockId) -> str:
    return f"{dead_letters(incarnation)}{block}.msgpack"


def dead_letters(incarnation: Incarnation) -> str:
    """What all dead letters of a log have in common."""
    return f"{DEAD_LETTERS}{incarnation}/"


def held_letter(*, incarnation: Incarnation, name: str) -> str:
    return f"{held_letters(incarnation)}{name}"


def held_letters(incarnation: Incarnation) -> str:
    return f"{DEAD_LETTERS}{incarnation}{_HELD}/"


def letter_block(name: str) -> BlockId | None:
    """The block that a letter is about, by the name of its object; None when it is no such name."""
    parts = _LETTER.fullmatch(name)
    return BlockId(parts[1]) if parts else None


def letter_about(name: str) -> BlockId | None:
    """The same, of any name that a letter may have: one that was held twice has a longer one."""
    parts = _ABOUT.fullmatch(name)
    return BlockId(parts[1]) if parts else None


def letter_place(key: str) -> tuple[Incarnation, bool, str]:
    """Of an object among dead letters: of which log it is, whether it is held, and its name."""
    folder, _, name = key.removeprefix(DEAD_LETTERS).partition("/")
    return Incarnation(folder.removesuffix(_HELD)), folder.endswith(_HELD), name


def placement_rules(*, incarnation: Incarnation, created_at: int) -> str:
    return f"{placement_prefix(incarnation)}rules-{created_at:020d}.binpb"


def placement_stats(*, incarnation: Incarnation, created_at: int) -> str:
    return f"{placement_prefix(incarnation)}stats-{created_at:020d}.binpb"


def placement_time(key: str, *, kind: str) -> int | None:
    """When rules or stats were made, by their name; None when the key is none of theirs."""
    parts = _PLACEMENT.fullmatch(key)
    return int(parts[2]) if parts is not None and parts[1] == kind else None


def placement_prefix(incarnation: Incarnation) -> str:
    return f"placement/v1/{incarnation}/"


@lru_cache(maxsize=1024)  # every key of a block has it
def _tenant_text(tenant: TenantId) -> str:
    return quote(tenant, safe="")


@lru_cache(maxsize=128)  # every key of a block has it, and a day has many blocks
def date_text(day: int) -> str:
    return (_EPOCH + timedelta(days=day)).strftime("%Y-%m-%d")
