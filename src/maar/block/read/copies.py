"""Opens the nearest whole copy of a block's object."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import pyarrow as pa

from maar.model.block import BlockMeta
from maar.model.errors import Corrupt
from maar.ports.stores.object_store import ObjectStore
from maar.ports.stores.stores import Stores

T = TypeVar("T")


def read_copy(stores: Stores, meta: BlockMeta, table: str, read: Callable[[Any], T]) -> T:
    """What `read` makes of an open file; when Parquet cannot read a copy, of another one."""

    def read_one(store: ObjectStore, key: str) -> T:
        try:
            with store.open(key) as file:
                return read(file)
        except (pa.ArrowException, OSError) as error:
            raise Corrupt(
                f"Object {key} of block {meta.id} cannot be read ({error}). Its bytes are not what "
                "was written."
            ) from error

    return stores.read(meta.id, meta.file(table).locations, read_one)
