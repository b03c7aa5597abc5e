"""Settings from a file, the environment and flags, in rising order; each remembers its source.

A section may be a list of tables, as `[[stores]]` is. What is in one of them is set elsewhere by
the table's name, or its number where it has none: MAAR_STORES__EU__URL, --set stores.eu.url=….
"""

from __future__ import annotations

import difflib
import re
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, TypeVar, get_args, get_origin, get_type_hints

import msgspec

from maar.model.errors import InvalidInput

ENVIRONMENT_PREFIX = "MAAR_"
_SEPARATOR = "__"
NAME = "name"  # of a table in a list of tables
_ENTRY = re.compile(r"[a-z0-9][a-z0-9_-]{0,30}")
_SECRET_WORDS = ("secret", "token", "key_id", "password")

# Former names whose replacement is not the most similar one, for the hint in the error.
RENAMED = {
    "compaction.lease_s": "services.compact.lease_s",
    "compaction.probe_most_s": "compaction.probe_max_s",
    "compaction.spared_max": "compaction.excused_max",
    "worker.fault_least_ms": "worker.fault_min_ms",
    "worker.fault_most_ms": "worker.fault_max_ms",
    "worker.plan_most_ms": "services.compact.limit_s",
    "worker.plan_timeout_ms": "services.compact.limit_s",
    "worker.retry_least_ms": "worker.retry_min_ms",
    "worker.retry_most_ms": "worker.retry_max_ms",
}

S = TypeVar("S")


class Key(NamedTuple):
    """A setting: its section and its name there, dotted where a section has parts."""

    section: str
    name: str

    def __str__(self) -> str:
        return f"{self.section}.{self.name}"


@dataclass(frozen=True, slots=True)
class Given:
    """A value as somebody wrote it, and where."""

    value: Any
    source: str
    is_text: bool  # from a place that knows only text: numbers must be read from it


Layer = dict[Key, Given]


