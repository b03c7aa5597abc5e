"""Whether a store honours conditional writes: without them nothing may be written to it (S3)."""

from __future__ import annotations

import secrets

from maar.model.errors import AlreadyExists, InvalidInput
from maar.ports.stores.object_store import ObjectStore

PROBE_PREFIX = "probe"


def probe(store: ObjectStore) -> None:
    """Create one key twice; a store that accepts the second would let attempts overwrite data."""
    key = f"{PROBE_PREFIX}/{secrets.token_hex(16)}"
    try:
        store.create(key, b"first")
        try:
            store.create(key, b"second")
        except AlreadyExists:
            if store.read(key) == b"first":
                return
        raise InvalidInput(
            f"store {store.settings().name} lets a second create of the same key win: it ignores "
            "conditional writes, so two attempts could overwrite each other's data. Use a store "
            "that honours If-None-Match on PUT, such as S3 or a recent MinIO",
            reason="unconditional_store",
        )
    finally:
        store.delete(key)
