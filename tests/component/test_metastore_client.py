"""Clients of several replicas, over real sockets: redirects, silence, deaths, and patience."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import cast

import pytest

from maar.adapters.rpc import (
    Channel,
    MetastoreClient,
    RpcServer,
    serve_metastore,
)
from maar.adapters.rpc.failover import LEARNED_MAX
from maar.adapters.rpc.server import WholeMetastore
from maar.app.roles import worker_alone
from maar.model import errors
from maar.model.ids import ANONYMOUS, Incarnation
from maar.model.time import LeaseTime, TimeRange
from maar.ports.metastore.log_time import GetNow, Now
from maar.ports.metastore.replica import GetReplica, PinIndex, ReplicaStatus, Vote
from maar.ports.reader.index import IndexView, ViewRequest

pytestmark = pytest.mark.component

ASKED = ViewRequest(ANONYMOUS, TimeRange(0, 10))
PATIENCE_S = 60.0


class Cluster:
    """Who leads, as all of its replicas believe at once."""

    def __init__(self) -> None:
        self.leader = ""


class Replica:
    """Answers reads always, and the rest while it leads."""

    def __init__(self, cluster: Cluster, address: str) -> None:
        self.cluster = cluster
        self.address = address
        self.asked: list[str] = []
        self.error: Exception | None = None
        self.hangs = False
        self.votes: list[Vote] = []

    async def now(self) -> Now:
        self.asked.append("now")
        if self.hangs:
            await asyncio.sleep(3600)
        if self.error is not None:
            raise self.error
        if self.cluster.leader != self.address:
            raise errors.NotLeading("I follow", leader=self.cluster.leader, retry_after_s=0.25)
        return Now(Incarnation("00c0ffee"), LeaseTime(5), 7)

    async def view(self, request: ViewRequest) -> IndexView:
        assert request == ASKED
        self.asked.append("view")
        if self.error is not None:
            raise self.error
        return IndexView(int(self.address[-1]), ())

    async def replica(self) -> ReplicaStatus:
        return ReplicaStatus("me", self.address, "follower", digest=b"\xff\x00", behind_s=1.5)

    async def vote(self, vote: Vote) -> None:
        self.votes.append(vote)

    async def pin(self, reader: str) -> int:
        raise errors.NotLeading(f"no pin for {reader} here", leader="c:3")

    async def metrics(self) -> str:
        return "maar_up 1\n"

    async def ready(self) -> str:
        return ""


class Stage:
    """Three replicas at sockets of their own, each of which can be taken away and brought back."""

    def __init__(self, directory: Path) -> None:
        self.cluster = Cluster()
        self.addresses = [f"unix:{directory}/replica-{number}" for number in range(3)]
        self.replicas = [Replica(self.cluster, address) for address in self.addresses]
        self._servers: dict[int, RpcServer] = {}

    async def __aenter__(self) -> Stage:
        for number in range(3):
            await self.up(number)
        return self

    async def __aexit__(self, *_: object) -> None:
        for number in list(self._servers):
            await self.down(number)

    async def up(self, number: int) -> None:
        replica = self.replicas[number]
        self._servers[number] = await serve_metastore(
            self.addresses[number], cast(WholeMetastore, replica), replica
        )

    async def down(self, number: int) -> None:
        await self._servers.pop(number).stop(0)

    def lead(self, number: int) -> None:
        self.cluster.leader = self.addresses[number]


def played(
    directory: Path,
    scene: Callable[[Stage, MetastoreClient], Awaitable[None]],
    *,
    known: tuple[int, ...] = (0, 1, 2),
    deadline_s: float = PATIENCE_S,
) -> None:
    async def run() -> None:
        async with AsyncExitStack() as stack:
            stage = await stack.enter_async_context(Stage(directory))
            addresses = ",".join(stage.addresses[number] for number in known)
            client = MetastoreClient(addresses, deadline_s=deadline_s)
            stack.push_async_callback(client.close)
            await scene(stage, client)

    asyncio.run(run())


def test_a_call_to_a_follower_reaches_the_leader_and_the_next_one_at_once(tmp_path: Path) -> None:
    async def scene(stage: Stage, client: MetastoreClient) -> None:
        stage.lead(2)
        assert (await client.call(GetNow())).index == 7
        assert [len(each.asked) for each in stage.replicas] == [1, 0, 1]
        await client.call(GetNow())
        assert [len(each.asked) for each in stage.replicas] == [1, 0, 2]

    played(tmp_path, scene)


def test_one_address_is_enough_to_find_a_leader_elsewhere(tmp_path: Path) -> None:
    async def scene(stage: Stage, client: MetastoreClient) -> None:
        stage.lead(1)
        await client.call(GetNow())
        await stage.down(1)
        stage.lead(2)
        await client.call(GetNow())  # by the one that it knows from the beginning
        assert len(stage.replicas[2].asked) == 1

    played(tmp_path, scene, known=(0,))


def test_reads_stay_with_the_nearest_and_leave_it_when_it_cannot_answer(tmp_path: Path) -> None:
    async def scene(stage: Stage, client: MetastoreClient) -> None:
        stage.lead(2)
        await client.call(GetNow())
        assert (await client.call(ASKED)).index == 0
        stage.replicas[0].error = errors.Unavailable("behind its log")
        assert (await client.call(ASKED)).index == 1
        await stage.down(1)
        assert (await client.call(ASKED)).index in (0, 2)
        assert stage.replicas[0].asked.count("view") >= 2

    played(tmp_path, scene)


def test_a_change_of_leader_is_waited_out(tmp_path: Path) -> None:
    async def scene(stage: Stage, client: MetastoreClient) -> None:
        stage.lead(0)
        await client.call(GetNow())
        await stage.down(0)  # the others take it for the leader still
        calls = [asyncio.create_task(client.call(GetNow())) for _ in range(20)]
        await asyncio.sleep(0.5)
        stage.cluster.leader = ""
        await asyncio.sleep(0.5)
        assert not any(call.done() for call in calls)
        stage.lead(1)
        elected = time.monotonic()
        await asyncio.gather(*calls)
        assert time.monotonic() - elected < 30.0
        assert sum(len(each.asked) for each in stage.replicas) < 20 * 40, "it asks too often"

    played(tmp_path, scene)


def test_what_cannot_be_answered_is_refused_when_the_deadline_comes(tmp_path: Path) -> None:
    async def scene(stage: Stage, client: MetastoreClient) -> None:
        began = time.monotonic()
        with pytest.raises(errors.NotLeading) as caught:
            await client.call(GetNow())
        assert 0.5 < time.monotonic() - began < 30.0
        assert caught.value.leader == ""
        assert caught.value.retry_after_s == 0.25

    played(tmp_path, scene, deadline_s=1.0)
    played(tmp_path, scene, deadline_s=1.0, known=(0,))


@pytest.mark.parametrize(
    "error",
    [
        errors.Overloaded("too many wait"),
        errors.StoreFull("no room"),
        errors.NotFound("there is none"),
        errors.Corrupt("not what was written"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_what_nobody_else_would_answer_better_is_not_asked_again(
    tmp_path: Path, error: errors.MaarError
) -> None:
    async def scene(stage: Stage, client: MetastoreClient) -> None:
        stage.lead(1)
        stage.replicas[1].error = error
        with pytest.raises(type(error)):
            await client.call(GetNow())
        assert [len(each.asked) for each in stage.replicas] == [1, 1, 0]

    played(tmp_path, scene)


@pytest.mark.parametrize(
    "error",
    [errors.Unavailable("not yet"), errors.OutcomeUnknown("perhaps"), errors.Draining("goes")],
    ids=lambda error: type(error).__name__,
)
def test_a_single_metastore_is_tried_once(tmp_path: Path, error: errors.MaarError) -> None:
    async def scene(stage: Stage, client: MetastoreClient) -> None:
        stage.lead(0)
        stage.replicas[0].error = error
        with pytest.raises(type(error)):
            await client.call(GetNow())
        assert len(stage.replicas[0].asked) == 1

    played(tmp_path, scene, known=(0,))


@pytest.mark.parametrize(
    "error",
    [errors.Unavailable("lost leadership"), errors.OutcomeUnknown("perhaps")],
    ids=lambda error: type(error).__name__,
)
def test_of_several_another_try_may_find_that_it_was_done(
    tmp_path: Path, error: errors.MaarError
) -> None:
    async def scene(stage: Stage, client: MetastoreClient) -> None:
        stage.lead(0)
        stage.replicas[0].error = error
        call = asyncio.create_task(client.call(GetNow()))
        async with asyncio.timeout(PATIENCE_S):
            while not stage.replicas[2].asked:
                await asyncio.sleep(0.01)
        stage.replicas[0].error = None
        assert (await call).index == 7

    played(tmp_path, scene)


def test_one_that_hangs_takes_a_share_of_the_deadline(tmp_path: Path) -> None:
    async def scene(stage: Stage, client: MetastoreClient) -> None:
        stage.lead(0)
        stage.replicas[0].hangs = True

        async def election() -> None:
            await asyncio.sleep(0.5)
            stage.lead(1)

        elected = asyncio.create_task(election())
        assert (await client.call(GetNow())).index == 7
        await elected
        assert stage.replicas[1].asked == ["now"]

    played(tmp_path, scene, deadline_s=8.0)


def test_a_client_that_is_closed_asks_nobody_any_more(tmp_path: Path) -> None:
    async def scene(stage: Stage, client: MetastoreClient) -> None:
        call = asyncio.create_task(client.call(GetNow()))
        await asyncio.sleep(0.2)
        await client.close()
        async with asyncio.timeout(PATIENCE_S / 2):
            with pytest.raises(errors.Unavailable):
                await call
        with pytest.raises(errors.Unreachable):
            await client.call(GetNow())

    played(tmp_path, scene)


def test_a_replica_is_asked_for_itself(tmp_path: Path) -> None:
    async def scene(stage: Stage, _client: MetastoreClient) -> None:
        stage.lead(2)
        line = Channel(stage.addresses[0])
        status = await line.call(GetReplica())
        assert status == ReplicaStatus(
            "me", stage.addresses[0], "follower", digest=b"\xff\x00", behind_s=1.5
        )
        await line.call(Vote("me", 3, b"\x01"))
        assert stage.replicas[0].votes == [Vote("me", 3, b"\x01")]
        with pytest.raises(errors.NotLeading, match="no pin for r here") as caught:
            await line.call(PinIndex("r"))
        assert caught.value.leader == "c:3"
        await line.close()

    played(tmp_path, scene)


def test_a_worker_finds_the_metastore_of_which_one_replica_lives(tmp_path: Path) -> None:
    async def scene(stage: Stage, _client: MetastoreClient) -> None:
        stage.lead(2)
        await stage.down(0)
        assert await worker_alone.find_incarnation(",".join(stage.addresses)) == "00c0ffee"
        nobody = f"unix:{tmp_path}/nobody"
        with pytest.raises(errors.Unavailable, match=f"no metastore answers at {nobody}"):
            await worker_alone.find_incarnation(nobody, patience_s=0.5)

    played(tmp_path, scene)


def test_many_calls_at_once_follow_leaders_that_nobody_configured(tmp_path: Path) -> None:
    """Each is named once and forgotten; the lines to them are closed under the calls' feet."""

    async def scene(stage: Stage, client: MetastoreClient) -> None:
        for number in range(3 * LEARNED_MAX):
            stage.cluster.leader = f"unix:{tmp_path}/gone-{number}"
            calls = [asyncio.create_task(client.call(GetNow())) for _ in range(4)]
            await asyncio.sleep(0.02)
            stage.lead(0)
            assert {now.index for now in await asyncio.gather(*calls)} == {7}
        assert len(client.channels) <= 1 + LEARNED_MAX + 1

    played(tmp_path, scene, known=(0,))


