"""The messages of the public API, built from their field numbers when the server starts."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Callable
from functools import cache
from math import copysign
from typing import Any, NamedTuple

from maar.model.messages import messages

_ENUMS: dict[str, dict[str, tuple[str, ...]]] = {
    "types.v1": {
        "ExemplarType": (
            "EXEMPLAR_TYPE_UNSPECIFIED",
            "EXEMPLAR_TYPE_NONE",
            "EXEMPLAR_TYPE_INDIVIDUAL",
            "EXEMPLAR_TYPE_SPAN",
        ),
        "TimeSeriesAggregationType": (
            "TIME_SERIES_AGGREGATION_TYPE_SUM",
            "TIME_SERIES_AGGREGATION_TYPE_AVERAGE",
        ),
    },
    "querier.v1": {
        "ProfileFormat": (
            "PROFILE_FORMAT_UNSPECIFIED",
            "PROFILE_FORMAT_FLAMEGRAPH",
            "PROFILE_FORMAT_TREE",
            "PROFILE_FORMAT_DOT",
            "PROFILE_FORMAT_PPROF",
        ),
    },
}
_RANGE = ("3 start int64", "4 end int64")
_SELECT = ("1 profile_typeID string", "2 label_selector string", *_RANGE)
_FILES: dict[str, dict[str, tuple[str, ...]]] = {
    "types.v1": {
        "LabelPair": ("1 name string", "2 value string"),
        "Labels": ("1 labels .types.v1.LabelPair[]",),
        "ProfileType": (
            "1 ID string",
            "2 name string",
            "4 sample_type string",
            "5 sample_unit string",
            "6 period_type string",
            "7 period_unit string",
        ),
        "LabelNamesRequest": ("1 matchers string[]", "2 start int64", "3 end int64"),
        "LabelNamesResponse": ("1 names string[]",),
        "LabelValuesRequest": ("1 name string", "2 matchers string[]", *_RANGE),
        "LabelValuesResponse": ("1 names string[]",),
        "Point": ("1 value double", "2 timestamp int64"),
        "Series": ("1 labels .types.v1.LabelPair[]", "2 points .types.v1.Point[]"),
        "Location": ("1 name string",),
        "StackTraceSelector": ("1 call_site .types.v1.Location[]",),
    },
    "push.v1": {
        "PushRequest": ("1 series .push.v1.RawProfileSeries[]",),
        "RawProfileSeries": ("1 labels .types.v1.LabelPair[]", "2 samples .push.v1.RawSample[]"),
        "RawSample": ("1 raw_profile bytes", "2 ID string"),
        "PushResponse": (),
    },
    "querier.v1": {
        "ProfileTypesRequest": ("1 start int64", "2 end int64"),
        "ProfileTypesResponse": ("1 profile_types .types.v1.ProfileType[]",),
        "SeriesRequest": ("1 matchers string[]", "2 label_names string[]", *_RANGE),
        "SeriesResponse": ("2 labels_set .types.v1.Labels[]",),
        "AsyncRequest": ("1 request_id string", "2 type int32"),
        "SelectMergeStacktracesRequest": (
            *_SELECT,
            "5 max_nodes int64?",
            "6 format =querier.v1.ProfileFormat",
            "7 stack_trace_selector .types.v1.StackTraceSelector",
            "8 profile_id_selector string[]",
            "9 async .querier.v1.AsyncRequest",
            "10 trace_id_selector string[]",
            "11 span_selector string[]",
        ),
        "Level": ("1 values int64[]",),
        "FlameGraph": (
            "1 names string[]",
            "2 levels .querier.v1.Level[]",
            "3 total int64",
            "4 max_self int64",
        ),
        "SelectMergeStacktracesResponse": ("1 flamegraph .querier.v1.FlameGraph",),
        "SelectSeriesRequest": (
            *_SELECT,
            "5 group_by string[]",
            "6 step double",
            "7 aggregation =types.v1.TimeSeriesAggregationType?",
            "8 stack_trace_selector .types.v1.StackTraceSelector",
            "9 limit int64?",
            "10 exemplar_type =types.v1.ExemplarType",
        ),
        "SelectSeriesResponse": ("1 series .types.v1.Series[]",),
    },
}


_message = messages(_FILES, _ENUMS)

PushRequest = _message("push.v1.PushRequest")
PushResponse = _message("push.v1.PushResponse")
LabelNamesRequest = _message("types.v1.LabelNamesRequest")
LabelNamesResponse = _message("types.v1.LabelNamesResponse")
LabelValuesRequest = _message("types.v1.LabelValuesRequest")
LabelValuesResponse = _message("types.v1.LabelValuesResponse")
ProfileTypesRequest = _message("querier.v1.ProfileTypesRequest")
ProfileTypesResponse = _message("querier.v1.ProfileTypesResponse")
SeriesRequest = _message("querier.v1.SeriesRequest")
SeriesResponse = _message("querier.v1.SeriesResponse")
SelectMergeStacktracesRequest = _message("querier.v1.SelectMergeStacktracesRequest")
SelectMergeStacktracesResponse = _message("querier.v1.SelectMergeStacktracesResponse")
SelectSeriesRequest = _message("querier.v1.SelectSeriesRequest")
SelectSeriesResponse = _message("querier.v1.SelectSeriesResponse")


class Prepared(NamedTuple):
    """An answer of many small parts, made as the client wants it: as JSON without a message."""

    message: Callable[[], Any]
    json: Callable[[], dict[str, Any]]  # encodes as what `json_of` would make of the message
    parts: int  # about how many
    json_is_text: bool = False  # it is written already, as nearly all of it


def json_of(message: Any) -> dict[str, Any]:
    """The message in proto3's JSON mapping: lowerCamelCase, 64-bit numbers as text, no defaults.

    Ten times faster than protobuf's own on a large flame graph, which is nothing but numbers.
    """
    return _encoder(message.DESCRIPTOR)(message)


@cache
def _encoder(descriptor: Any) -> Callable[[Any], dict[str, Any]]:
    """What makes JSON of one kind of message: which fields it has is asked once and not each time,
    since a long series has many thousands of points.
    """
    fields = [
        (field.name, field.json_name, _converter(field), _is_present(field))
        for field in descriptor.fields
    ]

    def encode(message: Any) -> dict[str, Any]:
        found = {}
        for name, json_name, convert, present in fields:
            value = getattr(message, name)
            if value if present is None else present(message, value):
                found[json_name] = convert(value) if convert else value
        return found

    return encode


def _is_present(field: Any) -> Callable[[Any, Any], bool] | None:
    """Whether a message has a field; None: when its value is not the default, which is falsy."""
    if field.has_presence:
        return lambda message, _: bool(message.HasField(field.name))
    if field.cpp_type in (field.CPPTYPE_DOUBLE, field.CPPTYPE_FLOAT) and not field.is_repeated:
        return lambda _, value: bool(value) or copysign(1.0, value) < 0  # -0.0 is no default
    return None


def _converter(field: Any) -> Callable[[Any], Any] | None:
    """From a value to JSON; None when it is the same."""
    one = _converter_of_one(field)
    if not field.is_repeated:
        return one
    return (lambda values: list(map(one, values))) if one else list


def _converter_of_one(field: Any) -> Callable[[Any], Any] | None:
    if field.cpp_type == field.CPPTYPE_MESSAGE:
        return _encoder(field.message_type)
    if field.cpp_type == field.CPPTYPE_INT64:
        return str
    if field.type == field.TYPE_BYTES:
        return lambda value: b64encode(value).decode()
    return None
