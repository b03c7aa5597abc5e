"""Copies another log's entries into an empty log; nobody can lead in it until that is done."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from maar.adapters.etcd.connection import TXN, EtcdConnection
from maar.adapters.etcd.requests import (
    absent,
    compare_created,
    compare_revision,
    delete,
    get,
    key_value,
    put,
    put_entries,
    revision,
    txn,
    value,
)
from maar.adapters.etcd.values import Keys, Mark, pack
from maar.model.errors import HeadMoved, Rejected
from maar.ports.metastore.log import (
    BATCH_BYTES_MAX,
    BATCH_ENTRIES_MAX,
    EMPTY,
    Head,
    Record,
    Term,
    verify,
)

COPY_S = 10.0
KEYS_AT_ONCE = 100  # etcd takes 128 operations a transaction


class Copying:
    def __init__(self, connection: EtcdConnection, keys: Keys) -> None:
        self._connection = connection
        self._keys = keys

    async def begin(self, base: Head, *, term: Term) -> Head:
        keys = self._keys
        mark = pack(Mark.of(base))
        made_of = (keys.copying, keys.head, keys.base, keys.leader, keys.sealed)
        last = key_value(await self._connection.call(TXN, txn(success=[get(keys.term)])), 0)
        reply = await self._connection.call(
            TXN,
            txn(
                [compare_revision(keys.term, revision(last)), *map(absent, made_of)],
                [
                    put(keys.copying, mark),
                    put(keys.base, mark),
                    put(keys.head, mark),
                    put(keys.term, pack(max(int(term), value(last, int, 0)))),
                ],
                [get(keys.copying), get(keys.head)],
            ),
        )
        if reply.succeeded:
            return base
        copying = key_value(reply, 0)
        if copying is None:
            raise Rejected(
                "the log in etcd is not empty, or somebody leads in it; stop its replicas, copy "
                "into another prefix, or remove this one first"
            )
        if value(copying, Mark, Mark.of(EMPTY)).head != base:
            raise Rejected(
                "another copy was begun in this log in etcd; finish it, or remove its prefix first"
            )
        return value(key_value(reply, 1), Mark, Mark.of(EMPTY)).head

    async def add(self, records: Sequence[Record]) -> Head:
        keys = self._keys
        reads = [get(keys.copying), get(keys.head), get(keys.term)]
        now = await self._connection.call(TXN, txn(success=reads))
        copying, at, term = (key_value(now, place) for place in range(3))
        if copying is None:
            raise Rejected("no copy was begun in this log in etcd")
        head = value(at, Mark, Mark.of(EMPTY)).head
        verify(head, records)
        written = revision(at)
        highest = value(term, int, 0)
        for some in _steps(records):
            last = Head(some[-1].index, some[-1].hash)
            highest = max(highest, some[-1].term)
            reply = await self._connection.once(
                TXN,
                txn(
                    [
                        compare_created(keys.copying, copying.create_revision),
                        compare_revision(keys.head, written),
                    ],
                    [*put_entries(keys, head, some), put(keys.term, pack(highest))],
                ),
                within_s=COPY_S,
            )
            if not reply.succeeded:
                raise HeadMoved("somebody else copies into this log in etcd")
            head, written = last, reply.header.revision
        return head

    async def finish(self) -> None:
        await self._connection.call(TXN, txn(success=[delete(self._keys.copying)]))


def _steps(records: Sequence[Record]) -> Iterator[list[Record]]:
    """Group records so that each group fits into one transaction."""
    some: list[Record] = []
    size = terms = 0
    for record in records:
        another = not some or some[-1].term != record.term
        full = size + len(record.body) > BATCH_BYTES_MAX or len(some) >= BATCH_ENTRIES_MAX
        if some and (full or terms + another > KEYS_AT_ONCE):
            yield some
            some, size, terms, another = [], 0, 0, True
        some.append(record)
        size += len(record.body)
        terms += another
    if some:
        yield some
