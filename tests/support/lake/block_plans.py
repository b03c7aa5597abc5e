"""Profiles, segments and leased plans for tests of blocks: real files in a real (small) store."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import count
from pathlib import Path

from maar.block.format.hashing import ALL_BITS
from maar.block.format.segment import segment_meta, write_segment
from maar.block.read.restore import profile_from_block, profile_from_segment
from maar.model import keys
from maar.model.block import BlockMeta, Kind
from maar.model.ids import (
    MAIN_STORE,
    BlockId,
    FencingToken,
    Incarnation,
    PlanId,
    ProfileId,
    Shard,
    TenantId,
    segment_id,
)
from maar.model.labels import Labels, labels_of
from maar.model.plan import LeasedPlan, PlanResult, QueueKey
from maar.model.profile import RawProfile, profile_id, profile_type
from maar.ports.stores.object_store import ObjectStore
from maar.pprof.encode import encode
from maar.pprof.gzip import compress
from maar.pprof.plain import PlainProfile
from maar.services.compact.rules import COMPACT
from maar.services.compact.run import SIZES, CompactSizes
from maar.services.compact.run import run as compact
from support.oracles.pprof_reader import read_plain

TENANT = TenantId("acme")
NOON_NS = 1_790_000_000_000_000_000 // 86_400_000_000_000 * 86_400_000_000_000 + 43_200_000_000_000
INCARNATION = Incarnation("0badcafe")
WALL_NS = NOON_NS + 1


def raw_profile(
    plain: PlainProfile | bytes,
    *,
    service: str = "checkout",
    tenant: TenantId = TENANT,
    time_ns: int = NOON_NS,
    client_id: str = "",
    labels: Labels = (),
) -> RawProfile:
    """A profile as the distributor hands it on."""
    body = plain if isinstance(plain, bytes) else encode(plain)
    plain = read_plain(body)
    named = labels_of([("service_name", service), ("__name__", "process_cpu"), *labels])
    kind, unit = plain.period_type
    return RawProfile(
        id=profile_id(tenant=tenant, labels=named, time_ns=time_ns, client_id=client_id, body=body),
        tenant=tenant,
        service=service,
        labels=named,
        types=tuple(
            profile_type(
                name="process_cpu",
                sample_type=sample_type,
                sample_unit=sample_unit,
                period_type=kind,
                period_unit=unit,
            )
            for sample_type, sample_unit in plain.sample_types
        ),
        time_ns=time_ns,
        duration_ns=plain.duration_ns,
        samples=len(plain.samples),
        payload=compress(body),
        raw_size=len(body),
    )


class Bench:
    """A store, and a hand that writes segments and carries plans out."""

    def __init__(self, store: ObjectStore, scratch: Path, *, first: int = 1) -> None:
        self.store = store
        self.scratch = scratch
        self._numbers = count(first)

    def segment(self, profiles: Sequence[RawProfile]) -> BlockMeta:
        number = next(self._numbers)
        block = segment_id(lease_time_ns=number * 1_000, entropy=number)
        written = write_segment(profiles)
        key = keys.segment(shard=Shard(1), block=block, incarnation=INCARNATION)
        self.store.create(key, written.body)
        return segment_meta(
            written,
            block=block,
            key=key,
            shard=Shard(1),
            store=MAIN_STORE,
            created_by="a test",
            created_at_ns=WALL_NS,
        )

    def plan(self, inputs: Sequence[BlockMeta], *, target: int = 1 << 30) -> LeasedPlan:
        number = next(self._numbers)
        first = inputs[0]
        return LeasedPlan(
            id=PlanId(number, 0),
            kind=COMPACT,
            token=FencingToken(INCARNATION, number),
            key=QueueKey(first.store, first.tenant, first.shard, first.level),
            inputs=tuple(inputs),
            target_block_bytes=target,
            lease_ns=15_000_000_000,
        )

    def compact(
        self,
        inputs: Sequence[BlockMeta],
        *,
        target: int = 1 << 30,
        id_mask: int = ALL_BITS,
        sizes: CompactSizes = SIZES,
    ) -> PlanResult:
        return compact(
            self.plan(inputs, target=target),
            store=self.store,
            attempt="a1",
            scratch=self.scratch,
            wall_ns=WALL_NS,
            id_mask=id_mask,
            sizes=sizes,
        )

    def get(
        self, blocks: Sequence[BlockMeta], profile: ProfileId, *, tenant: TenantId = TENANT
    ) -> list[bytes]:
        """The profile from every block that has it: one, if all is well."""
        found = [
            profile_from_block(self.store, meta, profile)
            if meta.kind is Kind.BLOCK
            else profile_from_segment(self.store, meta, profile, tenant=tenant)
            for meta in blocks
            if meta.tenant in ("", tenant)
        ]
        return [body for body in found if body is not None]


def ids(blocks: Sequence[BlockMeta]) -> list[BlockId]:
    return [block.id for block in blocks]
