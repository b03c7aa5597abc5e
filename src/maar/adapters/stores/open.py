"""Opens a store from its settings, and refuses one without conditional writes (S3)."""

from __future__ import annotations

import secrets
from pathlib import Path
from urllib.parse import unquote, urlsplit

from maar.adapters.stores.local import LocalStore
from maar.adapters.stores.s3 import S3Store
from maar.model.errors import AlreadyExists, InvalidInput
from maar.ports.object_store import ObjectStore, StoreSettings

PROBE_PREFIX = "probe"


def open_store(settings: StoreSettings, *, make: bool = True) -> ObjectStore:
    """file:///dir is a directory of this host, made when missing; s3://bucket/prefix a bucket."""
    parts = urlsplit(settings.url)
    if parts.scheme == "s3":
        return S3Store(settings)
    if parts.scheme != "file" or parts.netloc not in ("", "localhost") or not parts.path:
        raise InvalidInput(
            f"store {settings.name} has the URL {settings.url!r}; it must be like "
            "file:///absolute/directory or s3://bucket/prefix"
        )
    if settings.options:
        raise InvalidInput(f"store {settings.name} is a directory, and takes no options")
    return LocalStore(Path(unquote(parts.path)), settings, make=make)


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
