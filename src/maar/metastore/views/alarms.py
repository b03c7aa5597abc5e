"""All alarms, as everybody is told of them: jobs that are late, and blocks that are lost."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice

from maar.metastore.decide import jobs
from maar.metastore.state.state import MetaState
from maar.metastore.views.schedule import wall_of
from maar.model.ids import BlockId, TenantId
from maar.model.plan import JobId
from maar.model.repair import RepairType
from maar.model.schedule import Alarm, AlarmLevel
from maar.model.time import LeaseTime
from maar.model.words import count_text
from maar.services.repair.rules import REPAIR

NAMED_MAX = 3  # lost blocks in a sentence; maar repair status has them all


def every_alarm(state: MetaState) -> tuple[Alarm, ...]:
    return (*state.alarms.values(), *_loss_alarms(state))


def _loss_alarms(state: MetaState) -> Iterator[Alarm]:
    """One for each tenant with blocks of which no copy is whole. It follows from what repair found,
    so that it rings once, whoever leads, and ceases when a repair finds them whole or they go.
    """
    found: dict[TenantId, list[BlockId]] = {}
    since: dict[TenantId, LeaseTime] = {}
    for block, each in state.repairs.lost.items():
        if block in state.blocks:
            found.setdefault(each.tenant, []).append(block)
            since[each.tenant] = LeaseTime(min(each.at, since.get(each.tenant, each.at)))
    at = jobs.moment(state, state.lease_time)
    for tenant, blocks in sorted(found.items()):
        more = ", …" if len(blocks) > NAMED_MAX else ""
        note = (
            f"{count_text(len(blocks), 'block')} of {tenant} without a whole copy "
            f"({', '.join(islice(blocks, NAMED_MAX))}{more}): see maar repair status"
        )
        job = JobId(tenant, REPAIR, RepairType.VNODE)
        began = since[tenant]
        yield Alarm(job, AlarmLevel.ERROR, began, wall_of(state, began, at), note)
