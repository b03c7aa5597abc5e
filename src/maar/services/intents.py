"""What an attempt said that it was about to write: the only way to find what it left behind.

An intent that our writers cannot have written is neither followed nor deleted: it stays for an
operator to look at.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from maar.model import keys
from maar.model.errors import NotFound
from maar.model.ids import BlockId, FencingToken, PlanId
from maar.ports.stores.object_store import ObjectInfo, ObjectStore

INTENT_BYTES_MAX = 1 << 20  # a real one names the six objects of a block


@dataclass(slots=True)
class Intents:
    """What listing an attempt's intents found."""

    names: list[str] = field(default_factory=list)
    written: dict[str, BlockId] = field(default_factory=dict)  # that may be there: key → block
    bad: list[str] = field(default_factory=list)  # a sentence for each one not to be followed


def read(store: ObjectStore, *, plan: PlanId, token: FencingToken) -> Intents:
    found = Intents()
    for info in list(store.list(keys.attempt_prefix(plan=plan, token=token))):
        try:
            named = _objects_named(store, info, plan=plan, token=token)
        except NotFound:
            continue  # somebody else cleaned up meanwhile
        if isinstance(named, str):
            found.bad.append(f"the intent {info.key} is not followed: {named}")
        else:
            found.names.append(info.key)
            found.written |= named
    return found


def _objects_named(
    store: ObjectStore, info: ObjectInfo, *, plan: PlanId, token: FencingToken
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
        block = keys.attempt_block(line, plan=plan, token=token)
        if block is None:
            return f"it names {line[:200]!r}, which this attempt cannot have written"
        named[line] = block
    return named
