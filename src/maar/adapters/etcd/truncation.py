"""Forgetting old entries, in steps that etcd takes in its stride, each of them under the term."""

from __future__ import annotations

from dataclasses import dataclass

from maar.adapters.etcd.connection import TXN, Connection
from maar.adapters.etcd.election import check_office
from maar.adapters.etcd.reading import Reading
from maar.adapters.etcd.requests import (
    delete,
    found,
    get,
    get_range,
    made,
    put,
    revision,
    txn,
    unchanged,
    value,
)
from maar.adapters.etcd.values import Keys, Mark, packed
from maar.ports.log import BATCH_ENTRIES_MAX, EMPTY, Head, Term

KEYS_AT_ONCE = 500
REACH = 20_000  # entries per step at most


@dataclass(frozen=True, slots=True)
class Step:
    """The last entry to forget, and the first batch that stays."""

    base: Head
    kept: int


class Truncation:
    def __init__(self, connection: Connection, keys: Keys, reading: Reading) -> None:
        self._connection = connection
        self._keys = keys
        self._reading = reading

    async def step(self, *, before: int, office: int, term: Term) -> bool:
        """Forget some of the entries below an index; False when none was left."""
        keys = self._keys
        reads = [get(keys.leader), get(keys.base), get(keys.head)]
        now = await self._connection.call(TXN, txn(success=reads))
        check_office(found(now, 0), office, term)
        base = value(found(now, 1), Mark, Mark.of(EMPTY)).head
        head = value(found(now, 2), Mark, Mark.of(EMPTY)).head
        if min(before - 1, head.index) <= base.index:
            return False
        step = await self._planned(base, head, before)
        reply = await self._connection.call(
            TXN,
            txn(
                [made(keys.leader, office), unchanged(keys.base, revision(found(now, 1)))],
                [
                    put(keys.base, packed(Mark.of(step.base))),
                    delete(keys.batch(0), keys.batch(step.kept)),
                ],
                [get(keys.leader)],
            ),
        )
        if not reply.succeeded:
            check_office(found(reply, 0), office, term)
        return True

    async def _planned(self, base: Head, head: Head, before: int) -> Step:
        last = min(before - 1, head.index, base.index + REACH)
        start = self._keys.batch(base.index + 1 - BATCH_ENTRIES_MAX)
        listed = get_range(
            start, self._keys.batch(last + 1), limit=KEYS_AT_ONCE + 1, keys_only=True
        )
        reply = await self._connection.call(TXN, txn(success=[listed]))
        kvs = reply.responses[0].response_range.kvs
        if len(kvs) > KEYS_AT_ONCE:
            kept = self._keys.first_of(kvs[-1].key)
            return Step(await self._reading.entry(kept - 1), kept)
        if last == head.index:
            return Step(head, last + 1)
        # A batch that holds entries on both sides stays until the last of them goes.
        kept = await self._reading.batch_of(last + 1) or last + 1
        return Step(await self._reading.entry(last), kept)
