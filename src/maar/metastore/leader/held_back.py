"""What background tasks could not do: told once, and tried again after a while."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Generic, TypeVar

from maar.model.policy import MINUTE_NS
from maar.model.time import LeaseTime

log_ = logging.getLogger("maar.metastore")

REST_NS = MINUTE_NS  # what could not be cleaned is tried again after this

Item = TypeVar("Item")


class HeldBack(Generic[Item]):
    """What could not be cleaned: logged once, and skipped for a while before it is tried again."""

    def __init__(self, size_max: int) -> None:
        self._size_max = size_max
        self._held: dict[Item, tuple[LeaseTime, str]] = {}

    def __len__(self) -> int:
        return len(self._held)

    def resting(self, now: LeaseTime) -> set[Item]:
        """Items to skip for now; none once the bound is reached, so that no more are added."""
        if len(self._held) >= self._size_max:
            return set()
        return {item for item, (until, _) in self._held.items() if now <= until}

    def hold(self, items: Sequence[Item], why: str, *, now: LeaseTime, tell: bool = True) -> None:
        """Hold items back for a common cause, which is logged once for all of them."""
        if tell and self._held.get(items[0], (0, ""))[1] != why:
            log_.error("cleanup blocked cause=%s", why)
        self._held.update((item, (LeaseTime(now + REST_NS), why)) for item in items)

    def settle(self, items: Sequence[Item]) -> None:
        held = [self._held.pop(item) for item in items if item in self._held]
        for why in dict.fromkeys(why for _, why in held):
            log_.info("cleanup resumed, was blocked cause=%s", why)

    def sentences(self) -> list[str]:
        return list(dict.fromkeys(why for _, why in self._held.values()))
