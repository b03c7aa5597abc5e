"""The whole metastore: every port that one replica serves, and every request of them."""

from __future__ import annotations

from typing import Any, Protocol

from maar.ports import (
    copies,
    dead_letters,
    deletions,
    index_reader,
    log_time,
    membership,
    operator,
    plan_board,
    registrar,
    repairs,
    retention,
    schedule,
    store_removal,
)
from maar.ports.calls import Call
from maar.ports.copies import CopyKeeper
from maar.ports.deletions import Deleter
from maar.ports.index_reader import IndexReader
from maar.ports.membership import BeatListener
from maar.ports.operator import Operator
from maar.ports.plan_board import PlanBoard
from maar.ports.registrar import BlockRegistrar
from maar.ports.repairs import RepairOperator
from maar.ports.schedule import ScheduleOperator
from maar.ports.store_removal import StoreRemover


class Metastore(
    BlockRegistrar,
    BeatListener,
    PlanBoard,
    IndexReader,
    Operator,
    Deleter,
    StoreRemover,
    CopyKeeper,
    ScheduleOperator,
    RepairOperator,
    Protocol,
):
    """Reads of the index are answered by any replica, linearizably; what changes something, and
    what only a leader knows (heartbeats, rings, letters, the log's time), by the leader.
    """


CALLS: tuple[type[Call[Metastore, Any]], ...] = (
    *log_time.CALLS,
    *registrar.CALLS,
    *membership.BEATS,
    *membership.RINGS,
    *plan_board.CALLS,
    *index_reader.CALLS,
    *retention.CALLS,
    *dead_letters.CALLS,
    *deletions.CALLS,
    *store_removal.CALLS,
    *copies.CALLS,
    *schedule.CALLS,
    *repairs.CALLS,
    *operator.CALLS,
)
