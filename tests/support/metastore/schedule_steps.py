"""Plans that failed or are excluded, for tests of the scheduler."""

from __future__ import annotations

import msgspec

from maar.metastore.records.effects import Leased
from maar.model.ids import PlanId
from support.metastore.fold import SMALL, Fold
from support.metastore.leader_term import LeaderDecisions


def leader_with(**numbers: int) -> LeaderDecisions:
    return LeaderDecisions(Fold(policy=msgspec.structs.replace(SMALL, **numbers)))


def plans_of(leases: list[Leased]) -> list[PlanId]:
    return [lease.plan for lease in leases]
