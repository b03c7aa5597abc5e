"""Copies that readers found missing or damaged: what the leader has heard, until it is healed.

It is not in the log: a new leader hears of the same copies from whoever reads them next, and repair
finds them in any case, a little later.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterable, Mapping
from itertools import islice
from typing import Any, NamedTuple

from maar.metastore.state.state import MetaState
from maar.model.ids import BlockId, StoreName, TenantId
from maar.model.trouble import Trouble

log = logging.getLogger("maar.metastore")

REPORTS_MAX = 10_000
LOOKED_AT = 50  # reports, when the leader's loop asks for their number


class BadCopy(NamedTuple):
    """A copy of a live block that somebody could not read."""

    block: BlockId
    store: StoreName
    tenant: TenantId
    what: str


class DamageReports:
    """Used by the leader's event loop alone."""

    def __init__(self, *, reports_max: int = REPORTS_MAX) -> None:
        self._max = reports_max
        self._heard: dict[tuple[BlockId, StoreName], dict[str, str]] = {}  # what, by key
        self._waiting: dict[tuple[BlockId, StoreName], None] = {}  # no repair was asked to look yet

    def hear(self, state: MetaState, troubles: Iterable[Trouble]) -> None:
        """A store that is away has lost nothing. Nor is a miss damage when its block is no longer
        live, or lists another copy instead by now (S14).
        """
        for each in troubles:
            place = each.block, each.store
            if each.why == "away" or not _is_listed(state, each.block, each.store, each.key):
                continue
            if place not in self._heard:
                if len(self._heard) >= self._max:
                    self._forget_healed(state)
                if len(self._heard) >= self._max:
                    return  # what is not remembered is found by the next repair
                log.error(
                    "copy of a block is bad block=%s store=%s key=%s why=%s cause=%s",
                    each.block, each.store, each.key, each.why, each.what,
                )  # fmt: skip
            self._heard.setdefault(place, {})[each.key] = each.what
            self._waiting[place] = None  # again, if a repair could not help

    def counts(self, state: MetaState) -> Mapping[StoreName, int]:
        """By store. The leader's loop asks often: each time only some are looked at again."""
        for place in list(islice(self._heard, LOOKED_AT)):
            self._look_again(state, place)
        return Counter(store for _, store in self._heard)

    def bad(self, state: MetaState) -> list[BadCopy]:
        """Those that are still listed."""
        self._forget_healed(state)
        return [
            BadCopy(block, store, state.blocks.where[block].tenant, "; ".join(told.values()))
            for (block, store), told in self._heard.items()
        ]

    def waiting(self, state: MetaState) -> list[tuple[TenantId, BlockId]]:
        """Some of the blocks that a repair should look at. The leader's loop asks often: whatever
        was looked at is last in line.
        """
        found = []
        for place in list(islice(self._waiting, LOOKED_AT)):
            del self._waiting[place]
            self._look_again(state, place)
            if place in self._heard:
                self._waiting[place] = None
                found.append((state.blocks.where[place[0]].tenant, place[0]))
        return found

    def forget(self, blocks: Iterable[BlockId]) -> None:
        """A repair was asked to look at all copies of these: once for each time that a reader
        complains.
        """
        _drop(self._waiting, blocks)

    def settle(self, blocks: Iterable[BlockId]) -> None:
        """A repair has looked at all copies of these: what was bad is healed or named as lost, and
        of what was whole a reader was wrong.
        """
        _drop(self._heard, blocks)

    def _forget_healed(self, state: MetaState) -> None:
        for place in list(self._heard):
            self._look_again(state, place)

    def _look_again(self, state: MetaState, place: tuple[BlockId, StoreName]) -> None:
        """Forget what was healed; whatever was looked at is last in line."""
        block, store = place
        told = self._heard.pop(place, {})
        left = {key: what for key, what in told.items() if _is_listed(state, block, store, key)}
        if left:
            self._heard[place] = left


def _is_listed(state: MetaState, block: BlockId, store: StoreName, key: str) -> bool:
    if block not in state.blocks:
        return False
    files = state.blocks.get(block).files
    return any(at.store == store and at.key == key for file in files for at in file.locations)


def _drop(places: dict[tuple[BlockId, StoreName], Any], blocks: Iterable[BlockId]) -> None:
    gone = set(blocks)
    for place in [place for place in places if place[0] in gone] if gone else ():
        del places[place]
