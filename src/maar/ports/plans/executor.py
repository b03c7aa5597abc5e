"""All that whoever executes plans asks of the metastore, and tells it."""

from __future__ import annotations

from typing import Protocol

from maar.ports.operator.copies import CopyKeeper
from maar.ports.plans.board import PlanBoard


class ExecutorPort(PlanBoard, CopyKeeper, Protocol):
    """Plans under leases, and copies that could not be read on the way."""
