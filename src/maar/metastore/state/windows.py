"""What each tenant has of each day, in sums: how much is clustered, and how much came since.

A window is a tenant's day in one store and zone. Its sums are kept as blocks come and go, so that
nobody looks at the blocks of a day to find out whether it is worth clustering.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TypeVar

from maar.model.block import CLUSTERED, BlockOutline, Kind
from maar.model.ids import BlockId, Shard, TenantId, block_time_ns
from maar.model.plan import QueueKey

_ALL_SHARDS = Shard(0)

T = TypeVar("T")


def window_of(meta: BlockOutline) -> QueueKey | None:
    """The window of a block; None of segments and of what is in quarantine."""
    if meta.kind is not Kind.BLOCK:
        return None
    return QueueKey(meta.store, meta.tenant, _ALL_SHARDS, 0, meta.zone, meta.day)


def window_of_lane(key: QueueKey) -> QueueKey | None:
    """The window of the blocks of a lane; None of segments, which are of any day."""
    if not key.level:
        return None
    return QueueKey(key.store, key.tenant, _ALL_SHARDS, 0, key.zone, key.day)


@dataclass(slots=True)
class WindowSum:
    """Some blocks of a window, in sums."""

    blocks: int = 0
    bytes: int = 0
    times_ns: int = 0  # the lease times in their ids, added up

    def add(self, block: BlockId, size: int, sign: int) -> None:
        self.blocks += sign
        self.bytes += sign * size
        self.times_ns += sign * block_time_ns(block)


@dataclass(slots=True)
class Window:
    fresh: WindowSum = field(default_factory=WindowSum)  # not clustered yet
    clustered: WindowSum = field(default_factory=WindowSum)


@dataclass(slots=True)
class Windows:
    """All windows that hold a block, and by day those of them that may be due: with a block that is
    not clustered, and another one. Small tenants have many days of one block, and nobody looks at
    those.
    """

    by_key: dict[QueueKey, Window] = field(default_factory=dict)
    mixed: dict[int, dict[QueueKey, None]] = field(default_factory=dict)
    of_tenant: dict[TenantId, dict[QueueKey, None]] = field(default_factory=dict)  # the same ones

    def __len__(self) -> int:
        return len(self.by_key)

    def get(self, key: QueueKey) -> Window | None:
        return self.by_key.get(key)

    def count(self, meta: BlockOutline, sign: int) -> None:
        """A block comes or goes."""
        key = window_of(meta)
        if key is None:
            return
        window = self.by_key.get(key)
        if window is None:
            window = self.by_key[key] = Window()
        sums = window.clustered if meta.level == CLUSTERED else window.fresh
        sums.add(meta.id, meta.size, sign)
        self._list(key, window)

    def put(self, key: QueueKey, window: Window) -> None:
        """As a snapshot has it."""
        self.by_key[key] = window
        self._list(key, window)

    def before(self, day: int) -> Iterator[tuple[QueueKey, Window]]:
        """Windows of earlier days that may be due, oldest day first."""
        for each in sorted(self.mixed):
            if each >= day:
                return
            for key in self.mixed[each]:
                yield key, self.by_key[key]

    def _list(self, key: QueueKey, window: Window) -> None:
        blocks = window.fresh.blocks + window.clustered.blocks
        if window.fresh.blocks and blocks > 1:
            self.mixed.setdefault(key.day, {})[key] = None
            self.of_tenant.setdefault(key.tenant, {})[key] = None
        else:
            _drop(self.mixed, key.day, key)
            _drop(self.of_tenant, key.tenant, key)
        if not blocks:
            del self.by_key[key]


def _drop(keys: dict[T, dict[QueueKey, None]], of: T, key: QueueKey) -> None:
    some = keys.get(of)
    if some is not None:
        some.pop(key, None)
        if not some:
            del keys[of]
