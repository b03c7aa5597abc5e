"""The time of the metastore's log, which ids of segments contain."""

from __future__ import annotations

from collections.abc import Awaitable
from typing import Any, Protocol

import msgspec

from maar.model.ids import Incarnation
from maar.model.time import LeaseTime
from maar.ports.calls import Call
from maar.ports.metastore.call import MetastoreCall


class Now(msgspec.Struct, frozen=True):
    """The log's own time, for those who name things by it."""

    incarnation: Incarnation
    lease_time: LeaseTime
    index: int


class LogTime(Protocol):
    """Asked of the leader."""

    async def now(self) -> Now: ...


class GetNow(MetastoreCall[LogTime, Now], frozen=True):
    """The leader's, since only it knows the time that has passed."""

    def answer(self, port: LogTime) -> Awaitable[Now]:
        return port.now()


CALLS: tuple[type[Call[LogTime, Any]], ...] = (GetNow,)
