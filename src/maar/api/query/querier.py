"""querier.v1.QuerierService: what Grafana and our own page and commands ask."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any

import msgspec

from maar.api.errors import Unimplemented
from maar.api.protocol import wire
from maar.api.protocol.connect import Reply
from maar.api.times import range_of_ms
from maar.model.errors import InvalidInput
from maar.model.ids import TenantId
from maar.model.labels import Labels, sanitize_name
from maar.model.time import SECOND_NS, TimeRange
from maar.ports.calls import Caller
from maar.ports.reader.query import (
    DrawFlameGraph,
    FlameGraph,
    ListLabelNames,
    ListLabelValues,
    ListProfileTypes,
    ListSeries,
    Point,
    QueryEngine,
    Scope,
    SelectSeries,
    SeriesPoints,
)
from maar.query.decide.select import profile_type_of
from maar.query.decide.selector import parse_selector

NODES_DEFAULT = 8192
NODES_MAX = 1 << 20
POINTS_MAX = 11_000
SELECTORS_MAX = 32
NAMES_MAX = 64
TYPE_LENGTH_MAX = 2048
SERIES_LIMIT_MAX = 10_000
NUMBER_BYTES = 6  # of a flame graph's JSON, about
FLAMEGRAPH_FORMATS = (0, 1)
NO_EXEMPLARS = (0, 1)  # unspecified, none
AGGREGATIONS = {0: "sum", 1: "avg"}
_TYPE_FIELDS = ("ID", "name", "sample_type", "sample_unit", "period_type", "period_unit")
_TYPE_NAMES = ("ID", "name", "sampleType", "sampleUnit", "periodType", "periodUnit")  # in JSON


class Querier:
    """Each method takes a tenant and a request message, and gives a response message."""

    def __init__(self, engine: Caller[QueryEngine], whole_range: Callable[[], TimeRange]) -> None:
        self._engine = engine
        self._whole_range = whole_range

    async def profile_types(self, tenant: TenantId, request: Any) -> Reply:
        scope = Scope(tenant, self._range(request))
        return types_reply(sorted(await self._engine.call(ListProfileTypes(scope)))), None

    async def label_names(self, tenant: TenantId, request: Any) -> Reply:
        names: set[str] = set()
        for scope in self._scopes(tenant, request):
            names.update(await self._engine.call(ListLabelNames(scope)))
        return names_reply(wire.LabelNamesResponse, sorted(names)), None

    async def label_values(self, tenant: TenantId, request: Any) -> Reply:
        if not request.name:
            raise InvalidInput("the request names no label whose values it wants", reason="request")
        values: set[str] = set()
        name = sanitize_name(request.name)
        for scope in self._scopes(tenant, request):
            values.update(await self._engine.call(ListLabelValues(scope, name)))
        return names_reply(wire.LabelValuesResponse, sorted(values)), None

    async def series(self, tenant: TenantId, request: Any) -> Reply:
        label_names = _names(request.label_names)
        scopes = self._scopes(tenant, request)
        found = [await self._engine.call(ListSeries(scope, label_names)) for scope in scopes]
        return label_sets_reply(found[0] if len(found) == 1 else sorted(set().union(*found))), None

    async def select_merge_stacktraces(self, tenant: TenantId, request: Any) -> Reply:
        if request.format not in FLAMEGRAPH_FORMATS:
            raise Unimplemented(
                f"profile format {request.format} is not offered; ask for a flame graph (format 1)"
            )
        _refuse_selectors(
            request,
            ("stack_trace_selector", "profile_id_selector", "async"),
            ("trace_id_selector", "span_selector"),
        )
        graph = await self._engine.call(
            DrawFlameGraph(
                self._scope_of(tenant, request),
                profile_type=check_type(request.profile_typeID),
                max_nodes=_max_nodes(request),
            )
        )
        return graph_reply(graph), None

    async def select_series(self, tenant: TenantId, request: Any) -> Reply:
        _refuse_selectors(request, ("stack_trace_selector",))
        if request.exemplar_type not in NO_EXEMPLARS:
            raise Unimplemented(
                "exemplars are not offered; leave out exemplar_type, or ask for none (1)"
            )
        scope = self._scope_of(tenant, request)
        found = await self._engine.call(
            SelectSeries(
                scope,
                profile_type=check_type(request.profile_typeID),
                group_by=_names(request.group_by),
                step_ns=_step_ns(request.step, scope.range),
                aggregation=_aggregation(request.aggregation),
                limit=max(0, min(request.limit, SERIES_LIMIT_MAX)),
            )
        )
        return series_reply(found), None

    def _range(self, request: Any) -> TimeRange:
        return range_of_ms(request.start, request.end, whole=self._whole_range())

    def _scopes(self, tenant: TenantId, request: Any) -> list[Scope]:
        """One for each selector; what matches any of them is wanted."""
        if len(request.matchers) > SELECTORS_MAX:
            raise InvalidInput(
                f"{len(request.matchers)} selectors are over {SELECTORS_MAX}", reason="selector"
            )
        wanted = self._range(request)
        return [
            Scope(tenant, wanted, parse_selector(text)) for text in (request.matchers or ("{}",))
        ]

    def _scope_of(self, tenant: TenantId, request: Any) -> Scope:
        return Scope(tenant, self._range(request), parse_selector(request.label_selector))


def profile_type_parts(text: str) -> tuple[str, str, str, str, str]:
    """Split from both ends: a colon in the middle belongs to the sample type."""
    name, _, rest = text.partition(":")
    parts = rest.rsplit(":", 3)
    if len(parts) != 4:
        return text, "", "", "", ""
    return name, parts[0], parts[1], parts[2], parts[3]


def check_type(text: str) -> str:
    """A profile type id as it is stored."""
    if len(text) > TYPE_LENGTH_MAX:
        raise InvalidInput(
            f"a profile type of {len(text)} characters is over {TYPE_LENGTH_MAX}",
            reason="profile_type",
        )
    return profile_type_of(text)


def _names(given: Sequence[str]) -> tuple[str, ...]:
    """Label names as they are stored; each costs a column of the answer."""
    if len(given) > NAMES_MAX:
        raise InvalidInput(f"{len(given)} label names are over {NAMES_MAX}", reason="request")
    return tuple(map(sanitize_name, given))


def _refuse_selectors(request: Any, *groups: tuple[str, ...]) -> None:
    given = {field.name for field, _ in request.ListFields()}
    for name in (name for group in groups for name in group):
        if name in given:
            raise Unimplemented(f"{name} is not offered; leave it out")


def _max_nodes(request: Any) -> int:
    if request.max_nodes < 0 or request.max_nodes > NODES_MAX:
        raise InvalidInput(
            f"max_nodes {request.max_nodes} is not between 1 and {NODES_MAX}", reason="max_nodes"
        )
    return int(request.max_nodes) or NODES_DEFAULT


def _step_ns(step_s: float, over: TimeRange) -> int:
    if not math.isfinite(step_s) or step_s < 0.001:
        raise InvalidInput(
            f"step {step_s} is not a number of seconds, of at least 0.001", reason="step"
        )
    step_ns = int(min(step_s, 1e9) * SECOND_NS)
    points = (over.end_ns - over.start_ns) // step_ns
    if points > POINTS_MAX:
        raise InvalidInput(
            f"a step of {step_s} s gives {points} points, over {POINTS_MAX}; take a longer step",
            reason="step",
        )
    return step_ns


def _aggregation(number: int) -> str:
    if number not in AGGREGATIONS:
        raise InvalidInput(f"aggregation {number} is neither 0 (sum) nor 1 (avg)", reason="request")
    return AGGREGATIONS[number]


def types_reply(found: Sequence[str]) -> wire.Prepared:
    """A ProfileTypesResponse."""

    def message() -> Any:
        reply = wire.ProfileTypesResponse()
        for text in found:
            reply.profile_types.add(**dict(zip(_TYPE_FIELDS, _type_row(text), strict=True)))
        return reply

    def plain() -> dict[str, Any]:
        rows = list(map(_plain_type, found))
        return {"profileTypes": rows} if rows else {}

    return wire.Prepared(message, plain, parts=len(_TYPE_NAMES) * len(found))


@lru_cache(maxsize=1024)  # most answers have the same ones
def _plain_type(text: str) -> dict[str, str]:
    row = zip(_TYPE_NAMES, _type_row(text), strict=True)
    return {name: value for name, value in row if value}


def _type_row(text: str) -> tuple[str, ...]:
    return text, *profile_type_parts(text)


def names_reply(kind: Any, names: list[str]) -> wire.Prepared:
    """A LabelNamesResponse or LabelValuesResponse."""
    plain = {"names": names} if names else {}
    return wire.Prepared(lambda: kind(names=names), lambda: plain, parts=len(names))


def graph_reply(graph: FlameGraph) -> wire.Prepared:
    """A SelectMergeStacktracesResponse."""

    def message() -> Any:
        reply = wire.SelectMergeStacktracesResponse()
        reply.flamegraph.names.extend(graph.names)
        for level in graph.levels:
            reply.flamegraph.levels.add().values.extend(level)
        reply.flamegraph.total = graph.total
        reply.flamegraph.max_self = graph.max_self
        return reply

    def plain() -> dict[str, Any]:
        names, levels = msgspec.Raw(graph.names_json), msgspec.Raw(graph.levels_json)
        drawn: dict[str, Any] = {"names": names, "levels": levels}
        if graph.total:
            drawn["total"] = str(graph.total)
        if graph.max_self:
            drawn["maxSelf"] = str(graph.max_self)
        return {"flamegraph": drawn}

    parts = len(graph.levels_json) // NUMBER_BYTES
    return wire.Prepared(message, plain, parts=parts, json_is_text=True)


def label_sets_reply(found: Sequence[Labels]) -> wire.Prepared:
    """A SeriesResponse."""

    def message() -> Any:
        reply = wire.SeriesResponse()
        for labels in found:
            _add_labels(reply.labels_set.add(), labels)
        return reply

    def plain() -> dict[str, Any]:
        pairs = set().union(*found)  # most are in many sets
        texts = {pair: msgspec.json.encode(_plain_label(*pair)) for pair in pairs}
        sets = [_plain_set([texts[pair] for pair in labels]) for labels in found]
        return {"labelsSet": sets} if sets else {}

    return wire.Prepared(message, plain, parts=sum(map(len, found)))


def series_reply(found: Sequence[SeriesPoints]) -> wire.Prepared:
    """A SelectSeriesResponse."""

    def message() -> Any:
        reply = wire.SelectSeriesResponse()
        for one in found:
            series = reply.series.add()
            _add_labels(series, one.labels)
            for point in one.points:
                series.points.add(value=point.value, timestamp=point.time_ms)
        return reply

    def plain() -> dict[str, Any]:
        rows: list[dict[str, Any]] = []
        for one in found:
            row: dict[str, Any] = {"labels": _plain_labels(one.labels)} if one.labels else {}
            if one.points:
                row["points"] = [_plain_point(point) for point in one.points]
            rows.append(row)
        return {"series": rows} if rows else {}

    return wire.Prepared(message, plain, parts=sum(len(one.points) + 4 for one in found))


def _plain_labels(labels: Labels) -> list[dict[str, str]]:
    return [
        {"name": name, "value": value} if name and value else _plain_label(name, value)
        for name, value in labels
    ]


def _plain_set(labels: list[bytes]) -> msgspec.Raw:
    return msgspec.Raw(b'{"labels":[' + b",".join(labels) + b"]}" if labels else b"{}")


def _plain_label(name: str, value: str) -> dict[str, str]:
    """What is the default is left out."""
    return {key: text for key, text in (("name", name), ("value", value)) if text}


def _plain_point(point: Point) -> dict[str, Any]:
    """Likewise; -0.0 is no default."""
    if point.value and point.time_ms:
        return {"value": point.value, "timestamp": str(point.time_ms)}
    found: dict[str, Any] = {}
    if point.value or math.copysign(1.0, point.value) < 0:
        found["value"] = point.value
    if point.time_ms:
        found["timestamp"] = str(point.time_ms)
    return found


def _add_labels(target: Any, labels: Labels) -> None:
    for name, value in labels:
        target.labels.add(name=name, value=value)
