"""The stores of the settings: checked when these are read, and as data for whoever opens them."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from urllib.parse import unquote, urlsplit

import msgspec

from maar.app.settings.sections import StoreEntry, StoreSection
from maar.model.errors import InvalidInput
from maar.model.ids import MAIN_STORE, Zone
from maar.ports.stores.object_store import StoreSettings
from maar.ports.stores.stores import StorePlace, StorePlaces

_NOT_OPTIONS = ("name", "url", "zones")
_PORTS = {"http": 80, "https": 443}


def places(
    entries: Sequence[StoreEntry], single: StoreSection, *, default_url: str, zone: Zone
) -> StorePlaces:
    """Of `[[stores]]`, or of `[store]` when there are none."""
    if not entries:
        url = single.url or default_url
        return StorePlaces((StorePlace(StoreSettings(MAIN_STORE, url, _options(single))),), zone)
    return StorePlaces(
        tuple(
            StorePlace(StoreSettings(each.name, each.url, _options(each)), each.region, each.zones)
            for each in entries
        ),
        zone,
    )


def check(
    entries: Sequence[StoreEntry],
    single: StoreSection,
    *,
    wanted: Sequence[str],  # where every tenant has copies
    zone: Zone,
) -> None:
    """InvalidInput, with the remedy, for what would go wrong only later."""
    if entries and single != StoreSection():
        raise _wrong(
            "both [store] (or --store) and [[stores]] are given; [store] is the short form for a "
            f"single store named {MAIN_STORE}: name that one in [[stores]], and leave [store] out"
        )
    for each in entries:
        _check_url(each)
    check_names(wanted, names(entries), where="tenant_defaults.stores")
    _check_zones(entries, zone)
    _check_apart(entries)


def names(entries: Sequence[StoreEntry]) -> tuple[str, ...]:
    return tuple(each.name for each in entries) or (MAIN_STORE,)


def check_names(given: Iterable[str], known: Sequence[str], *, where: str) -> None:
    for name in given:
        if name not in known:
            raise _wrong(f"{where} names the store {name!r}, and there are: {', '.join(known)}")


def _check_url(entry: StoreEntry) -> None:
    parts = urlsplit(entry.url)
    local = parts.scheme == "file" and parts.netloc in ("", "localhost") and parts.path
    if not local and not (parts.scheme == "s3" and parts.netloc):
        raise _wrong(
            f"stores.{entry.name}.url = {entry.url!r} must be like file:///absolute/directory or "
            "s3://bucket/prefix"
        )
    if local and (given := [name for name, _ in _options(entry)]):
        raise _wrong(f"stores.{entry.name} is a directory, and takes no {', '.join(given)}")


def _check_zones(entries: Sequence[StoreEntry], zone: Zone) -> None:
    homes: dict[str, str] = {}
    for entry in entries:
        for each in entry.zones:
            if each in homes:
                raise _wrong(
                    f"zone {each!r} has two home stores, {homes[each]} and {entry.name}; a zone "
                    "writes to one store"
                )
            homes[each] = entry.name
    if homes and zone not in homes:
        raise _wrong(
            f"ring.zone = {zone!r} has no home store; add it to the zones of one of [[stores]] "
            f"(they name {', '.join(sorted(homes))})"
        )


def _check_apart(entries: Sequence[StoreEntry]) -> None:
    """Two names for one place, or one within another, would count copies that are none."""
    found = [(entry.name, _place(entry)) for entry in entries]
    for at, (name, place) in enumerate(found):
        for other, elsewhere in found[at + 1 :]:
            shorter, longer = sorted((place, elsewhere), key=len)
            if place == elsewhere:
                raise _wrong(f"stores.{name} and stores.{other} are the same place; leave one out")
            if longer[: len(shorter)] == shorter:
                raise _wrong(
                    f"of stores.{name} and stores.{other} one lies within the other; give each a "
                    "directory or a prefix of its own"
                )


def _place(entry: StoreEntry) -> tuple[str, ...]:
    """Where a store is, in the one way of all the ways to write it."""
    parts = urlsplit(entry.url)
    if parts.scheme == "file":
        return ("file", *Path(os.path.realpath(unquote(parts.path))).parts)
    prefix = [part for part in unquote(parts.path).split("/") if part]
    return ("s3", _server(entry.endpoint), parts.netloc, *prefix)


def _server(endpoint: str) -> str:
    parts = urlsplit(endpoint)
    if not parts.hostname:
        return ""  # Amazon's own
    return f"{parts.hostname}:{parts.port or _PORTS.get(parts.scheme, 0)}"


def _options(given: StoreEntry | StoreSection) -> tuple[tuple[str, str], ...]:
    """What opens it; the region of a directory is only of use to us."""
    local = urlsplit(given.url).scheme == "file" and isinstance(given, StoreEntry)
    told = {
        name: "true" if value is True else value
        for name, value in msgspec.structs.asdict(given).items()
        if name not in _NOT_OPTIONS and value and not (local and name == "region")
    }
    return tuple(sorted(told.items()))


def _wrong(sentence: str) -> InvalidInput:
    return InvalidInput(sentence, reason="settings")
