"""Deletes old entries in steps small enough for etcd, each only while the term leads."""

from __future__ import annotations

from dataclasses import dataclass

from maar.adapters.etcd.connection import TXN, EtcdConnection
from maar.adapters.etcd.election import check_leadership
from maar.adapters.etcd.reading import LogReader
from maar.adapters.etcd.requests import (
    compare_created,
    compare_revision,
    count,
    delete,
    get,
    key_value,
    put,
    revision,
    txn,
    value,
)
from maar.adapters.etcd.tuning import Tuning
from maar.adapters.etcd.values import Keys, Mark, pack
from maar.ports.metastore.log import EMPTY, Head, Term


@dataclass(frozen=True, slots=True)
class Step:
    """The last entry to forget, and the first batch that stays."""

    base: Head
    kept: int


class Truncation:
    def __init__(
        self, connection: EtcdConnection, keys: Keys, reading: LogReader, tuning: Tuning
    ) -> None:
        self._connection = connection
        self._keys = keys
        self._reading = reading
        self._tuning = tuning
        self._reach = tuning.forget_at_once

    async def step(self, *, before: int, leadership: int, term: Term) -> int:
        """Delete some of the entries below an index; how many, 0 when none was left."""
        keys = self._keys
        reads = [get(keys.leader), get(keys.base), get(keys.head)]
        now = await self._connection.call(TXN, txn(success=reads))
        check_leadership(key_value(now, 0), leadership, term)
        base = value(key_value(now, 1), Mark, Mark.of(EMPTY)).head
        head = value(key_value(now, 2), Mark, Mark.of(EMPTY)).head
        if min(before - 1, head.index) <= base.index:
            return 0
        step = await self._plan_step(base, head, before)
        reply = await self._connection.call(
            TXN,
            txn(
                [
                    compare_created(keys.leader, leadership),
                    compare_revision(keys.base, revision(key_value(now, 1))),
                ],
                [
                    put(keys.base, pack(Mark.of(step.base))),
                    delete(keys.batch(0), keys.batch(step.kept)),
                ],
                [get(keys.leader)],
            ),
        )
        if not reply.succeeded:
            check_leadership(key_value(reply, 0), leadership, term)
        return step.base.index - base.index  # also when a lost try did it

    async def _plan_step(self, base: Head, head: Head, before: int) -> Step:
        last = min(before - 1, head.index, base.index + self._reach)
        while (
            held := await self._count_keys(last)
        ) > self._tuning.keys_at_once and last > base.index + 1:
            self._reach = (last - base.index) // 2
            last = base.index + self._reach
        if 2 * held < self._tuning.keys_at_once:
            self._reach = min(self._tuning.forget_at_once, 2 * self._reach)
        if last == head.index:
            return Step(head, last + 1)
        # A batch that holds entries on both sides stays until the last of them goes.
        kept = await self._reading.batch_of(last + 1) or last + 1
        return Step(await self._reading.entry(last), kept)

    async def _count_keys(self, last: int) -> int:
        """How many keys hold the entries up to one."""
        counted = count(self._keys.batch(0), self._keys.batch(last + 1))
        reply = await self._connection.call(TXN, txn(success=[counted]))
        return int(reply.responses[0].response_range.count)
