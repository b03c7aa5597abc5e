"""Whose a store is: looked at before a log begins in it, and claimed by the log that did (S5).

A log that begins over what another one left would not know the blocks there, and nobody would see
them again. And of two that begin at once, each in a place of its own, one has to give way: the
claim is one key, and it is created once. A log claims after its genesis, so that whoever dies in
between finds in its own log which claim is its own; and it does nothing else before.
"""

from __future__ import annotations

import logging
import shlex
from collections.abc import Iterator
from typing import NamedTuple

from maar.metastore.replica import snapshot
from maar.metastore.state.state import MetaState
from maar.model import keys
from maar.model.errors import AlreadyExists, NotFound, Rejected, Retryable
from maar.model.ids import Incarnation
from maar.ports.object_store import ObjectStore

log_ = logging.getLogger("maar.metastore")


class Trace(NamedTuple):
    """Something that a log left in a store."""

    what: str  # for people
    life: str  # '' when its name does not say


def check_unused(store: ObjectStore, *, log_url: str = "") -> None:
    """Before a log begins: Rejected when the store holds what another one, perhaps lost, left."""
    found = next(_traces(store), None)
    if found is None:
        return
    url = store.settings().url
    where = ("--log", log_url or "URL", "--store", url)
    command = shlex.join(("maar", "metastore", "restore", *where))
    raise Rejected(
        f"the log is empty, but the store {url} holds {found.what}"
        f"{' of log ' + found.life if found.life else ''}. That log was lost, or --log or --data "
        f"names another place than before. To begin a log that adopts what is there, stop this "
        f"server and run `{command}`; to begin a new log beside it, which knows nothing of it, set "
        "`metastore.begin_anew = true`"
    )


def settle(store: ObjectStore, state: MetaState, *, begin_anew: bool = False) -> None:
    """Before a leader acts: the store is marked as this log's own, or Rejected.

    A log that has held profiles has led, and so had its claim: it goes on although the store does
    not answer just now.
    """
    led = bool(state.tally.profiles_added or state.former)
    try:
        if _there(store, keys.marker(state.incarnation)):
            return
        if not led:
            _claim(store, state.incarnation, begin_anew=begin_anew)
        mark(store, state.incarnation)
    except Retryable as error:
        if not led:
            raise
        log_.warning("store not marked cause=%s", error)


def mark(store: ObjectStore, incarnation: Incarnation) -> None:
    """Leave the marker of a log, by which its workers know the store."""
    try:
        store.create(keys.marker(incarnation), b"")
    except AlreadyExists:
        pass  # since an earlier start


def _claim(store: ObjectStore, incarnation: Incarnation, *, begin_anew: bool) -> None:
    try:
        store.create(keys.CLAIM, incarnation.encode())
        return
    except AlreadyExists:
        holder = store.read(keys.CLAIM).decode(errors="replace")
    if holder != incarnation and not begin_anew:
        raise Rejected(
            f"the store {store.settings().url} belongs to log {holder}, which began in it before "
            f"this one ({incarnation}) could. This log holds nothing. Give this server a store of "
            f"its own, or the log of the other one (--log), or, to keep two logs in one store on "
            "purpose, set `metastore.begin_anew = true`"
        )


def _traces(store: ObjectStore) -> Iterator[Trace]:
    """Cheapest first; of each kind one is enough, so that no more than a page is listed."""
    for index, name in snapshot.list_snapshots(store)[:1]:
        life = name.removeprefix(keys.SNAPSHOTS).partition("/")[0]
        yield Trace("the snapshots", f"{life} (to entry {index})")
    if (key := _first(store, keys.MARKERS)) is not None:
        yield Trace("the marker", key.removeprefix(keys.MARKERS))
    if (key := _first(store, keys.SEGMENTS)) is not None:
        segment = keys.segment_name(key)
        yield Trace("segments", segment.incarnation if segment else "")
    for prefix, what in ((keys.LAKE, "blocks"), (keys.QUARANTINES, "quarantined profiles")):
        if (key := _first(store, prefix)) is not None:
            output = keys.output_name(key)
            yield Trace(what, output.token.incarnation if output else "")
    if (key := _first(store, keys.DEAD_LETTERS)) is not None:
        yield Trace("dead letters", keys.letter_place(key)[0])
    if _there(store, keys.CLAIM):
        yield Trace("the claim", store.read(keys.CLAIM).decode(errors="replace"))


def _first(store: ObjectStore, prefix: str) -> str | None:
    return next((info.key for info in store.list(prefix)), None)


def _there(store: ObjectStore, key: str) -> bool:
    try:
        store.size(key)
    except NotFound:
        return False
    return True
