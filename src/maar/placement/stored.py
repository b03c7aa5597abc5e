"""Rules and statistics in the object store: the newest that can be read; all calls block."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Generic, NamedTuple, TypeVar

from maar.model import keys
from maar.model.errors import Corrupt, NotFound
from maar.model.ids import Incarnation
from maar.placement.adaptive.statistics import Stats
from maar.placement.rules import Rules
from maar.placement.wire import decode_rules, decode_stats
from maar.ports.stores.object_store import ObjectStore

T = TypeVar("T", Rules, Stats)


class StoredNames(NamedTuple):
    """The names that there are, newest first: those of rules, those of statistics."""

    rules: tuple[str, ...] = ()
    stats: tuple[str, ...] = ()


class Newest(NamedTuple, Generic[T]):
    """The newest that could be read, and sentences about newer ones that could not."""

    value: T | None
    unreadable: tuple[str, ...] = ()


def list_names(store: ObjectStore, incarnation: Incarnation) -> StoredNames:
    names = sorted(
        (one.key for one in store.list(keys.placement_prefix(incarnation))), reverse=True
    )
    return StoredNames(
        tuple(key for key in names if keys.placement_time(key, kind="rules")),
        tuple(key for key in names if keys.placement_time(key, kind="stats")),
    )


def newest_rules(store: ObjectStore, names: Sequence[str], *, newer_than: int = 0) -> Newest[Rules]:
    return _newest(store, names, "rules", decode_rules, newer_than)


def newest_stats(store: ObjectStore, names: Sequence[str], *, newer_than: int = 0) -> Newest[Stats]:
    return _newest(store, names, "stats", decode_stats, newer_than)


def _newest(
    store: ObjectStore,
    names: Sequence[str],
    kind: str,
    decode: Callable[[bytes], T],
    newer_than: int,
) -> Newest[T]:
    unreadable: list[str] = []
    for key in names:
        created_at = keys.placement_time(key, kind=kind) or 0
        if created_at <= newer_than:
            break
        try:
            value = decode(store.read(key))
            if value.created_at != created_at:  # cut off, or another's bytes
                raise Corrupt(f"it says that it was made at {value.created_at}")
        except NotFound:
            continue  # deleted since it was listed: there is a newer one
        except Corrupt as error:
            unreadable.append(f"{key} is damaged and skipped: {error}")
        else:
            return Newest(value, tuple(unreadable))
    return Newest(None, tuple(unreadable))
