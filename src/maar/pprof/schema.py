"""The pprof schema as google.protobuf knows it, built at run time: no generated file to keep."""

from __future__ import annotations

from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

_PACKAGE = "perftools.profiles"
_TYPES = {
    "int64": descriptor_pb2.FieldDescriptorProto.TYPE_INT64,
    "uint64": descriptor_pb2.FieldDescriptorProto.TYPE_UINT64,
    "bool": descriptor_pb2.FieldDescriptorProto.TYPE_BOOL,
    "bytes": descriptor_pb2.FieldDescriptorProto.TYPE_BYTES,
}

# message: (number, name, type), a star for repeated. Strings are declared as bytes, which are the
# same on the wire, because protobuf refuses strings that are not UTF-8 without saying which.
_MESSAGES: dict[str, tuple[tuple[int, str, str], ...]] = {
    "Profile": (
        (1, "sample_type", "ValueType*"),
        (2, "sample", "Sample*"),
        (3, "mapping", "Mapping*"),
        (4, "location", "Location*"),
        (5, "function", "Function*"),
        (6, "string_table", "bytes*"),
        (7, "drop_frames", "int64"),
        (8, "keep_frames", "int64"),
        (9, "time_nanos", "int64"),
        (10, "duration_nanos", "int64"),
        (11, "period_type", "ValueType"),
        (12, "period", "int64"),
        (13, "comment", "int64*"),
        (14, "default_sample_type", "int64"),
        (15, "doc_url", "int64"),
    ),
    "ValueType": ((1, "type", "int64"), (2, "unit", "int64")),
    "Sample": ((1, "location_id", "uint64*"), (2, "value", "int64*"), (3, "label", "Label*")),
    "Label": (
        (1, "key", "int64"),
        (2, "str", "int64"),
        (3, "num", "int64"),
        (4, "num_unit", "int64"),
    ),
    "Mapping": (
        (1, "id", "uint64"),
        (2, "memory_start", "uint64"),
        (3, "memory_limit", "uint64"),
        (4, "file_offset", "uint64"),
        (5, "filename", "int64"),
        (6, "build_id", "int64"),
        (7, "has_functions", "bool"),
        (8, "has_filenames", "bool"),
        (9, "has_line_numbers", "bool"),
        (10, "has_inline_frames", "bool"),
    ),
    "Location": (
        (1, "id", "uint64"),
        (2, "mapping_id", "uint64"),
        (3, "address", "uint64"),
        (4, "line", "Line*"),
        (5, "is_folded", "bool"),
    ),
    "Line": ((1, "function_id", "uint64"), (2, "line", "int64"), (3, "column", "int64")),
    "Function": (
        (1, "id", "uint64"),
        (2, "name", "int64"),
        (3, "system_name", "int64"),
        (4, "filename", "int64"),
        (5, "start_line", "int64"),
    ),
}


def _profile_class() -> Any:
    file = descriptor_pb2.FileDescriptorProto(
        name="maar/profile.proto", package=_PACKAGE, syntax="proto3"
    )
    for name, fields in _MESSAGES.items():
        message = file.message_type.add(name=name)
        for number, field_name, kind in fields:
            field = message.field.add(name=field_name, number=number)
            repeated = kind.endswith("*")
            field.label = field.LABEL_REPEATED if repeated else field.LABEL_OPTIONAL
            kind = kind.rstrip("*")
            if kind in _TYPES:
                field.type = _TYPES[kind]
            else:
                field.type = field.TYPE_MESSAGE
                field.type_name = f".{_PACKAGE}.{kind}"
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName(f"{_PACKAGE}.Profile"))


Profile: Any = _profile_class()
