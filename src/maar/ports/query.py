"""What the API asks of the query role: requests and answers are plain values."""

from __future__ import annotations

from typing import Protocol

import msgspec

from maar.model.ids import BlockId, ProfileId, TenantId
from maar.model.labels import Labels
from maar.model.time import TimeRange


class Matcher(msgspec.Struct, frozen=True, array_like=True):
    """One condition on a label: op is one of = != =~ !~ (regular expressions are anchored, RE2)."""

    name: str
    op: str
    value: str


class Scope(msgspec.Struct, frozen=True):
    """Whose profiles, when, and with which labels."""

    tenant: TenantId
    range: TimeRange
    matchers: tuple[Matcher, ...] = ()
    without: tuple[BlockId, ...] = ()  # damaged blocks that the answer may lack; others never


class FlameGraph(msgspec.Struct, frozen=True):
    """Levels of [x offset delta, total, self, name index] quadruples; names[0] is 'total'."""

    names: tuple[str, ...]
    levels: tuple[tuple[int, ...], ...]
    total: int
    max_self: int


class TopRow(msgspec.Struct, frozen=True, array_like=True):
    function: str
    self_value: int
    total_value: int


class Top(msgspec.Struct, frozen=True):
    """Exact: every function counts, none is cut before the sum."""

    rows: tuple[TopRow, ...]
    total: int


class Point(msgspec.Struct, frozen=True, array_like=True):
    time_ms: int
    value: float


class SeriesPoints(msgspec.Struct, frozen=True):
    labels: Labels
    points: tuple[Point, ...]


class QueryEngine(Protocol):
    """All raise InvalidInput for what cannot be asked, Unavailable when a part is away."""

    async def profile_types(self, scope: Scope) -> tuple[str, ...]: ...

    async def label_names(self, scope: Scope) -> tuple[str, ...]: ...

    async def label_values(self, scope: Scope, *, name: str) -> tuple[str, ...]: ...

    async def series(self, scope: Scope, *, label_names: tuple[str, ...]) -> tuple[Labels, ...]: ...

    async def flamegraph(
        self, scope: Scope, *, profile_type: str, max_nodes: int
    ) -> FlameGraph: ...

    async def top(self, scope: Scope, *, profile_type: str, limit: int) -> Top: ...

    async def select_series(
        self,
        scope: Scope,
        *,
        profile_type: str,
        group_by: tuple[str, ...],
        step_ns: int,
        aggregation: str,
        limit: int,
    ) -> tuple[SeriesPoints, ...]: ...

    async def profile(self, tenant: TenantId, profile: ProfileId, hint: TimeRange) -> bytes:
        """One profile as gzip pprof, equal to what was pushed, or NotFound."""
        ...
