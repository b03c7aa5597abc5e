"""Three replicas under load, what can be done to them, and what must hold afterwards.

After each fault: nothing that was acknowledged is lost or doubled, every state is the same, tokens
only grow, a leader that lost leadership wrote nothing more, and an order explains all that was
answered.
"""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import AsyncIterator, Set
from contextlib import asynccontextmanager
from functools import partial

from maar.adapters.etcd.log import EtcdLog
from maar.adapters.rpc import Channel, MetastoreClient
from maar.model.errors import MaarError, Unreachable
from maar.model.ids import BlockId, Incarnation
from maar.ports.metastore.log_time import GetNow
from maar.ports.metastore.replica import GetReplica, RebuildReplica, TakeSnapshot
from maar.ports.operator.operator import GetStatus, ListBlocks
from maar.ports.writer.registrar import AddBlocks
from support.etcd.cluster import Member as EtcdMember
from support.etcd.cluster import apart
from support.load.register_load import Load
from support.metastore.fold import segment
from support.network.cut import Way
from support.oracles.log_tail import Tail
from support.replicas.processes import ReplicaProcess, Replicas, ask_status, until

NOT_READY_S = 30.0


class FaultyReplicas:
    """The replicas, and a stranger who reads their whole log."""

    def __init__(self, replicas: Replicas, *, seed: int = 0) -> None:
        self.replicas = replicas
        self.tail = Tail()
        self._seed = seed

    @asynccontextmanager
    async def under_load(self) -> AsyncIterator[Load]:
        """Load before, during and after what is done inside; then everything is checked."""
        self._seed += 1
        async with self._follow() as log:
            load = Load(self.replicas.addresses, seed=self._seed)
            async with load.running():
                await load.goes_on()
                yield load
                await load.goes_on()
            await self._check(load, log)

    @asynccontextmanager
    async def _follow(self) -> AsyncIterator[EtcdLog]:
        """Nothing is truncated inside that the stranger has not read."""
        log = await EtcdLog.open_reader(self.replicas.etcd.settings())
        try:
            await self.tail.read_on(log)
            async with self.tail.following(log):
                yield log
        finally:
            await log.close()

    # what is done to them; each returns the seconds until a registration was acknowledged again

    async def kill_leader(self, load: Load) -> float:
        leader = await self.replicas.leader()
        began = time.monotonic_ns()
        await apart(leader.kill)
        gap = await load.gap_s(began)
        self.replicas.launch(leader.name)
        await apart(self.replicas.settle)
        return gap

    async def kill_etcd_leader(self, load: Load) -> float:
        member = await asyncio.to_thread(self.replicas.etcd.leader)
        began = time.monotonic_ns()
        await apart(member.kill)
        gap = await load.gap_s(began)
        await load.goes_on()
        await apart(self.replicas.etcd.start)
        return gap

    async def kill_both_leaders(self, load: Load) -> float:
        leader = await self.replicas.leader()
        member = await asyncio.to_thread(self.replicas.etcd.leader)
        began = time.monotonic_ns()
        await asyncio.gather(apart(leader.kill), apart(member.kill))
        gap = await load.gap_s(began)
        await apart(self.replicas.etcd.start)
        self.replicas.launch(leader.name)
        await apart(self.replicas.settle)
        return gap

    async def stop_leader(self, load: Load, *, seconds: float) -> float:
        """Let it wake as a zombie, with requests in its hands that nobody else has seen."""
        zombie = await self.replicas.leader()
        term = (await ask_status(zombie.address)).term
        life = await self._incarnation()
        began = time.monotonic_ns()
        zombie.pause()
        try:
            register = partial(self._register_at, zombie, seconds, life)
            late = [asyncio.create_task(register()) for _ in range(10)]
            gap = await load.gap_s(began)
            await asyncio.sleep(max(0.0, seconds - (time.monotonic_ns() - began) / 1e9))
        finally:
            zombie.resume()
        await asyncio.gather(*late)
        await apart(self.replicas.settle)
        status = await ask_status(zombie.address)
        assert (status.standing, status.term > term) == ("follower", True), status
        return gap

    async def _incarnation(self) -> Incarnation:
        client = self.replicas.client()
        try:
            return (await client.call(GetNow())).incarnation
        finally:
            await client.close()

    async def _register_at(self, member: ReplicaProcess, seconds: float, life: Incarnation) -> None:
        """A registration that only this replica hears of at first."""
        client = MetastoreClient(member.address, deadline_s=seconds + 10)
        number = time.monotonic_ns()
        try:
            await client.call(AddBlocks((segment(number, at=1, shard=9, life=life),)))
        except MaarError:
            pass  # it may well refuse: what it stores is seen in the log
        finally:
            await client.close()

    async def cut_follower_off(self, load: Load) -> float:
        return await self._cut_off(load, self.replicas.followers(await self.replicas.leader())[0])

    async def cut_leader_off(self, load: Load) -> float:
        return await self._cut_off(load, await self.replicas.leader())

    async def _cut_off(self, load: Load, member: ReplicaProcess) -> float:
        began = time.monotonic_ns()
        await apart(member.cut_off)
        gap = await load.gap_s(began)

        async def not_ready() -> bool:
            return bool(await asyncio.to_thread(member.why_not_ready))

        await until(not_ready, f"{member.name}, cut off, says that it is not ready", NOT_READY_S)
        await load.goes_on()
        await apart(member.heal)
        await apart(self.replicas.settle)
        return gap

    async def kill_everything(self, load: Load) -> float:
        began = time.monotonic_ns()
        await asyncio.gather(apart(self.replicas.kill), apart(self.replicas.etcd.kill))
        await apart(self.replicas.etcd.start)
        await apart(self.replicas.start)
        return await load.gap_s(began)

    async def lose_answers(self, load: Load) -> float:
        """The leader's appends land, and it is not told; then its connections break."""
        leader = await self.replicas.leader()
        term = (await ask_status(leader.address)).term
        began = time.monotonic_ns()
        before = self.tail.head.index
        for wire in leader.wires:
            await apart(lambda wire=wire: wire.silence(Way.BACK))  # type: ignore[misc]

        async def has_landed() -> bool:
            return self.tail.head.index > before

        await until(has_landed, "an append has landed of which the leader knows nothing")
        for wire in leader.wires:
            await apart(wire.heal)
        gap = await load.gap_s(began)
        assert (await ask_status(leader.address)).term == term, "a lost answer cost leadership"
        return gap

    async def flip_a_bit(self) -> None:
        """In a log value of one etcd member: who can read another one does, who cannot stops."""
        needle = f"needle-{secrets.token_hex(8)}"
        client = self.replicas.client()
        try:
            async with self._follow():
                await self._make_hash()  # what is written now is behind the newest snapshot
            now = await client.call(GetNow())
            at, life = now.lease_time, now.incarnation
            meta = segment(time.monotonic_ns(), at=at, service=needle, life=life)
            assert (await client.call(AddBlocks((meta,)))).refusals == ("",)
        finally:
            await client.close()
        bad = await asyncio.to_thread(lambda: self.replicas.etcd.followers()[0])
        await apart(bad.stop)
        await apart(lambda: bad.flip(needle.encode()))
        await apart(self.replicas.etcd.start)
        victim = self.replicas.followers(await self.replicas.leader())[0]
        await self._restart_beside(victim, bad, alone=False)
        await apart(self.replicas.settle)
        await self._restart_beside(victim, bad, alone=True)
        await self._stops_and_is_rebuilt(victim)

    async def _restart_beside(
        self, member: ReplicaProcess, bad: EtcdMember, *, alone: bool
    ) -> None:
        """So that it asks the damaged one first, and perhaps nobody else."""
        await apart(member.kill)
        member.wires.sort(key=lambda wire: wire.target != bad.endpoint)
        if alone:
            for wire in member.wires[1:]:
                await apart(wire.cut)
        self.replicas.launch(member.name)

    async def _stops_and_is_rebuilt(self, victim: ReplicaProcess) -> None:
        async def is_stopped() -> bool:
            try:
                return (await ask_status(victim.address)).standing == "stopped"
            except MaarError:
                return False  # it is not up yet

        await until(is_stopped, f"{victim.name} has stopped")
        status = await ask_status(victim.address)
        assert "is not what was written" in status.fault, status
        assert status.fault in await asyncio.to_thread(victim.why_not_ready)
        assert "\nmaar_metastore_stopped 1.0\n" in await asyncio.to_thread(victim.metrics)
        await apart(victim.heal)
        client = Channel(victim.address)

        async def rebuilt() -> bool:
            """Its wires are whole; the connections over them come back in their own time."""
            try:
                return (await client.call(RebuildReplica())).standing == "follower"
            except Unreachable:
                return False

        try:
            await until(rebuilt, f"{victim.name} is rebuilt")
        finally:
            await client.close()
        await apart(self.replicas.settle)
        assert "\nmaar_metastore_stopped 0.0\n" in await asyncio.to_thread(victim.metrics)

    # what must hold

    async def _check(self, load: Load, log: EtcdLog) -> None:
        await apart(self.replicas.settle)
        hashed_at = await self._make_hash()
        await self.tail.read_on(log)
        audit = self.tail.audit()
        stored = audit.live.keys() | audit.retired
        lost = {one.block for one in load.record.acknowledged} - stored
        faults = [*audit.faults, *load.record.faults(), *(f"{block} is lost" for block in lost)]
        assert not faults, "\n".join(faults)
        for member in self.replicas.members.values():
            await self._check_member(member, audit.live.keys(), hashed_at)
        client = self.replicas.client()
        try:
            status = await client.call(GetStatus())
        finally:
            await client.close()
        found = status.profiles_added, status.completed
        assert found == (audit.profiles, len(audit.winners)), f"{found} profiles and merges"

    async def _make_hash(self) -> int:
        """Have the leader state its hash, and a snapshot made of it; where.

        A statement that another entry overtook says nothing, and has to be made again.
        """
        leader = Channel((await self.replicas.leader()).address)

        async def is_stated() -> bool:
            await leader.call(TakeSnapshot())
            return (await leader.call(GetReplica())).hashed_at > 0

        try:
            await until(is_stated, "the leader has stated its hash")
            return (await leader.call(GetReplica())).hashed_at
        finally:
            await leader.close()

    async def _check_member(
        self, member: ReplicaProcess, live: Set[BlockId], hashed_at: int
    ) -> None:
        async def has_hashed() -> bool:
            return (await ask_status(member.address)).hashed_at >= hashed_at

        await until(has_hashed, f"{member.name} has folded entry {hashed_at}")
        status = await ask_status(member.address)
        assert status.fault == "", status
        assert status.digest == self.tail.digests[status.hashed_at], member.name
        client = MetastoreClient(member.address)
        try:
            shown = {meta.id for meta in await client.call(ListBlocks(limit=1_000_000))}
        finally:
            await client.close()
        assert shown == live, f"{member.name} differs in {sorted(shown ^ live)[:5]}"
