"""Who pushes what and when: the decisions of a load. Pure."""

from __future__ import annotations

from random import Random
from typing import NamedTuple

import msgspec


class Program(NamedTuple):
    """One running program: a pod of a service of a tenant."""

    tenant: str  # '' is the server's default
    service: str
    pod: str
    number: int  # of the service among all tenants' services


class Crowd(msgspec.Struct, frozen=True, kw_only=True):
    """How many push, and how often all of them together."""

    tenants: int
    services: int  # of each tenant
    pods: int  # of each service
    rate: float  # pushes a second
    seconds: float
    prefix: str = "load"  # of all names

    @property
    def pushes(self) -> int:
        return max(1, int(self.rate * self.seconds))

    def due_s(self, number: int) -> float:
        """When a push is due, independent of earlier ones: agents do not wait for each other."""
        return number / self.rate

    def sources(self, seed: int) -> list[Program]:
        """All that push, each once, well mixed; pushes go through them again and again."""
        found = [
            Program(
                self._tenant(tenant),
                f"{self.prefix}-{service + 1}",
                f"{self.prefix}-{service + 1}-{pod + 1}",
                tenant * self.services + service,
            )
            for tenant in range(self.tenants)
            for service in range(self.services)
            for pod in range(self.pods)
        ]
        Random(seed).shuffle(found)
        return found

    def _tenant(self, number: int) -> str:
        return f"{self.prefix}-{number + 1}" if self.tenants > 1 else ""
