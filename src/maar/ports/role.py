"""Health and metrics of every role process."""

from __future__ import annotations

from collections.abc import Awaitable
from typing import Any, ClassVar, Protocol

from maar.ports.calls import Call

ROLE_DEADLINE_S = 2.0


class Role(Protocol):
    async def metrics(self) -> str:
        """Its metrics in the text form of Prometheus."""
        ...

    async def ready(self) -> str:
        """'' when it can do its work, else why not."""
        ...


class GetMetrics(Call[Role, str], frozen=True):
    wire_service: ClassVar[str] = "maar.Role"
    deadline_s: ClassVar[float] = ROLE_DEADLINE_S

    def answer(self, port: Role) -> Awaitable[str]:
        return port.metrics()


class GetReadiness(Call[Role, str], frozen=True):
    wire_service: ClassVar[str] = "maar.Role"
    deadline_s: ClassVar[float] = ROLE_DEADLINE_S

    def answer(self, port: Role) -> Awaitable[str]:
        return port.ready()


CALLS: tuple[type[Call[Role, Any]], ...] = (GetMetrics, GetReadiness)
