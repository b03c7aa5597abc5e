"""What an operator asks of repairs: one now, and how they are getting on."""

from __future__ import annotations

from collections.abc import Awaitable
from typing import Any, Protocol

import msgspec

from maar.model.ids import BlockId, PlanId, TenantId
from maar.model.plan import JobId
from maar.model.time import WallTime
from maar.ports.calls import Call
from maar.ports.metastore.call import MetastoreCall


class RepairJob(msgspec.Struct, frozen=True):
    """How one repair of a tenant is getting on."""

    tenant: TenantId
    type: str
    state: str  # COMPLETED, ON_TIME, LATE, OVERDUE, BLOCKED
    percent_repaired: float  # of the bytes that are at all their stores; of ranges, if a vnode one
    max_repaired_at: WallTime | None  # when the last repair began after which all was repaired
    age_s: float | None  # since then
    remaining_s: float  # of work, if it goes on as it did the last time
    why: str  # it is in that state, in a sentence
    running: PlanId | None = None  # the session that somebody holds
    ranges: int = 0
    repaired: int = 0  # of those
    asked: bool = False  # somebody waits for it


class LostBlockTold(msgspec.Struct, frozen=True):
    block: BlockId
    tenant: TenantId
    what: str


class RepairsStatus(msgspec.Struct, frozen=True):
    jobs: tuple[RepairJob, ...]
    lost: tuple[LostBlockTold, ...]  # blocks of which no copy is whole


class RepairTold(msgspec.Struct, frozen=True):
    """A repair that somebody asked for: what came of it so far, or what would."""

    job: JobId
    outcome: str  # running, completed, cancelled, nothing_to_do, would_run
    ranges: int = 0
    checked: int = 0
    copied: int = 0
    damaged: int = 0
    lost: int = 0
    blocks: int = 0  # that a dry run found to look at
    bytes: int = 0
    why: str = ""


class RepairOperator(Protocol):
    async def repairs(self, *, tenant: str = "") -> RepairsStatus: ...

    async def ask_repair(self, job: JobId, *, wanted: bool, dry_run: bool) -> RepairTold: ...

    async def asked_repair(self, job: JobId) -> RepairTold: ...


class ListRepairs(MetastoreCall[RepairOperator, RepairsStatus], frozen=True):
    tenant: str = ""

    def answer(self, port: RepairOperator) -> Awaitable[RepairsStatus]:
        return port.repairs(tenant=self.tenant)


class AskRepair(MetastoreCall[RepairOperator, RepairTold], frozen=True):
    """A repair of all that a tenant has, now; or, not wanted, an end of one."""

    job: JobId
    wanted: bool = True
    dry_run: bool = False

    def answer(self, port: RepairOperator) -> Awaitable[RepairTold]:
        return port.ask_repair(self.job, wanted=self.wanted, dry_run=self.dry_run)


class GetAskedRepair(MetastoreCall[RepairOperator, RepairTold], frozen=True):
    """What came of the last repair that somebody asked for."""

    job: JobId

    def answer(self, port: RepairOperator) -> Awaitable[RepairTold]:
        return port.asked_repair(self.job)


CALLS: tuple[type[Call[RepairOperator, Any]], ...] = (ListRepairs, AskRepair, GetAskedRepair)
