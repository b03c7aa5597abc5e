"""The roles of other processes, as the ports that they serve."""

from __future__ import annotations

from maar.adapters.rpc.channel import Channel
from maar.adapters.rpc.methods import (
    FLAMEGRAPH,
    LABEL_NAMES,
    LABEL_VALUES,
    METRICS,
    PIN,
    PROFILE,
    PROFILE_TYPES,
    PUSH,
    READY,
    REBUILD,
    REPLICA,
    SELECT_SERIES,
    SERIES,
    SNAPSHOT,
    TOP,
    VOTE,
)
from maar.model.ids import ProfileId, Shard, TenantId
from maar.model.labels import Labels
from maar.model.profile import RawProfile
from maar.model.time import TimeRange
from maar.ports.query import FlameGraph, Scope, SeriesPoints, Top
from maar.ports.replica import ReplicaStatus, Vote

QUERY_DEADLINE_S = 60.0
ROLE_DEADLINE_S = 2.0
REPLICA_DEADLINE_S = 5.0
LONG_DEADLINE_S = 900.0  # a whole log is folded meanwhile


class QueryClient(Channel):
    """The query role of another process."""

    def __init__(self, address: str, *, deadline_s: float = QUERY_DEADLINE_S) -> None:
        super().__init__(address, deadline_s=deadline_s)

    async def profile_types(self, scope: Scope) -> tuple[str, ...]:
        return await self._call(PROFILE_TYPES, scope)

    async def label_names(self, scope: Scope) -> tuple[str, ...]:
        return await self._call(LABEL_NAMES, scope)

    async def label_values(self, scope: Scope, *, name: str) -> tuple[str, ...]:
        return await self._call(LABEL_VALUES, scope, name)

    async def series(self, scope: Scope, *, label_names: tuple[str, ...]) -> tuple[Labels, ...]:
        return await self._call(SERIES, scope, label_names)

    async def flamegraph(self, scope: Scope, *, profile_type: str, max_nodes: int) -> FlameGraph:
        return await self._call(FLAMEGRAPH, scope, profile_type, max_nodes)

    async def top(self, scope: Scope, *, profile_type: str, limit: int) -> Top:
        return await self._call(TOP, scope, profile_type, limit)

    async def select_series(
        self,
        scope: Scope,
        *,
        profile_type: str,
        group_by: tuple[str, ...],
        step_ns: int,
        aggregation: str,
        limit: int,
    ) -> tuple[SeriesPoints, ...]:
        return await self._call(
            SELECT_SERIES, scope, profile_type, group_by, step_ns, aggregation, limit
        )

    async def profile(self, tenant: TenantId, profile: ProfileId, hint: TimeRange) -> bytes:
        return await self._call(PROFILE, tenant, profile, hint)


class SegmentWriterClient(Channel):
    """A segment writer of another process; a push waits there for its segment."""

    def __init__(self, address: str, *, deadline_s: float) -> None:
        super().__init__(address, deadline_s=deadline_s)

    async def push(self, shard: Shard, profiles: tuple[RawProfile, ...]) -> None:
        await self._call(PUSH, shard, profiles)


class RoleClient(Channel):
    """What another process tells about itself."""

    def __init__(self, address: str, *, deadline_s: float = ROLE_DEADLINE_S) -> None:
        super().__init__(address, deadline_s=deadline_s)

    async def metrics(self) -> str:
        return await self._call(METRICS)

    async def ready(self) -> str:
        return await self._call(READY)


class ReplicaClient(Channel):
    """One replica of the metastore in another process, asked for itself: nothing is passed on."""

    def __init__(self, address: str, *, deadline_s: float = REPLICA_DEADLINE_S) -> None:
        super().__init__(address, deadline_s=deadline_s)

    async def replica(self) -> ReplicaStatus:
        return await self._call(REPLICA)

    async def vote(self, vote: Vote) -> None:
        await self._call(VOTE, vote)

    async def pin(self, reader: str) -> int:
        return await self._call(PIN, reader)

    async def snapshot(self) -> int:
        return await self.call(SNAPSHOT, (), within_s=LONG_DEADLINE_S)

    async def rebuild(self) -> ReplicaStatus:
        return await self.call(REBUILD, (), within_s=LONG_DEADLINE_S)
