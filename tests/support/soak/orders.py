"""What the fork server is asked to bring to life: a worker, a zombie, or one task of either."""

from __future__ import annotations

from multiprocessing.connection import Client, Connection
from pathlib import Path

import msgspec

from maar.model.plan import LeasedPlan, PlanResult
from maar.ports.stores.object_store import StoreSettings


class Surroundings(msgspec.Struct, frozen=True):
    """Where everybody finds everything."""

    metastore: str  # the address
    store: StoreSettings
    fork_server: str  # the path of its socket
    scratch: str
    write_s: float  # a task writes nothing later than this after its grant


class Work(msgspec.Struct, frozen=True, tag=True):
    """An honest worker."""

    around: Surroundings
    name: str
    slots: int
    pause_s: float  # how long its tasks dawdle, so that there is something to disturb


class Zombie(msgspec.Struct, frozen=True, tag=True):
    """A worker that renews nothing, never stops, and reports late."""

    around: Surroundings
    name: str
    seed: int
    nap_s: float  # at most before its work, about as long in it


class Task(msgspec.Struct, frozen=True, tag=True):
    """One attempt at one plan."""

    around: Surroundings
    plan: LeasedPlan
    pause_s: float
    write_until_ns: int  # of the monotonic clock, which all processes of a host share


class Done(msgspec.Struct, frozen=True, tag=True):
    result: PlanResult


class Failed(msgspec.Struct, frozen=True, tag=True):
    cause: str
    own: bool


Order = Work | Zombie | Task
Answer = Done | Failed

_ANSWER: msgspec.msgpack.Decoder[Answer] = msgspec.msgpack.Decoder(Answer)


class Child:
    """A process that the fork server has forked for us; the connection ends when it does."""

    def __init__(self, fork_server: str | Path, order: Order) -> None:
        self._connection: Connection = Client(str(fork_server), family="AF_UNIX")
        self._connection.send_bytes(msgspec.msgpack.encode(order))
        self.pid = msgspec.msgpack.decode(self._connection.recv_bytes(), type=int)

    def answer(self) -> Answer:
        """What a task came to; EOFError when it died."""
        return _ANSWER.decode(self._connection.recv_bytes())

    def alive(self) -> bool:
        """Nobody but a task ever sends anything: what can be read is the end."""
        return not self._connection.closed and not self._connection.poll()

    def close(self) -> None:
        self._connection.close()
