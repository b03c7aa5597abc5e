"""Writes docs/settings.md from the declarations of the settings (`make docs`).

A setting's type, bounds and default are its declaration, its sentence is the string beneath it; a
section's title is the string beneath it in `Settings`, and what its class says opens it. What the
page says before its first section is written by hand, and stays.
"""

from __future__ import annotations

import ast
import inspect
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from msgspec import Struct
from msgspec import inspect as types

from maar.app.settings.config import SECTIONS, Settings
from maar.app.settings.layers import entry_type, setting_types

PAGE = Path(__file__).parents[1] / "docs" / "settings.md"
HEAD = "| setting | default | allowed | meaning |\n|---|---|---|---|"


def page(before: str) -> str:
    """The page with its sections made anew."""
    by_hand = before[: before.index("\n## ")]
    titles = sentences(Settings)
    made = (f"\n## {titles[section]}\n\n{_section(section)}\n" for section in SECTIONS)
    return by_hand + "".join(made)


def _section(section: str) -> str:
    kind = entry_type(SECTIONS[section]) or SECTIONS[section]
    listed = kind is not SECTIONS[section]
    rows = _rows(f"{section}.", kind, kind() if listed else getattr(Settings(), section))
    return "\n".join([inspect.cleandoc(kind.__doc__ or ""), "", HEAD, *rows])


def _rows(prefix: str, kind: type[Any], defaults: Any) -> Iterator[str]:
    hints, told = setting_types(kind), sentences(kind)
    for name in (*told, *(name for name in kind.__struct_fields__ if name not in told)):
        value = getattr(defaults, name)
        if name in hints:
            limits = limits_of(types.type_info(hints[name]))
            yield f"| `{prefix}{name}` | `{text_of(value)}` | {limits} | {told[name]} |"
        else:  # a part with settings of its own
            yield from _rows(f"{prefix}{name}.", type(value), value)


def sentences(kind: type[Any]) -> dict[str, str]:
    """What is said of each field of a class: its own first, then those that it inherits."""
    found: dict[str, str] = {}
    for owner in kind.__mro__:
        if issubclass(owner, Struct) and owner is not Struct:
            found |= _beneath_fields(owner)
    return found


def _beneath_fields(owner: type[Any]) -> dict[str, str]:
    (body,) = ast.parse(textwrap.dedent(inspect.getsource(owner))).body
    assert isinstance(body, ast.ClassDef)
    found = {}
    for field, after in zip(body.body, body.body[1:], strict=False):
        match field, after:
            case (
                ast.AnnAssign(target=ast.Name(id=name)),
                ast.Expr(value=ast.Constant(value=str(text))),
            ):
                found[name] = " ".join(text.split())
            case _:  # a field without a sentence, or no field
                continue
    return found


def limits_of(kind: types.Type) -> str:
    match kind:
        case types.BoolType():
            return "`true` or `false`"
        case types.StrType():
            return "text"
        case types.LiteralType(values=values):
            return ", ".join(f"`{value}`" for value in values)
        case types.VarTupleType(item_type=item):
            return (
                "a list" if isinstance(item, types.StrType) else f"a list, each {limits_of(item)}"
            )
        case types.IntType(ge=ge, gt=gt, le=le) | types.FloatType(ge=ge, gt=gt, le=le):
            return _bounds(ge, gt, le)
        case types.EnumType(cls=cls):
            return ", ".join(f"`{each.value}`" for each in cls)
        case types.UnionType(types=(known, types.NoneType())):  # it may be left out
            return limits_of(known)
        case _:
            raise TypeError(f"{kind} has no form in the reference of settings")


def _bounds(ge: float | None, gt: float | None, le: float | None) -> str:
    match ge, gt, le:
        case None, None, _:
            raise TypeError("a number among the settings needs a lower bound")
        case None, _, None:
            return f"more than {text_of(gt)}"
        case None, _, _:
            return f"more than {text_of(gt)}, at most {text_of(le)}"
        case _, _, None:
            return f"at least {text_of(ge)}"
        case _:
            return f"{text_of(ge)} to {text_of(le)}"


def text_of(value: Any) -> str:
    """As one writes it in the file of settings."""
    match value:
        case None:
            return "not set"
        case bool():
            return str(value).lower()
        case tuple():
            return f"[{', '.join(map(text_of, value))}]"
        case str():
            return f'"{value}"'
        case float():
            return str(int(value)) if value.is_integer() else str(value)
        case _:
            return str(value)


if __name__ == "__main__":
    PAGE.write_text(page(PAGE.read_text()))
