"""The whole metastore: every port that one replica serves together."""

from __future__ import annotations

from typing import Protocol

from maar.ports.index_reader import IndexReader
from maar.ports.membership import BeatListener
from maar.ports.operator import Operator
from maar.ports.plan_board import PlanBoard
from maar.ports.registrar import BlockRegistrar


class Metastore(BlockRegistrar, BeatListener, PlanBoard, IndexReader, Operator, Protocol):
    """Every call may raise Unavailable; all may be repeated, since they name what they mean.

    Reads of the index are answered by any replica, linearizably; what changes something, and what
    only a leader hears (beats, rings, letters, the log's time), by the leader: others raise
    NotLeading with its address.
    """