SLEEPER = """
import asyncio, sys
sys.path[:0] = sys.argv[2:]
from test_metastore_client import Cluster, Replica
from maar.adapters.rpc import serve_metastore

async def main():
    replica = Replica(Cluster(), sys.argv[1])
    replica.cluster.leader = sys.argv[1]
    server = await serve_metastore(sys.argv[1], replica, replica)
    print("up", server.port, flush=True)
    await asyncio.sleep(3600)

asyncio.run(main())
"""


def test_a_leader_whose_process_is_stopped_is_left_long_before_the_deadline(
    tmp_path: Path,
) -> None:
    """Its sockets stay open and take what is sent: only that it answers nothing gives it away."""
    here = Path(__file__).parent
    sleeper = subprocess.Popen(
        [sys.executable, "-c", SLEEPER, "127.0.0.1:0", str(here), str(here.parent)],
        stdout=subprocess.PIPE,
    )
    try:
        assert sleeper.stdout is not None
        said = sleeper.stdout.readline()
        assert said.startswith(b"up")
        address = f"127.0.0.1:{int(said.split()[1])}"

        async def run() -> None:
            async with Stage(tmp_path) as stage:
                stage.cluster.leader = address
                client = MetastoreClient(",".join([*stage.addresses[:2], address]), deadline_s=60.0)
                await client.call(GetNow())
                os.kill(sleeper.pid, signal.SIGSTOP)
                began = time.monotonic()
                calls = [asyncio.create_task(client.call(GetNow())) for _ in range(5)]
                await asyncio.sleep(1.0)
                stage.lead(1)
                await asyncio.gather(*calls)
                assert time.monotonic() - began < 45.0, "long before the deadline"
                os.kill(sleeper.pid, signal.SIGCONT)
                await client.close()

        asyncio.run(run())
    finally:
        sleeper.kill()
        sleeper.wait()
        assert sleeper.stdout is not None
        sleeper.stdout.close()


def test_one_that_takes_its_time_is_not_taken_for_dead(tmp_path: Path) -> None:
    """Watching the line must not end a long answer: a large view takes seconds."""

    async def scene(stage: Stage, client: MetastoreClient) -> None:
        stage.lead(0)
        replica = stage.replicas[0]
        quick = replica.now

        async def slow() -> Now:
            await asyncio.sleep(4.0)
            return await quick()

        stage.replicas[0].now = slow  # type: ignore[method-assign]
        await stage.down(0)
        await stage.up(0)
        assert (await client.call(GetNow())).index == 7
        assert replica.asked == ["now"], "it was asked again, in vain"

    played(tmp_path, scene)


def test_waiting_is_bounded_when_nobody_is_there(tmp_path: Path) -> None:
    async def run() -> None:
        addresses = ",".join(f"unix:{tmp_path}/nobody-{number}" for number in range(3))
        client = MetastoreClient(addresses, deadline_s=1.0)
        began = time.monotonic()
        with pytest.raises(errors.Unreachable):
            await client.call(GetNow())
        assert time.monotonic() - began < 30.0
        await client.close()

    asyncio.run(run())
