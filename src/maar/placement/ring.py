"""Which shard takes a profile: a tenant's subring, a dataset's within it, then one shard."""

from __future__ import annotations

import msgspec
import xxhash

from maar.model.ids import Shard, TenantId
from maar.placement.jump import jump
from maar.ports.metastore import ShardAssignment


class StaticRing(msgspec.Struct, frozen=True):
    """One node with all shards: the simplest ring, behind the seam where a real one will stand.

    A tenant may use the whole ring. A service keeps to `dataset_shards` of it, so that its
    profiles meet in few segments, which keeps row groups large and compaction cheap.
    """

    node: str
    shards: int = 4
    dataset_shards: int = 1

    def place(self, tenant: TenantId, service: str, fingerprint: int) -> Shard:
        tenant_start = jump(xxhash.xxh64_intdigest(tenant.encode()), self.shards)
        dataset_start = jump(xxhash.xxh64_intdigest(service.encode()), self.shards)
        width = min(self.shards, max(1, self.dataset_shards))
        offset = tenant_start + dataset_start + fingerprint % width
        return Shard(offset % self.shards + 1)  # 0 means "none"

    def assignments(self) -> tuple[ShardAssignment, ...]:
        return tuple(
            ShardAssignment(Shard(shard), self.node) for shard in range(1, self.shards + 1)
        )
