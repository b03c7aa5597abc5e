"""What is asked of one replica of the metastore, by the others and by an operator."""

from __future__ import annotations

from collections.abc import Awaitable
from typing import Any, ClassVar, Protocol, TypeVar

import msgspec

from maar.ports.calls import Call

R_co = TypeVar("R_co", covariant=True)
LONG_DEADLINE_S = 900.0  # a whole log is replayed meanwhile


class ReplicaStatus(msgspec.Struct, frozen=True):
    """One replica of the metastore, as it sees itself; asked of each, not of the leader alone."""

    name: str
    address: str
    standing: str  # leader, follower, starting, in doubt, stopped, unreachable
    term: int = 0  # of the last entry that began one
    index: int = 0  # of the last applied entry
    head: int = 0  # of the log, when it was last seen
    behind_s: float = 0.0  # since it was last known to have applied everything
    leader: str = ""  # the address of the one that it takes for the leader
    knows: int = 0  # the newest version of the log that its program can read
    version: int = 0  # that is active
    incarnation: str = ""
    wall_ns: int = 0
    hashed_at: int = 0  # the last entry whose state was hashed for comparison
    digest: bytes = b""  # this replica's, there
    fault: str = ""  # why it stopped or doubts
    snapshot_index: int = 0  # of the one that it began with
    log: str = ""  # where the log is kept


class MetastoreReplica(Protocol):
    """What is asked of one replica, by the others and by an operator; never passed on."""

    async def replica(self) -> ReplicaStatus: ...

    async def vote(self, vote: Vote) -> None:
        """Have the leader put a replica's hash into the log; else NotLeading."""
        ...

    async def pin(self, reader: str) -> int:
        """Have the leader pin the index for a reader (S10); the index that covers it."""
        ...

    async def snapshot(self) -> int:
        """Have the leader get one made, checked, and the log truncated; its index."""
        ...

    async def rebuild(self) -> ReplicaStatus:
        """Forget the state and read it again from the newest good snapshot and the log."""
        ...


class ReplicaCall(Call[MetastoreReplica, R_co], frozen=True):
    """A request of one replica, never passed on to another."""

    wire_service: ClassVar[str] = "maar.MetastoreReplica"
    deadline_s: ClassVar[float] = 5.0


class GetReplica(ReplicaCall[ReplicaStatus], frozen=True):
    """The replica as it sees itself."""

    def answer(self, port: MetastoreReplica) -> Awaitable[ReplicaStatus]:
        return port.replica()


class Vote(ReplicaCall[None], frozen=True):
    """The hash of a replica's state at an index."""

    replica: str
    at: int
    digest: bytes

    def answer(self, port: MetastoreReplica) -> Awaitable[None]:
        return port.vote(self)


class PinIndex(ReplicaCall[int], frozen=True):
    """Have the leader pin the index for a reader (S10)."""

    reader: str

    def answer(self, port: MetastoreReplica) -> Awaitable[int]:
        return port.pin(self.reader)


class TakeSnapshot(ReplicaCall[int], frozen=True):
    """Have the leader get a snapshot made, and the log truncated."""

    deadline_s: ClassVar[float] = LONG_DEADLINE_S

    def answer(self, port: MetastoreReplica) -> Awaitable[int]:
        return port.snapshot()


class RebuildReplica(ReplicaCall[ReplicaStatus], frozen=True):
    """Have it read its state again from the newest good snapshot and the log."""

    deadline_s: ClassVar[float] = LONG_DEADLINE_S

    def answer(self, port: MetastoreReplica) -> Awaitable[ReplicaStatus]:
        return port.rebuild()


CALLS: tuple[type[Call[MetastoreReplica, Any]], ...] = (
    GetReplica,
    Vote,
    PinIndex,
    TakeSnapshot,
    RebuildReplica,
)
