"""Short helpers for etcd's messages: what a transaction compares, writes and reads."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeVar

from aetcd import rpc

from maar.adapters.etcd.values import Keys, Mark, batches, pack, unpack
from maar.ports.metastore.log import Head, Record

V = TypeVar("V")


def compare_revision(key: bytes, revision: int) -> Any:
    """The key was last written at this revision (0: it does not exist)."""
    return rpc.Compare(
        key=key, target=rpc.Compare.MOD, result=rpc.Compare.EQUAL, mod_revision=revision
    )


def compare_created(key: bytes, revision: int) -> Any:
    """The key exists since this revision (0: it does not exist)."""
    return rpc.Compare(
        key=key, target=rpc.Compare.CREATE, result=rpc.Compare.EQUAL, create_revision=revision
    )


def absent(key: bytes) -> Any:
    return compare_created(key, 0)


def get(key: bytes) -> Any:
    return rpc.RequestOp(request_range=rpc.RangeRequest(key=key))


def get_range(key: bytes, end: bytes, *, limit: int = 0, keys_only: bool = False) -> Any:
    return rpc.RequestOp(
        request_range=rpc.RangeRequest(key=key, range_end=end, limit=limit, keys_only=keys_only)
    )


def count(key: bytes, end: bytes) -> Any:
    """How many keys there are; unlike their names, etcd knows that without reading values."""
    return rpc.RequestOp(request_range=rpc.RangeRequest(key=key, range_end=end, count_only=True))


def put(key: bytes, value: bytes, *, lease: int = 0) -> Any:
    return rpc.RequestOp(request_put=rpc.PutRequest(key=key, value=value, lease=lease))


def delete(key: bytes, end: bytes = b"") -> Any:
    return rpc.RequestOp(request_delete_range=rpc.DeleteRangeRequest(key=key, range_end=end))


def put_entries(keys: Keys, before: Head, records: Sequence[Record]) -> list[Any]:
    """Entries behind a head, and the new head."""
    stored = [put(keys.batch(first), pack(batch)) for first, batch in batches(before, records)]
    last = Head(records[-1].index, records[-1].hash)
    return [*stored, put(keys.head, pack(Mark.of(last)))]


def txn(
    compare: Sequence[Any] = (), success: Sequence[Any] = (), failure: Sequence[Any] = ()
) -> Any:
    return rpc.TxnRequest(compare=compare, success=success, failure=failure)


def key_value(reply: Any, at: int) -> Any | None:
    """The key and value that the transaction's read at this place found."""
    kvs = reply.responses[at].response_range.kvs
    return kvs[0] if kvs else None


def value(kv: Any | None, kind: type[V], default: V) -> V:
    return default if kv is None else unpack(kv.value, kind, key=kv.key)


def revision(kv: Any | None) -> int:
    """At which the key was last written; 0 when it does not exist."""
    return 0 if kv is None else int(kv.mod_revision)
