"""Whose query is next: tenants take turns, and none of them can take every slot. Pure."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Hashable
from dataclasses import dataclass
from typing import Generic, TypeVar

from maar.model.errors import Overloaded
from maar.model.ids import TenantId

RETRY_AFTER_S = 2.0

Waiter = TypeVar("Waiter", bound=Hashable)


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnLimits:
    """How many queries may run and wait, in all and of one tenant."""

    slots: int
    tenant_slots: int  # 0: all but one, so that another tenant's first query need not wait
    waiting: int
    tenant_waiting: int

    @property
    def slots_of_one(self) -> int:
        most = self.tenant_slots or self.slots - 1
        return max(1, min(most, self.slots))


class NoTurn(Overloaded):
    """There is no room to wait; `reason` is a short word for the metric's label."""

    def __init__(self, message: str, *, reason: str) -> None:
        super().__init__(message, retry_after_s=RETRY_AFTER_S)
        self.reason = reason


class Turns(Generic[Waiter]):
    """A queue for each tenant. A free slot goes round the tenants that wait, one query each.

    A query cannot be interrupted for another's sake, so fairness has two halves: who waits is
    served in turns, and a slot is kept from whoever already holds all others.
    """

    def __init__(self, bounds: TurnLimits) -> None:
        self._bounds = bounds
        self._free = list(range(bounds.slots))[::-1]  # a slot is also a name: the lowest are reused
        self._holder: dict[int, TenantId] = {}
        self._held: Counter[TenantId] = Counter()
        self._queues: dict[TenantId, deque[Waiter]] = {}  # in the order of their turns; none empty
        self._waiting = 0

    @property
    def waiting(self) -> int:
        return self._waiting

    def ask(self, tenant: TenantId, waiter: Waiter) -> int | None:
        """A slot, or None: then the waiter is queued until `free` names it, or it leaves."""
        if self._free and tenant not in self._queues and self._may_hold(tenant):
            return self._take_slot(tenant)
        self._check_room(tenant)
        self._queues.setdefault(tenant, deque()).append(waiter)
        self._waiting += 1
        return None

    def leave(self, tenant: TenantId, waiter: Waiter) -> None:
        """The waiter no longer waits."""
        queue = self._queues.get(tenant)
        if queue is not None and waiter in queue:
            queue.remove(waiter)
            self._waiting -= 1
            if not queue:
                del self._queues[tenant]

    def free(self, slot: int) -> list[tuple[Waiter, int]]:
        """A query has ended: who gets which slot now."""
        self._held[self._holder.pop(slot)] -= 1
        self._held += Counter()  # forget who holds none
        self._free.append(slot)
        granted: list[tuple[Waiter, int]] = []
        while self._free:
            tenant = next((one for one in self._queues if self._may_hold(one)), None)
            if tenant is None:
                break
            queue = self._queues.pop(tenant)
            granted.append((queue.popleft(), self._take_slot(tenant)))
            self._waiting -= 1
            if queue:
                self._queues[tenant] = queue  # behind the others now
        return granted

    def _may_hold(self, tenant: TenantId) -> bool:
        return self._held[tenant] < self._bounds.slots_of_one

    def _take_slot(self, tenant: TenantId) -> int:
        slot = self._free.pop()
        self._holder[slot] = tenant
        self._held[tenant] += 1
        return slot

    def _check_room(self, tenant: TenantId) -> None:
        bounds = self._bounds
        mine = len(self._queues.get(tenant, ()))
        if mine >= bounds.tenant_waiting:
            raise NoTurn(
                f"{self._held[tenant]} queries of tenant {tenant} are running and {mine} wait, "
                "as many as may; ask again later, ask for less at once, or raise "
                "query.tenant_waiting_max",
                reason="tenant_waiting",
            )
        if self._waiting >= bounds.waiting:
            raise NoTurn(
                f"{self._waiting} queries of {len(self._queues)} tenants wait, as many as may; "
                "ask again later, or raise query.waiting_max",
                reason="waiting",
            )
