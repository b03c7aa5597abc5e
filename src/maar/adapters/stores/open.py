"""Opens a store from its settings."""

from __future__ import annotations

from pathlib import Path
from urllib.parse import unquote, urlsplit

from maar.adapters.stores.local import LocalStore
from maar.adapters.stores.s3 import S3Store
from maar.model.errors import InvalidInput
from maar.ports.stores.object_store import ObjectStore, StoreSettings


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
