"""Which log owns a store: checked before a new log begins in it, then recorded as a claim (S5).

A new log would not know the blocks that another log left in the store, and no query would see them
again. Of two logs that begin in one store at the same time, only one may continue: the claim is one
key that can be created once. A log claims the store right after its genesis, so that a process that
dies in between recognises its own claim by its log; it does nothing else before.
"""

from __future__ import annotations

import logging
import shlex
from collections.abc import Iterator
from typing import NamedTuple

from maar.metastore.replica import snapshot
from maar.metastore.state.index import blocks_in
from maar.metastore.state.state import MetaState
from maar.model import keys
from maar.model.errors import AlreadyExists, NotFound, Rejected, Retryable
from maar.model.ids import Incarnation, StoreName
from maar.ports.stores.object_store import ObjectStore, exists

log_ = logging.getLogger("maar.metastore")


class Trace(NamedTuple):
    """Something that a log left in a store."""

    what: str  # for error messages
    incarnation: str  # '' when its name does not say


def check_unused(store: ObjectStore, *, log_url: str = "") -> None:
    """Called before a log begins: Rejected when the store holds data of another log."""
    found = next(_traces(store), None)
    if found is None:
        return
    url = store.settings().url
    where = ("--log", log_url or "URL", "--store", url)
    command = shlex.join(("maar", "metastore", "restore", *where))
    raise Rejected(
        f"the log is empty, but the store {url} holds {found.what}"
        f"{' of log ' + found.incarnation if found.incarnation else ''}. That log was lost, or "
        f"--log or --data names another place than before. To begin a log that adopts what is "
        f"there, stop this server and run `{command}`; to begin a new log beside it, which knows "
        "nothing of it, set `metastore.begin_anew = true`"
    )


def check_first(store: ObjectStore, state: MetaState) -> None:
    """Called before a leader appends: Rejected when another store than before is the first.

    What is not of a single store (snapshots, commits, deletions, large entries) is in the first one
    of the settings, and is looked for nowhere else. The log knows the names of several stores in
    their order. Of a single one it knows the name in its marker, and in the blocks that it holds.
    A log that is being restored may have another one.
    """
    name = StoreName(store.settings().name)
    known = name if state.adopting else _first_known(store, state)
    if known in ("", name):
        return
    raise Rejected(
        f"the first store of the settings is {name!r}, and the first store of this log is "
        f"{known!r}, where its snapshots are, and all else that is not of a single store. Name "
        f"{known!r} first in [[stores]], with the place that it has had so far; the store of "
        "[store] is called 'main'. To give it up, restore the log with settings that do not have "
        "it (docs/stores.md)"
    )


def _first_known(store: ObjectStore, state: MetaState) -> str:
    """The name of the store that was the first one until now; '' when nothing tells."""
    if state.stores.stores:
        return state.stores.names()[0]
    if not state.incarnation:
        return ""
    try:
        if marked := store.read(keys.marker(state.incarnation)).decode(errors="replace"):
            return marked
    except NotFound:
        pass
    except Retryable:
        return ""
    return _home_of_blocks(state)  # markers of single stores used to be empty


def _home_of_blocks(state: MetaState) -> str:
    shelves = next(iter(state.blocks.tenants.values()), {})
    chunks = (chunk for shelf in shelves.values() for chunk in shelf.chunks)
    found = next(blocks_in(chunks), None)
    return found.store if found is not None else ""


def settle(store: ObjectStore, state: MetaState, *, begin_anew: bool = False) -> None:
    """Called before a leader acts: claim the store for this log, or Rejected.

    A log that holds profiles has claimed its store before, so it continues even if the store does
    not answer now.
    """
    led = bool(state.tally.profiles_added or state.former)
    try:
        if exists(store, keys.marker(state.incarnation)):
            return
        if not led:
            _claim(store, state.incarnation, begin_anew=begin_anew)
        if len(state.stores.stores) < 2:  # else a marker that is missing tells that it was wiped
            mark(store, state.incarnation)
    except Retryable as error:
        if not led:
            raise
        log_.warning("store not claimed, retried by the next leader cause=%s", error)


def mark(store: ObjectStore, incarnation: Incarnation) -> None:
    """Write the log's marker, by which its workers recognise the store; it names the store, so that
    two names for one place are noticed.
    """
    try:
        store.create(keys.marker(incarnation), store.settings().name.encode())
    except AlreadyExists:
        pass  # since an earlier start


def end_former(store: ObjectStore, state: MetaState) -> None:
    """Tell a leader that still runs in an adopted incarnation that it has ended.

    Before anybody can lead in the new log: from then on what the old one would delete may be needed
    by the new one, which has not searched the store yet. The other ones of several stores are told
    before they are searched.
    """
    for incarnation in state.adopting:
        try:
            store.create(keys.successor(incarnation), state.incarnation.encode())
        except AlreadyExists:
            pass


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
    """Traces of logs, cheapest first; one of each kind is enough, so at most a page is listed."""
    for index, name in snapshot.list_snapshots(store)[:1]:
        incarnation = name.removeprefix(keys.SNAPSHOTS).partition("/")[0]
        yield Trace("the snapshots", f"{incarnation} (to entry {index})")
    if (key := _first(store, keys.MARKERS)) is not None:
        yield Trace("the marker", key.removeprefix(keys.MARKERS))
    if (key := _first(store, keys.SEGMENTS)) is not None:
        segment, joined = keys.segment_name(key), keys.output_name(key)
        incarnation = segment.incarnation if segment else joined.token.incarnation if joined else ""
        yield Trace("segments", incarnation)
    for prefix, what in ((keys.LAKE, "blocks"), (keys.QUARANTINES, "quarantined profiles")):
        if (key := _first(store, prefix)) is not None:
            output = keys.output_name(key)
            yield Trace(what, output.token.incarnation if output else "")
    if (key := _first(store, keys.DEAD_LETTERS)) is not None:
        yield Trace("dead letters", keys.letter_place(key)[0])
    if exists(store, keys.CLAIM):
        yield Trace("the claim", store.read(keys.CLAIM).decode(errors="replace"))


def _first(store: ObjectStore, prefix: str) -> str | None:
    return next((info.key for info in store.list(prefix)), None)
