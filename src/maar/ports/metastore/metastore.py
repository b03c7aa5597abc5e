"""The whole metastore: every port that one replica serves, and every request of them."""

from __future__ import annotations

from typing import Any, Protocol

from maar.ports.calls import Call
from maar.ports.metastore import log_time
from maar.ports.operator import (
    copies,
    dead_letters,
    deletions,
    operator,
    repairs,
    retention,
    schedule,
    store_removal,
)
from maar.ports.operator.copies import CopyKeeper
from maar.ports.operator.deletions import Deleter
from maar.ports.operator.operator import Operator
from maar.ports.operator.repairs import RepairOperator
from maar.ports.operator.schedule import ScheduleOperator
from maar.ports.operator.store_removal import StoreRemover
from maar.ports.plans import board as plan_board
from maar.ports.plans.board import PlanBoard
from maar.ports.reader import index as index_reader
from maar.ports.reader.index import IndexReader
from maar.ports.writer import membership, registrar
from maar.ports.writer.membership import BeatListener
from maar.ports.writer.registrar import BlockRegistrar


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
