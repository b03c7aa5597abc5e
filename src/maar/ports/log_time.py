"""The time of the metastore's log, for those who name things by it."""

from __future__ import annotations

from typing import Protocol

import msgspec

from maar.model.ids import Incarnation
from maar.model.time import LeaseTime


class Now(msgspec.Struct, frozen=True):
    """The log's own time, for those who name things by it."""

    incarnation: Incarnation
    lease_time: LeaseTime
    index: int


class LogTime(Protocol):
    """Asked of the leader."""

    async def now(self) -> Now: ...
