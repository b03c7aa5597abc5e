"""What placement is compared with: plain consistent hashing of a series' labels over all shards."""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from typing import NamedTuple

import xxhash

from maar.model.ids import NodeId
from maar.tools.simulate.fleet import Fleet

TOKENS = 128  # of a shard


class Home(NamedTuple):
    """A shard that belongs to its node and goes where that goes."""

    node: NodeId
    number: int


class Plain:
    """A circle of tokens; a series belongs to the next one of a node that answers."""

    def __init__(self, fleet: Fleet) -> None:
        counts = Counter(fleet.owners)
        circle = sorted(
            (xxhash.xxh64_intdigest(f"{node}/{number}/{token}".encode()), Home(node, number))
            for node in fleet.alive
            for number in range(counts[node])
            for token in range(TOKENS)
        )
        self._tokens = [token for token, _ in circle]
        self._homes = [home for _, home in circle]

    def place(self, fingerprint: int) -> Home:
        return self._homes[bisect_right(self._tokens, fingerprint) % len(self._homes)]
