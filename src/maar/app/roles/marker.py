"""Checks that a worker uses the store of its metastore's log, by the leader's marker."""

from __future__ import annotations

import logging

from maar.model import keys
from maar.model.errors import InvalidInput, NotFound, Retryable
from maar.model.ids import Incarnation
from maar.ports.stores.object_store import ObjectStore

log = logging.getLogger("maar.metastore")


def check(store: ObjectStore, incarnation: Incarnation, *, metastore: str) -> None:
    """InvalidInput when the metastore keeps its blocks in another store."""
    try:
        store.size(keys.marker(incarnation))
    except NotFound:
        raise InvalidInput(
            f"{store.settings().url} is not the store of the metastore at {metastore}: it lacks "
            f"the object {keys.marker(incarnation)}; give --store the URL that the server uses",
            reason="settings",
        ) from None


def check_not_ended(store: ObjectStore, incarnation: Incarnation) -> None:
    """InvalidInput when the log was restored elsewhere: each would delete the other's objects."""
    try:
        successor = store.read(keys.successor(incarnation)).decode()
    except NotFound:
        return
    except Retryable as error:
        log.warning("cannot check whether the log was restored elsewhere cause=%s", error)
        return
    raise InvalidInput(
        f"this log ({incarnation}) is retired: it was restored as {successor}, which has adopted "
        f"its objects. Start the replicas with the restored log; if it was restored by mistake and "
        f"never used, delete {keys.successor(incarnation)} from the store",
        reason="settings",
    )
