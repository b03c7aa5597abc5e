"""A query engine that answers from what the writer in memory was given."""

from __future__ import annotations

from maar.model.errors import NotFound
from maar.model.labels import Labels
from maar.model.profile import RawProfile
from maar.ports.calls import LocalPort
from maar.ports.reader.query import (
    DrawFlameGraph,
    FlameGraph,
    GetProfile,
    ListLabelNames,
    ListLabelValues,
    ListProfileTypes,
    ListSeries,
    Point,
    RankFunctions,
    Scope,
    SelectSeries,
    SeriesPoints,
    Top,
    TopRow,
)
from support.http.pushed import MemoryWriter
from support.oracles.graphs import graph_of


class PlainEngine(LocalPort):
    """Answers from the profiles of a MemoryWriter, by equality of labels only."""

    def __init__(self, writer: MemoryWriter) -> None:
        self._writer = writer

    def _matching(self, scope: Scope) -> list[RawProfile]:
        return [
            profile
            for profile in self._writer.profiles()
            if profile.tenant == scope.tenant
            and scope.range.overlaps(profile.time_ns, profile.time_ns)
            and all(dict(profile.labels).get(m.name, "") == m.value for m in scope.matchers)
        ]

    async def profile_types(self, request: ListProfileTypes) -> tuple[str, ...]:
        return tuple({kind for profile in self._matching(request.scope) for kind in profile.types})

    async def label_names(self, request: ListLabelNames) -> tuple[str, ...]:
        return tuple(
            {name for profile in self._matching(request.scope) for name, _ in profile.labels}
        )

    async def label_values(self, request: ListLabelValues) -> tuple[str, ...]:
        found = {
            dict(profile.labels).get(request.name, "") for profile in self._matching(request.scope)
        }
        return tuple(found - {""})

    async def series(self, request: ListSeries) -> tuple[Labels, ...]:
        label_names = request.label_names
        return tuple(
            {
                tuple(pair for pair in profile.labels if not label_names or pair[0] in label_names)
                for profile in self._matching(request.scope)
            }
        )

    async def flamegraph(self, request: DrawFlameGraph) -> FlameGraph:
        count = len(self._matching(request.scope))
        return graph_of(
            names=("total", f"of {request.max_nodes} nodes"),
            levels=((0, count, 0, 0), (0, count, count, 1)),
            total=count,
            max_self=count,
        )

    async def top(self, request: RankFunctions) -> Top:
        count = len(self._matching(request.scope))
        return Top((TopRow("work", count, count),), count)

    async def select_series(self, request: SelectSeries) -> tuple[SeriesPoints, ...]:
        count = len(self._matching(request.scope))
        return (SeriesPoints((("service_name", "shop"),), (Point(request.step_ns, float(count)),)),)

    async def profile(self, request: GetProfile) -> bytes:
        tenant, profile, hint = request.tenant, request.profile, request.hint
        for one in self._writer.profiles():
            if (
                one.id == profile
                and one.tenant == tenant
                and hint.overlaps(one.time_ns, one.time_ns)
            ):
                return one.payload
        raise NotFound(f"there is no profile {profile.hex()}")
