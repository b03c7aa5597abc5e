"""A leader whose leases and delays are short, for stories of rollbacks."""

from __future__ import annotations

import msgspec

from maar.model.ids import BlockId
from maar.model.time import SECOND_NS
from support.metastore.fold import SMALL, Fold
from support.metastore.leader_term import LeaderDecisions

LEASE_S = SMALL.lease_ns // SECOND_NS
DELAY_S = 600
HOLD_S = 60
POLICY = msgspec.structs.replace(
    SMALL,
    rollback_delay_ns=DELAY_S * SECOND_NS,
    hold_max_ns=HOLD_S * SECOND_NS,
    clean_interval_ns=60 * SECOND_NS,
)


def leader(**policy: object) -> LeaderDecisions:
    return LeaderDecisions(Fold(policy=msgspec.structs.replace(POLICY, **policy)))


def waiting(one: LeaderDecisions) -> list[BlockId]:
    """The blocks of all lanes, in their order."""
    queue = one.fold.state.queue
    return [item.block for front in queue.oldest_first(0) for item in queue.items(front.key)]