def from_file(path: Path) -> Layer:
    try:
        tree = tomllib.loads(path.read_text())
    except OSError as error:
        raise _wrong(f"cannot read the settings file {path}: {error.strerror}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise _wrong(f"the settings file {path} is not valid TOML: {error}") from error
    layer: Layer = {}
    for section, values in tree.items():
        given = _by_name(section, values, path) if isinstance(values, list) else values
        if not isinstance(given, dict):
            raise _wrong(f"{section} in {path} must be a table, like [{section}]")
        for name, value in _leaves(given):
            layer[Key(section, name)] = Given(value, f"file {path}", False)
    return layer


def _by_name(section: str, tables: list[Any], path: Path) -> dict[str, Any]:
    """A list of tables, by the name of each or by its number."""
    found: dict[str, Any] = {}
    for number, table in enumerate(tables, 1):
        if not isinstance(table, dict):
            raise _wrong(f"{section} in {path} must be tables, like [[{section}]]")
        name = table.get(NAME, str(number))
        if not isinstance(name, str) or not _ENTRY.fullmatch(name):
            raise _wrong(
                f"{section} number {number} in {path} has the name {name!r}; a name is made of up "
                "to 31 small letters, digits, - and _"
            )
        if name in found:
            raise _wrong(f"two {section} in {path} are both named {name!r}")
        found[name] = table
    return found


def from_environment(environ: Mapping[str, str]) -> Layer:
    """MAAR_SEGMENT__FLUSH_INTERVAL_MS is segment.flush_interval_ms."""
    layer: Layer = {}
    for variable, value in environ.items():
        rest = variable.removeprefix(ENVIRONMENT_PREFIX)
        section, separator, name = rest.partition(_SEPARATOR)
        if rest != variable and separator:
            key = Key(section.lower(), name.lower().replace(_SEPARATOR, "."))
            layer[key] = Given(value, f"environment variable {variable}", True)
    return layer


def from_flags(flags: Mapping[str, tuple[Key, Any]]) -> Layer:
    """Flags that were given, by their spelling: {'--listen': (key, value)}."""
    return {
        key: Given(value, f"flag {flag}", isinstance(value, str))
        for flag, (key, value) in flags.items()
    }


def merge_layers(*layers: Layer) -> Layer:
    """Later layers win."""
    return {key: given for layer in layers for key, given in layer.items()}


def build(sections: Mapping[str, type[Any]], layer: Layer) -> dict[str, Any]:
    """One value of its type per section; a wrong or unknown setting is an error that names it."""
    for key, given in layer.items():
        _check_known(sections, key, given)
    built: dict[str, Any] = {}
    for section, kind in sections.items():
        mine = {key: given for key, given in layer.items() if key.section == section}
        entry = entry_type(kind)
        built[section] = _section(kind, mine) if entry is None else _entries(entry, mine)
    return built


def entry_type(kind: Any) -> type[Any] | None:
    """Of a section that is a list of tables, what each of them is."""
    return get_args(kind)[0] if get_origin(kind) is tuple else None


def setting_types(kind: type[Any]) -> dict[str, Any]:
    """The settings of a section and their types, those of its parts by dotted names; of a list of
    tables those of each table.
    """
    kind = entry_type(kind) or kind
    types: dict[str, Any] = {}
    for name, hint in get_type_hints(kind, include_extras=True).items():
        if _is_part(hint):
            types |= {f"{name}.{inner}": kind for inner, kind in setting_types(hint).items()}
        else:
            types[name] = hint
    return types


def _section(kind: type[S], layer: Layer) -> S:
    types = setting_types(kind)
    values = {key.name: _read(key, given, types[key.name]) for key, given in layer.items()}
    try:
        return _make(kind, values)
    except (ValueError, InvalidInput) as error:  # what a section checks across its settings
        where = " and ".join(f"{key} ({given.source})" for key, given in layer.items())
        raise _wrong(f"{where}: {error}") from error


def _entries(kind: type[S], layer: Layer) -> tuple[S, ...]:
    """The tables of a list, in the order in which they were first named."""
    tables: dict[str, Layer] = {}
    for key, given in layer.items():
        entry, _, name = key.name.partition(".")
        tables.setdefault(entry, {})[Key(f"{key.section}.{entry}", name)] = given
    for entry, table in tables.items():
        own = next(iter(table))._replace(name=NAME)
        if NAME in setting_types(kind):
            table.setdefault(own, Given(entry, table[next(iter(table))].source, False))
    return tuple(_section(kind, table) for table in tables.values())


def _make(kind: type[S], values: Mapping[str, Any]) -> S:
    arguments = {}
    for name, hint in get_type_hints(kind, include_extras=True).items():
        prefix = f"{name}."
        inner = {k.removeprefix(prefix): v for k, v in values.items() if k.startswith(prefix)}
        if inner:
            arguments[name] = _make(hint, inner)
        elif name in values:
            arguments[name] = values[name]
    return kind(**arguments)


def _is_part(hint: Any) -> bool:
    return isinstance(hint, type) and issubclass(hint, msgspec.Struct)


def _leaves(tree: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    for name, value in tree.items():
        if isinstance(value, dict):
            yield from ((f"{name}.{inner}", leaf) for inner, leaf in _leaves(value))
        else:
            yield name, value


def _check_known(sections: Mapping[str, type[Any]], key: Key, given: Given) -> None:
    known = sections.get(key.section)
    if known is None:
        names = ", ".join(sections)
        raise _wrong(f"{key} ({given.source}): there is no section {key.section!r}; use {names}")
    section, name = key
    if entry_type(known) is not None:
        entry, _, name = key.name.partition(".")
        section = f"{key.section}.{entry}"
        if not _ENTRY.fullmatch(entry) or not name:
            raise _wrong(
                f"{key} ({given.source}): {key.section} are tables with names, and a setting of "
                f"one of them is called {key.section}.NAME.SETTING"
            )
    if name not in setting_types(known):
        near = difflib.get_close_matches(name, setting_types(known), n=1)
        meant = RENAMED.get(str(key)) or (f"{section}.{near[0]}" if near else "")
        hint = f"; did you mean {meant}?" if meant else ""
        raise _wrong(f"{key} ({given.source}) is not a setting{hint}")


def _read(key: Key, given: Given, kind: Any) -> Any:
    value = _parse(given.value, kind) if given.is_text else given.value
    try:
        return msgspec.convert(value, kind, strict=not given.is_text)
    except msgspec.ValidationError as error:
        shown = "…" if any(word in key.name for word in _SECRET_WORDS) else repr(given.value)
        allowed = str(error).replace("Expected", "expected", 1)
        raise _wrong(f"{key} = {shown} ({given.source}) is not allowed: {allowed}") from error


def _parse(text: Any, kind: Any) -> Any:
    """A list may be written as JSON or with commas where only text can be given."""
    if not isinstance(text, str):
        return text
    if text[:1] in "[{" and text and kind is not str:
        try:
            return msgspec.json.decode(text)
        except msgspec.DecodeError:
            return text
    if get_origin(kind) in (tuple, list):
        return [part.strip() for part in text.split(",") if part.strip()]
    return text


def _wrong(sentence: str) -> InvalidInput:
    return InvalidInput(sentence, reason="settings")
