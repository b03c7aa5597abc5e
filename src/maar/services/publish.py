"""Put an attempt's blocks into the store: intent first, then files, the manifest last."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import msgspec

from maar.block.format import checksum
from maar.block.format.segment import SegmentBytes, segment_meta, write_segment
from maar.block.merge.build import BuiltBlock
from maar.model import keys
from maar.model.block import FORMAT_VERSION, TABLES, BlockMeta, File, Kind, Location
from maar.model.ids import (
    BlockId,
    StoreName,
    TenantId,
    joined_segment_id,
    output_id,
    segment_id,
)
from maar.model.plan import LeasedPlan
from maar.model.predicate import since
from maar.model.profile import RawProfile
from maar.model.stores import CopyMade
from maar.ports.stores.object_store import ObjectStore
from maar.ports.stores.stores import Stores, stores_of
from maar.services.markers import MarkedStores


def always() -> None:
    """The guard of an attempt that may write whenever it likes."""


class Publisher:
    """Names and writes outputs; all keys carry plan, token and attempt and are create-only (S3).

    `guard` is asked before every write, and raises once the attempt may write no more: a task that
    outlived its run and its time leaves nothing for cleaning to find (S1).
    """

    def __init__(
        self,
        plan: LeasedPlan,
        *,
        level: int,  # of what it writes
        store: ObjectStore | Stores,  # of several it writes to the one of its plan
        attempt: str,
        wall_ns: int,
        guard: Callable[[], None] = always,
        first_ordinal: int = 0,  # of its outputs: tasks of one plan must not name two alike
    ) -> None:
        self.outputs: list[BlockMeta] = []
        self._copies = 0
        self._first_ordinal = first_ordinal
        self._guard = guard
        self._plan = plan
        self._level = level
        self._store = MarkedStores(stores_of(store), plan.token.incarnation).target(plan.key.store)
        self._attempt = attempt
        self._wall_ns = wall_ns

    def block(self, built: BuiltBlock, *, tenant: TenantId, day: int) -> BlockMeta:
        """Upload the files of one block; what is returned is all that may be read of it."""
        block, stem = self._names()
        tables = {
            table: keys.table(name=table, tenant=tenant, day=day, stem=stem) for table in TABLES
        }
        manifest = keys.manifest(tenant=tenant, day=day, stem=stem)
        files = tuple(self._file(built, table, key) for table, key in tables.items())
        meta = BlockMeta(
            version=FORMAT_VERSION,
            id=block,
            kind=Kind.BLOCK,
            level=self._level,
            tenant=tenant,
            shard=self._plan.key.shard,
            store=self._plan.key.store,
            day=day,
            min_time_ns=built.min_time_ns,
            max_time_ns=built.max_time_ns,
            profiles=built.rows["profiles"],
            samples=built.rows["samples"],
            size=sum(file.size for file in files),
            files=files,
            datasets=built.datasets,
            created_by=f"plan {self._plan.id}",
            created_at_ns=self._wall_ns,
            plan=self._plan.id,
            zone=self._plan.key.zone,
            since=keys.since(manifest),
        )
        self._announce([*tables.values(), manifest])
        for table, key in tables.items():
            self._guard()
            self._store.create_from_file(key, built.paths[table])
        self._create(manifest, msgspec.msgpack.encode(meta))
        self.outputs.append(meta)
        return meta

    def segment(self, joined: SegmentBytes) -> BlockMeta:
        """The one segment that a plan makes of others; its object says all that is known of it."""
        oldest = min(block.id for block in self._plan.inputs)
        block = joined_segment_id(plan=self._plan.id, oldest_input=oldest)
        key = keys.joined_segment(shard=self._plan.key.shard, stem=self._stem(block))
        meta = segment_meta(
            joined,
            block=block,
            key=key,
            shard=self._plan.key.shard,
            store=self._plan.key.store,
            created_by=f"plan {self._plan.id}",
            created_at_ns=self._wall_ns,
            plan=self._plan.id,
        )
        self._announce([key])
        self._create(key, joined.body)
        self.outputs.append(meta)
        return meta

    def quarantine(self, held: Sequence[tuple[RawProfile, str]], *, tenant: TenantId) -> BlockMeta:
        """Keep profiles that cannot be decoded, raw, each with the cause (S17)."""
        block, stem = self._names()
        key = keys.quarantine(tenant=tenant, stem=stem)
        segment = write_segment(
            [profile for profile, _ in held],
            zone=self._plan.key.zone,
            causes=[cause for _, cause in held],
            since=keys.since(key),
        )
        meta = segment_meta(
            segment,
            block=block,
            key=key,
            shard=self._plan.key.shard,
            store=self._plan.key.store,
            created_by=f"plan {self._plan.id}",
            created_at_ns=self._wall_ns,
            kind=Kind.QUARANTINE,
            tenant=tenant,
            level=self._level,
            plan=self._plan.id,
        )
        self._announce([key])
        self._create(key, segment.body)
        self.outputs.append(meta)
        return meta

    def copy(
        self,
        meta: BlockMeta,
        files: Mapping[str, Path],
        *,
        to: StoreName,
        check: Callable[[File, str], None],
    ) -> CopyMade:
        """The files of a block that exists, under keys of this attempt, in the store `to`, which is
        the one that this publisher writes to. Each is checked where it lies now, and raises what is
        wrong with it; the manifest comes after that.
        """
        stem = self._stem(meta.id)
        placed = {file.table: _key_of(meta, file, stem) for file in meta.files}
        at_home_there = _only_in(meta, to, placed)
        manifest = [keys.manifest_of(placed["samples"])] if meta.kind is Kind.BLOCK else []
        self._announce([*placed.values(), *manifest])
        self._copies += 1
        for file in meta.files:
            key = placed[file.table]
            self._guard()
            self._store.create_from_file(key, files[file.table])
            check(file, key)
        for key in manifest:
            self._create(key, msgspec.msgpack.encode(at_home_there))
        return CopyMade(meta.id, to, tuple(placed.items()))

    def _ordinal(self) -> int:
        """Of the output or copy that comes next."""
        return self._first_ordinal + len(self.outputs) + self._copies

    def _names(self) -> tuple[BlockId, str]:
        """As old as its oldest input, or, without any, as the plan."""
        plan_id = segment_id(lease_time_ns=self._plan.scheduled_at, entropy=0)
        oldest = min((block.id for block in self._plan.inputs), default=plan_id)
        block = output_id(plan=self._plan.id, oldest_input=oldest, ordinal=self._ordinal())
        return block, self._stem(block)

    def _stem(self, block: BlockId) -> str:
        return keys.stem(
            block=block, plan=self._plan.id, token=self._plan.token, attempt=self._attempt
        )

    def _file(self, built: BuiltBlock, table: str, key: str) -> File:
        path = built.paths[table]
        return File(
            table=table,
            size=path.stat().st_size,
            checksum=checksum.of_file(path),
            footer_size=checksum.footer_size_of_file(path),
            rows=built.rows[table],
            locations=(Location(self._plan.key.store, key),),
        )

    def _announce(self, written: list[str]) -> None:
        """Say what is about to be written, so that cleaning finds it if we do not finish."""
        intent = keys.intent(
            plan=self._plan.id,
            token=self._plan.token,
            attempt=self._attempt,
            ordinal=self._ordinal(),
        )
        self._create(intent, "\n".join(written).encode())

    def _create(self, key: str, body: bytes) -> None:
        self._guard()
        self._store.create(key, body)


def _key_of(meta: BlockMeta, file: File, stem: str) -> str:
    if meta.kind is Kind.QUARANTINE:
        return keys.quarantine(tenant=meta.tenant, stem=stem)
    return keys.table(name=file.table, tenant=meta.tenant, day=meta.day, stem=stem)


def _only_in(meta: BlockMeta, store: StoreName, placed: Mapping[str, str]) -> BlockMeta:
    """As whoever has nothing but this store sees the block."""
    files = tuple(
        msgspec.structs.replace(file, locations=(Location(store, placed[file.table]),))
        for file in meta.files
    )
    return msgspec.structs.replace(meta, store=store, files=files, since=since(meta))
