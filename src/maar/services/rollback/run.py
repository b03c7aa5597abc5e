"""A rollback: what ended attempts wrote is deleted, and seen to be gone; their intents stay.

Nothing is deleted on the strength of an old belief: each batch of deletes is confirmed by the
metastore under the rollback's token, and a confirmation counts for a second. Whoever was stopped
longer than that, over a restore of the metastore perhaps, asks again and is refused.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from maar.model import keys
from maar.model.errors import Corrupt, Unavailable
from maar.model.plan import ROLLBACK, Account, PlanResult, Rollback
from maar.ports.stores.object_store import ObjectStore, exists
from maar.ports.stores.stores import Stores, stores_of
from maar.services import intents
from maar.services.deletion import BatchDeleter, Confirm


class Tools(NamedTuple):
    """What a rollback works with."""

    store: ObjectStore | Stores
    confirm: Confirm
    monotonic_ns: Callable[[], int]


def roll_back(rollback: Rollback, tools: Tools) -> PlanResult:
    """LeaseLost when somebody else has it; Unavailable when something did not go away."""
    removed = 0
    bad: list[str] = []
    stores = stores_of(tools.store)
    for name in (rollback.store,) if rollback.store else stores.names():
        store = stores.open(name)
        for token in rollback.tokens:
            found = intents.read(store, plan=rollback.target, token=token)
            written = [key for key in found.written if exists(store, key)]
            removed += _delete(written, store, tools)
            bad += found.bad
    if bad:
        raise Corrupt("; ".join(bad))
    nothing = Account(0, 0, 0)
    return PlanResult(kind=ROLLBACK, outputs=(), account=nothing, removed=removed)


def _delete(written: Sequence[str], store: ObjectStore, tools: Tools) -> int:
    """Objects that the index lists stay: an adopted block may be of an attempt that ended."""
    removed = 0
    deleter = BatchDeleter(store, tools.confirm, tools.monotonic_ns)
    for key in deleter.deleting(keys.manifests_first(written)):
        removed += 1
        if exists(store, key):
            raise Unavailable(f"{key} was deleted and is still there; ask again")
    return removed
