"""Protobuf messages made from their field numbers at run time: no generated file to keep."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

_KINDS = {
    "string": descriptor_pb2.FieldDescriptorProto.TYPE_STRING,
    "bytes": descriptor_pb2.FieldDescriptorProto.TYPE_BYTES,
    "int32": descriptor_pb2.FieldDescriptorProto.TYPE_INT32,
    "int64": descriptor_pb2.FieldDescriptorProto.TYPE_INT64,
    "double": descriptor_pb2.FieldDescriptorProto.TYPE_DOUBLE,
}
_MESSAGE = descriptor_pb2.FieldDescriptorProto.TYPE_MESSAGE
_ENUM = descriptor_pb2.FieldDescriptorProto.TYPE_ENUM
_MANY = descriptor_pb2.FieldDescriptorProto.LABEL_REPEATED
_ONE = descriptor_pb2.FieldDescriptorProto.LABEL_OPTIONAL

# "number name kind"; kind[] is repeated, kind? tells unset from zero, .x.v1.Y is a message,
# =x.v1.Y an enum.
Fields = Sequence[str]
Packages = Mapping[str, Mapping[str, Fields]]  # messages by package and name
Enums = Mapping[str, Mapping[str, Sequence[str]]]  # their values, from 0


def messages(packages: Packages, enums: Enums | None = None) -> Callable[[str], Any]:
    """What gives the class of a message by its full name; a package may use those before it."""
    pool = descriptor_pool.DescriptorPool()
    before: list[str] = []
    for package, named in packages.items():
        file = _file(package, named, (enums or {}).get(package, {}), before)
        pool.Add(file)
        before.append(file.name)
    return lambda name: message_factory.GetMessageClass(pool.FindMessageTypeByName(name))


def _file(
    package: str,
    named: Mapping[str, Fields],
    enums: Mapping[str, Sequence[str]],
    imports: Sequence[str],
) -> Any:
    file = descriptor_pb2.FileDescriptorProto(
        name=f"{package}.proto", package=package, syntax="proto3", dependency=imports
    )
    for name, values in enums.items():
        enum = file.enum_type.add(name=name)
        for number, value in enumerate(values):
            enum.value.add(name=value, number=number)
    for name, fields in named.items():
        message = file.message_type.add(name=name)
        for text in fields:
            _add_field(message, text)
    return file


def _add_field(message: Any, text: str) -> None:
    number, name, kind = text.split()
    bare = kind.rstrip("[]?")
    field = message.field.add(
        name=name, number=int(number), label=_MANY if kind.endswith("[]") else _ONE
    )
    if bare.startswith("."):
        field.type, field.type_name = _MESSAGE, bare
    elif bare.startswith("="):
        field.type, field.type_name = _ENUM, f".{bare[1:]}"
    else:
        field.type = _KINDS[bare]
    if kind.endswith("?"):  # proto3 presence is a union of one
        field.proto3_optional = True
        field.oneof_index = len(message.oneof_decl)
        message.oneof_decl.add(name=f"_{name}")
