"""Carries out final sweeps: what an ended attempt left is deleted, its intents last."""

from __future__ import annotations

from typing import NamedTuple

from maar.metastore.records.entries import AttemptKey
from maar.model import keys
from maar.model.ids import StoreName
from maar.ports.stores.object_store import ObjectStore
from maar.services import intents
from maar.services.deletion import BatchDeleter
from maar.services.intents import Intents


class FoundLeftovers(NamedTuple):
    attempt_key: AttemptKey
    intents: Intents
    store: StoreName | None = None  # where they were found; None: there is only one


def look(
    store: ObjectStore, attempt_key: AttemptKey, name: StoreName | None = None
) -> FoundLeftovers:
    found = intents.read(store, plan=attempt_key.plan, token=attempt_key.token)
    return FoundLeftovers(attempt_key, found, name)


def remove(deleter: BatchDeleter, found: FoundLeftovers, unlisted: list[str]) -> bool:
    """Delete leftovers; whether nothing is left of the attempt, and never will be."""
    plan, token = found.attempt_key.plan, found.attempt_key.token
    deleter.delete([*keys.manifests_first(unlisted), *found.intents.names])
    left = deleter.store.list(keys.attempt_prefix(plan=plan, token=token))
    return next(iter(left), None) is None
