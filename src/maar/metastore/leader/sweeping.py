"""Carries out sweeps: reads what ended attempts meant to write, and deletes the leftovers.

An intent that our writers cannot have written is neither followed nor deleted: it and its attempt
stay for an operator to look at.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from maar.metastore.fold.leftovers import Sweep
from maar.metastore.records.entries import AttemptKey
from maar.model import keys
from maar.model.errors import NotFound
from maar.model.ids import BlockId
from maar.ports.object_store import ObjectInfo, ObjectStore

INTENT_BYTES_MAX = 1 << 20  # a real one names the six objects of a block


@dataclass(slots=True)
class FoundLeftovers:
    """What listing an attempt's intents found."""

    sweep: Sweep
    intents: list[str] = field(default_factory=list)
    written: dict[str, BlockId] = field(default_factory=dict)  # that may be there: key → block
    bad: list[str] = field(default_factory=list)  # a sentence for each intent not to be followed


def look(store: ObjectStore, sweep: Sweep) -> FoundLeftovers:
    found = FoundLeftovers(sweep)
    for info in list(store.list(_prefix(sweep.attempt_key))):
        try:
            named = _intent_objects(store, info, sweep.attempt_key)
        except NotFound:
            continue  # the cleaning of its block took it meanwhile
        if isinstance(named, str):
            found.bad.append(f"the intent {info.key} is not followed: {named}")
        else:
            found.intents.append(info.key)
            found.written |= named
    return found


def remove(store: ObjectStore, found: FoundLeftovers, unlisted: list[str]) -> bool:
    """Delete leftovers; whether nothing is left of the attempt, and never will be.

    Intents stay until the final sweep: what a task writes late can only be found through them.
    """
    for key in unlisted:
        store.delete(key)
    if not found.sweep.final:
        return False
    for key in found.intents:
        store.delete(key)
    return next(iter(store.list(_prefix(found.sweep.attempt_key))), None) is None


def _prefix(attempt_key: AttemptKey) -> str:
    return keys.attempt_prefix(plan=attempt_key.plan, token=attempt_key.token)


def _intent_objects(
    store: ObjectStore, info: ObjectInfo, attempt_key: AttemptKey
) -> dict[str, BlockId] | str:
    """The objects that an intent names, or what is wrong with it."""
    if info.size > INTENT_BYTES_MAX:
        return f"it has {info.size} bytes"
    try:
        lines = store.read(info.key).decode("ascii").split("\n")
    except UnicodeDecodeError:
        return "it is not text"
    named: dict[str, BlockId] = {}
    for line in lines:
        block = keys.attempt_block(line, plan=attempt_key.plan, token=attempt_key.token)
        if block is None:
            return f"it names {line[:200]!r}, which this attempt cannot have written"
        named[line] = block
    return named
