"""All that the metastore knows: only the fold changes it, and all of it is bounded (S21)."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

from maar.metastore.index import Index
from maar.metastore.policy import Policy
from maar.metastore.queue import Queue
from maar.metastore.sorted_chunks import SortedChunks
from maar.model.ids import BlockId, FencingToken, Incarnation, PlanId
from maar.model.plan import Plan
from maar.model.time import LeaseTime, WallTime

NO_INCARNATION = Incarnation("")
GENESIS_TIME = LeaseTime(0)
NO_WALL_TIME = WallTime(0)
NO_FLOOR = LeaseTime(-1)


class Retired(NamedTuple):
    """A replaced block, readable until its objects are deleted."""

    entry: int  # the index of the one that replaced it
    at: LeaseTime
    outputs: tuple[BlockId, ...]  # what replaced it
    packed: bytes


class Pin(NamedTuple):
    """A reader may hold what was live at an entry."""

    entry: int
    expires_at: LeaseTime


@dataclass(slots=True)
class Tally:
    """Counted since genesis."""

    profiles_added: int = 0
    duplicates_removed: int = 0
    profiles_quarantined: int = 0
    plans_completed: int = 0


@dataclass(slots=True)
class MetaState:
    index: int = 0
    version: int = 1
    incarnation: Incarnation = NO_INCARNATION
    term: int = 0
    leader: str = ""
    lease_time: LeaseTime = GENESIS_TIME
    wall_time: WallTime = NO_WALL_TIME
    floor: LeaseTime = NO_FLOOR
    policy: Policy = field(default_factory=Policy)
    tally: Tally = field(default_factory=Tally)
    blocks: Index = field(default_factory=Index)
    queue: Queue = field(default_factory=Queue)
    owners: dict[BlockId, PlanId] = field(default_factory=dict)
    plans: dict[PlanId, Plan] = field(default_factory=dict)  # requested, inflight, excluded
    finished: dict[PlanId, Plan] = field(default_factory=dict)  # the rest, oldest end first
    retired: dict[BlockId, Retired] = field(default_factory=dict)  # oldest first
    remembered: SortedChunks[BlockId] = field(default_factory=SortedChunks)  # gone, above the floor
    pins: dict[str, Pin] = field(default_factory=dict)

    def token(self) -> FencingToken:
        """The token of leases that the entry being folded grants (S3)."""
        return FencingToken(self.incarnation, self.index)

    def room(self) -> int:
        """How many more blocks the state may know of."""
        known = len(self.blocks) + len(self.retired) + len(self.remembered)
        return self.policy.blocks_max - known


class Bound(NamedTuple):
    limit: str  # the field of the policy, or the collection that it cannot outgrow
    trimmed_by: tuple[str, ...]  # kinds of entries


BOUNDS: dict[str, Bound] = {
    "blocks.where": Bound("blocks_max", ("PlanCompleted",)),
    "blocks.tenants": Bound("blocks.where", ("PlanCompleted",)),
    "blocks.totals": Bound("blocks.where", ("PlanCompleted",)),
    "queue.places": Bound("blocks.where", ("PlanCompleted",)),
    "queue.lanes": Bound("queue.places", ("PlansScheduled",)),
    "queue.fronts": Bound("queue.lanes", ("PlansScheduled",)),
    "queue.full": Bound("queue.lanes", ("PlansScheduled",)),
    "owners": Bound("blocks.where", ("PlanCompleted",)),
    "plans": Bound("plans_max", ("PlanCompleted",)),
    "finished": Bound("finished_max", ("PlansArchived", "PlanCompleted")),
    "retired": Bound("blocks_max", ("BlocksForgotten",)),
    "remembered": Bound("blocks_max", ("Floor",)),
    "pins": Bound("pins_max", ("PinsDropped",)),
}


def sizes(state: MetaState) -> dict[str, int]:
    """How many items every bounded collection holds."""
    found = {}
    for name in BOUNDS:
        value: object = state
        for part in name.split("."):
            value = getattr(value, part)
        found[name] = len(value)  # type: ignore[arg-type]
    return found
