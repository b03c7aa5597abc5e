"""What the API asks of the query role: requests and answers are plain values."""

from __future__ import annotations

from collections.abc import Awaitable
from typing import Any, ClassVar, Protocol, TypeVar

import msgspec

from maar.model.ids import BlockId, ProfileId, TenantId
from maar.model.labels import Labels
from maar.model.time import TimeRange
from maar.ports.calls import Call

R_co = TypeVar("R_co", covariant=True)


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
    """Levels of [x offset delta, total, self, name index] quadruples; names[0] is 'total'.

    Names and levels are nearly all of it, and nearly always wanted as JSON: they are in the form
    that its protocol has for them, ["total",…] and [{"values":["0","15","4","0"]},…], from where
    they are made.
    """

    names_json: bytes
    levels_json: bytes
    total: int
    max_self: int

    @property
    def names(self) -> tuple[str, ...]:
        return msgspec.json.decode(self.names_json, type=tuple[str, ...])

    @property
    def levels(self) -> tuple[tuple[int, ...], ...]:
        return tuple(level.values for level in _levels_of(self.levels_json))


class _Level(msgspec.Struct, frozen=True):
    values: tuple[int, ...]


def _levels_of(text: bytes) -> list[_Level]:
    return msgspec.json.decode(text, type=list[_Level], strict=False)  # numbers are text


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
    """All raise InvalidInput for invalid requests, Unavailable when a part does not answer."""

    async def profile_types(self, request: ListProfileTypes) -> tuple[str, ...]: ...

    async def label_names(self, request: ListLabelNames) -> tuple[str, ...]: ...

    async def label_values(self, request: ListLabelValues) -> tuple[str, ...]: ...

    async def series(self, request: ListSeries) -> tuple[Labels, ...]: ...

    async def flamegraph(self, request: DrawFlameGraph) -> FlameGraph: ...

    async def top(self, request: RankFunctions) -> Top: ...

    async def select_series(self, request: SelectSeries) -> tuple[SeriesPoints, ...]: ...

    async def profile(self, request: GetProfile) -> bytes:
        """One profile as gzip pprof, equal to what was pushed, or NotFound."""
        ...


class QueryCall(Call[QueryEngine, R_co], frozen=True):
    """A query."""

    wire_service: ClassVar[str] = "maar.QueryEngine"
    deadline_s: ClassVar[float] = 60.0


class ScopedCall(QueryCall[R_co], frozen=True):
    """A query about all profiles of a scope."""

    scope: Scope


class ListProfileTypes(ScopedCall[tuple[str, ...]], frozen=True):
    """Types that profiles in the scope have."""

    def answer(self, port: QueryEngine) -> Awaitable[tuple[str, ...]]:
        return port.profile_types(self)


class ListLabelNames(ScopedCall[tuple[str, ...]], frozen=True):
    """Labels that profiles in the scope have."""

    def answer(self, port: QueryEngine) -> Awaitable[tuple[str, ...]]:
        return port.label_names(self)


class ListLabelValues(ScopedCall[tuple[str, ...]], frozen=True):
    """Values of one label."""

    name: str

    def answer(self, port: QueryEngine) -> Awaitable[tuple[str, ...]]:
        return port.label_values(self)


class ListSeries(ScopedCall[tuple[Labels, ...]], frozen=True):
    """Different sets of these labels; of all labels when none is named."""

    label_names: tuple[str, ...] = ()

    def answer(self, port: QueryEngine) -> Awaitable[tuple[Labels, ...]]:
        return port.series(self)


class DrawFlameGraph(ScopedCall[FlameGraph], frozen=True):
    """All stacks of one type merged, in at most so many nodes."""

    profile_type: str
    max_nodes: int

    def answer(self, port: QueryEngine) -> Awaitable[FlameGraph]:
        return port.flamegraph(self)


class RankFunctions(ScopedCall[Top], frozen=True):
    """The functions with the most of their own, so many of them."""

    profile_type: str
    limit: int

    def answer(self, port: QueryEngine) -> Awaitable[Top]:
        return port.top(self)


class SelectSeries(ScopedCall[tuple[SeriesPoints, ...]], frozen=True):
    """Values over time by labels; the largest series first.

    A point is at the start of the range and after every step, and counts what came since the point
    before it.
    """

    profile_type: str
    group_by: tuple[str, ...]
    step_ns: int
    aggregation: str  # sum or avg
    limit: int

    def answer(self, port: QueryEngine) -> Awaitable[tuple[SeriesPoints, ...]]:
        return port.select_series(self)


class GetProfile(QueryCall[bytes], frozen=True):
    """One profile, and when it may have been."""

    tenant: TenantId
    profile: ProfileId
    hint: TimeRange

    def answer(self, port: QueryEngine) -> Awaitable[bytes]:
        return port.profile(self)


CALLS: tuple[type[Call[QueryEngine, Any]], ...] = (
    ListProfileTypes,
    ListLabelNames,
    ListLabelValues,
    ListSeries,
    DrawFlameGraph,
    RankFunctions,
    SelectSeries,
    GetProfile,
)
