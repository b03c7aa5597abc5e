"""Three replicas of the metastore as processes over a real etcd, each connection on a line."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import time
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path

import httpx

from maar.adapters.rpc import Channel, MetastoreClient
from maar.model.errors import MaarError
from maar.ports.metastore.replica import GetReplica, ReplicaStatus
from support.etcd.cluster import PREFIX, EtcdCluster, running
from support.network.cut import Line, Lines, lines
from support.network.ports import free_port
from support.processes.serving import Served, wait_for

ELECTION_S = 2.0
FAILOVER_S = ELECTION_S + 2.0
PATIENCE_S = 90.0
NAMES = ("r0", "r1", "r2")
SETTINGS = (
    f"log.election_s={ELECTION_S}",
    "compaction.level_counts=4,4,4",
    "compaction.level_ages_s=1,2,3",
    "services.compact.lease_s=3",
    "compaction.retry_s=0.2",
    "compaction.snapshot_entries=400",
    "retention.default_days=0",
)


class ReplicaProcess:
    """One replica: `door` is where others reach it, `wires` are its ways to etcd."""

    def __init__(self, name: str, directory: Path, network: Lines, etcd: EtcdCluster) -> None:
        self.name = name
        self.home = directory / name
        self.home.mkdir()
        self._listens = f"127.0.0.1:{free_port()}"
        self.door = network.open(self._listens)
        self.wires: list[Line] = [network.open(endpoint) for endpoint in etcd.endpoints]
        self.process: Served | None = None
        self._url = f"http://127.0.0.1:{free_port()}"

    @property
    def address(self) -> str:
        return self.door.address

    def launch(self, others: str, *settings: str) -> None:
        wires = ",".join(line.address for line in self.wires)
        process = Served(
            self.home,
            f"log.url=etcd://{wires}{PREFIX}",
            f"metastore.name={self.name}",
            f"metastore.listen={self._listens}",
            f"metastore.advertise={self.address}",
            f"roles.metastore={others}",
            *settings,
            roles="metastore",
        )
        process.url = self._url
        process.launch()
        self.process = process

    @property
    def alive(self) -> bool:
        return self.process is not None and self.process.exit_code() is None

    def why_not_ready(self) -> str:
        """'' when it says over HTTP that it is ready."""
        try:
            answer = httpx.get(f"{self._url}/ready", trust_env=False, verify=False, timeout=30)
        except httpx.HTTPError as error:
            return f"no answer: {error}"
        return "" if answer.status_code == 200 else answer.text

    def metrics(self) -> str:
        return httpx.get(f"{self._url}/metrics", trust_env=False, verify=False, timeout=60).text

    def kill(self) -> None:
        assert self.process is not None
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.process.pid, signal.SIGKILL)
        self.process.stop(signal.SIGKILL)

    def pause(self) -> None:
        assert self.process is not None
        os.kill(self.process.pid, signal.SIGSTOP)

    def resume(self) -> None:
        assert self.process is not None
        os.kill(self.process.pid, signal.SIGCONT)

    def cut_off(self) -> None:
        """As if its cable were pulled: nobody is told, nothing arrives."""
        for line in (self.door, *self.wires):
            line.silence()

    def heal(self) -> None:
        for line in (self.door, *self.wires):
            line.heal()

    def log(self) -> str:
        return self.process.log() if self.process is not None else ""


class Replicas:
    """Who is there, what is done to them, and what they say of themselves."""

    def __init__(
        self, directory: Path, network: Lines, etcd: EtcdCluster, *settings: str, size: int = 3
    ) -> None:
        self.directory = directory
        self.etcd = etcd
        self.store = directory / "store"
        self.store.mkdir()
        self._settings = (*SETTINGS, f"store.url={self.store.as_uri()}", *settings)
        self.members = {
            name: ReplicaProcess(name, directory, network, etcd) for name in NAMES[:size]
        }

    @property
    def addresses(self) -> str:
        return ",".join(member.address for member in self.members.values())

    def launch(self, name: str) -> None:
        self.members[name].launch(self.addresses, *self._settings)

    def start(self) -> None:
        for name, member in self.members.items():
            if not member.alive:
                self.launch(name)
        self.settle()

    def settle(self) -> None:
        """Wait until everybody who runs is ready."""
        for member in self.members.values():
            wait_for(lambda m=member: self._is_ready(m), PATIENCE_S, self.log)  # type: ignore[misc]

    def _is_ready(self, member: ReplicaProcess) -> bool:
        assert member.process is not None, f"{member.name} was not launched"
        member.process.must_live()
        return not member.why_not_ready()

    def kill(self) -> None:
        """All of them at once."""
        for member in self.members.values():
            if member.alive:
                assert member.process is not None
                os.kill(member.process.pid, signal.SIGKILL)
        for member in self.members.values():
            if member.process is not None:
                member.kill()

    async def statuses(self) -> dict[str, ReplicaStatus]:
        """What each replica that answers says of itself."""
        found = {}
        for name, member in self.members.items():
            with contextlib.suppress(MaarError):
                found[name] = await ask_status(member.address)
        return found

    async def leader(self) -> ReplicaProcess:
        """The one that leads, and that most others take for the leader."""
        deadline = time.monotonic() + PATIENCE_S
        while True:
            statuses = await self.statuses()
            leading = [name for name, status in statuses.items() if status.standing == "leader"]
            if len(leading) == 1:
                member = self.members[leading[0]]
                believers = [s for s in statuses.values() if s.leader == member.address]
                if len(believers) > len(self.members) // 2:
                    return member
            assert time.monotonic() < deadline, f"nobody leads: {statuses}\n{self.log()}"
            await asyncio.sleep(0.05)

    def followers(self, leader: ReplicaProcess) -> list[ReplicaProcess]:
        return [member for member in self.members.values() if member is not leader]

    def client(self) -> MetastoreClient:
        return MetastoreClient(self.addresses)

    def log(self) -> str:
        """The last of everyone's words."""
        return "\n".join(f"── {m.name} ──\n{m.log()[-3000:]}" for m in self.members.values())

    def close(self) -> None:
        for member in self.members.values():
            if member.alive:
                member.kill()


async def ask_status(address: str) -> ReplicaStatus:
    client = Channel(address)
    try:
        return await client.call(GetReplica())
    finally:
        await client.close()


async def until(
    condition: Callable[[], Awaitable[bool]], what: str, patience_s: float = PATIENCE_S
) -> None:
    deadline = time.monotonic() + patience_s
    while not await condition():
        assert time.monotonic() < deadline, f"waited {patience_s} s in vain until {what}"
        await asyncio.sleep(0.05)


@contextlib.contextmanager
def replicas(directory: Path, *settings: str, size: int = 3) -> Iterator[Replicas]:
    """All of them ready, and all gone at the end."""
    with lines() as network, running(directory, members=3) as etcd:
        made = Replicas(directory, network, etcd, *settings, size=size)
        try:
            made.start()
            yield made
        finally:
            made.close()
