"""Reads entries by index, in pages of bounded size, and verifies the hash chain."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from maar.adapters.etcd.connection import TXN, EtcdConnection
from maar.adapters.etcd.requests import get, get_range, key_value, txn, value
from maar.adapters.etcd.values import EntryBatch, Keys, Mark, unpack
from maar.model.errors import Corrupt, NotFound, TooLarge
from maar.ports.metastore.log import BATCH_ENTRIES_MAX, EMPTY, Head, Record

KEYS_MAX = 2_048
WINDOWS = 64, 512, BATCH_ENTRIES_MAX  # small first: etcd reads values even to list keys


@dataclass(slots=True)
class PageSize:
    """How many batches to ask for, so that a page has about as many bytes as are wanted."""

    keys: int = 16
    batch_bytes: float = 64 << 10
    batch_entries: float = 16

    def ask(self, wanted_bytes: int) -> tuple[int, int]:
        """How many batches to ask for, and up to which index.

        The range is limited because etcd walks all its keys even when it returns a few.
        """
        fitting = int(wanted_bytes / self.batch_bytes) + 1
        self.keys = max(1, min(fitting, 2 * self.keys, KEYS_MAX))
        return self.keys, max(64, int(2 * self.keys * self.batch_entries))

    def learn(self, batches: Sequence[Any], entries: int) -> None:
        if batches:
            self.batch_bytes = max(1, sum(len(kv.value) for kv in batches) / len(batches))
            self.batch_entries = max(1, entries / len(batches))

    def shrink(self) -> bool:
        """Ask for fewer; False when one alone is too large."""
        self.batch_bytes *= 4
        self.keys, before = max(1, self.keys // 4), self.keys
        return before > 1


@dataclass(frozen=True, slots=True)
class Page:
    base: Head
    head: Head
    batches: Sequence[Any]  # keys and values, in order


class LogReader:
    def __init__(self, connection: EtcdConnection, keys: Keys) -> None:
        self._connection = connection
        self._keys = keys
        self._pace = PageSize()
        self._last = EMPTY  # the last entry that was read, from which the next must follow

    async def read(self, *, after: int, limit_bytes: int) -> list[Record]:
        at = Head(after, self._last.hash if self._last.index == after else b"")
        records: list[Record] = []
        size = 0
        while True:
            page = await self._page(at.index + 1, limit_bytes - size)
            if not self._within(page, at.index, begun=bool(records)):
                break
            if at.index == page.base.index and not at.hash:
                at = page.base
            some = _following(at, page.batches)
            if not some:
                raise Corrupt(f"the log in etcd has lost the entry after {at.index}")
            self._pace.learn(page.batches, some[-1].index - at.index)
            for record in some:
                size += len(record.body)
                if records and size > limit_bytes:
                    return self._read_to(records)
                records.append(record)
            at = Head(some[-1].index, some[-1].hash)
            if at.index >= page.head.index:
                break
        return self._read_to(records)

    async def entry(self, index: int) -> Head:
        """The hash of an entry that is there."""
        page = await self._page(index, 1)
        for kv in page.batches[:1]:
            for record in _records(kv):
                if record.index == index:
                    return Head(index, record.hash)
        raise Corrupt(f"the log in etcd has lost entry {index}")

    async def batch_of(self, index: int) -> int | None:
        """The first index of the batch that holds an entry; None when there is none."""
        for window in WINDOWS:
            start = self._keys.batch(index - window + 1)
            listed = get_range(start, self._keys.batch(index + 1), keys_only=True)
            reply = await self._connection.call(TXN, txn(success=[listed]))
            if kvs := reply.responses[0].response_range.kvs:
                return self._keys.first_of(kvs[-1].key)
        return None

    def _within(self, page: Page, after: int, *, begun: bool) -> bool:
        """Whether there are entries behind an index."""
        if after < page.base.index:
            if begun:
                return False  # truncated while we read: what was read is good
            raise NotFound(
                f"entries up to {page.base.index} of the log in etcd were truncated; "
                "start from a snapshot"
            )
        if after > page.head.index:
            raise NotFound(f"the log in etcd has no entry {after} yet")
        return after < page.head.index

    async def _page(self, index: int, wanted_bytes: int) -> Page:
        """Batches from the one that holds an entry on; none when there is no such entry."""
        page = await self._range(index, wanted_bytes)
        if not page.base.index < index <= page.head.index or _starts_at(page.batches, index):
            return page
        first = await self.batch_of(index)
        if first is None:
            page = await self._range(index, wanted_bytes)  # it may have been truncated meanwhile
            return Page(page.base, page.head, ())
        return await self._range(first, wanted_bytes)

    async def _range(self, index: int, wanted_bytes: int) -> Page:
        keys = self._keys
        while True:
            limit, reach = self._pace.ask(max(wanted_bytes, 1))
            batches = get_range(keys.batch(index), keys.batch(index + reach), limit=limit)
            request = txn(success=[get(keys.base), get(keys.head), batches])
            try:
                reply = await self._connection.call(TXN, request)
            except TooLarge:
                if not self._pace.shrink():
                    raise
                continue
            base = value(key_value(reply, 0), Mark, Mark.of(EMPTY)).head
            head = value(key_value(reply, 1), Mark, Mark.of(EMPTY)).head
            return Page(base, head, reply.responses[2].response_range.kvs)

    def _read_to(self, records: list[Record]) -> list[Record]:
        if records:
            self._last = Head(records[-1].index, records[-1].hash)
        return records


def _starts_at(batches: Sequence[Any], index: int) -> bool:
    return bool(batches) and Keys.first_of(batches[0].key) == index


def _records(kv: Any) -> list[Record]:
    return unpack(kv.value, EntryBatch, key=kv.key).records(Keys.first_of(kv.key))


def _following(at: Head, batches: Sequence[Any]) -> list[Record]:
    """The entries behind `at` (its hash may not be known), chained; Corrupt when one is not."""
    found_: list[Record] = []
    for kv in batches:
        batch = unpack(kv.value, EntryBatch, key=kv.key)
        first = Keys.first_of(kv.key)
        records = batch.records(first)
        behind = at.index + 1 - first
        if not 0 <= behind < len(records):
            raise Corrupt(f"entry {first} of the log follows {at.index}: entries are lost")
        before = records[behind - 1].hash if behind else batch.before
        if at.hash and before != at.hash:
            raise Corrupt(
                f"entry {at.index + 1} of the log is not what was written: its hash does not "
                f"follow from entry {at.index}"
            )
        found_ += records[behind:]
        at = Head(records[-1].index, records[-1].hash)
    return found_
