"""The scenarios with real processes: executors and cleaners that are killed, stopped and late."""

from __future__ import annotations

import asyncio
import signal
import tempfile
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

import pytest

from maar.adapters.rpc import MetastoreClient
from maar.adapters.stores.open import open_store
from maar.model.ids import MAIN_STORE, PlanId
from maar.model.plan import Plan, PlanKind, PlanState
from maar.model.time import utc_day
from maar.ports.metastore.log_time import GetNow
from maar.ports.operator.operator import GetPlan, ListBlocks
from maar.ports.plans.board import RollBackPlan, SchedulePlan
from maar.ports.stores.object_store import StoreSettings
from maar.ports.writer.registrar import AddBlocks
from support.metastore.executing import objects_written
from support.network.ports import free_port
from support.processes.executing import ExecutorProcess, Forks, Order
from support.processes.serving import Served, run_server, wait_for
from support.spark.plans import TIME_NS
from support.spark.plans import segment as real_segment

pytestmark = [pytest.mark.component, pytest.mark.long(60), pytest.mark.timeout(300)]

T = TypeVar("T")


class Site:
    """A metastore as a process, a store of files, and whoever comes."""

    def __init__(self, server: Served, address: str, directory: Path, forks: Forks) -> None:
        self.server = server
        self.forks = forks
        self.address = address
        self.url = (server.directory / "data" / "store").as_uri()
        self.store = open_store(StoreSettings(MAIN_STORE, self.url))
        self.directory = directory
        self.processes: list[ExecutorProcess] = []

    def ask(self, what: Callable[[MetastoreClient], Awaitable[T]]) -> T:
        async def asking() -> T:
            client = MetastoreClient(self.address)
            try:
                return await what(client)
            finally:
                await client.close()

        return asyncio.run(asking())

    def new_plan(self, kind: str) -> PlanId:
        """Over three segments, each of one profile; or over two blocks that were made of them."""
        if kind != "cluster":
            self._add(1, 2, 3)
            return self._schedule(kind, shard=1)
        for numbers in ((1, 2), (3,)):
            self._add(*numbers)
            plan = self._schedule("compact", shard=1)
            assert self.execute(plan, f"maker{numbers[0]}").next_said().accepted
        return self._schedule(kind, tenant="acme", day=utc_day(TIME_NS))

    def _add(self, *numbers: int) -> None:
        async def add(client: MetastoreClient) -> None:
            now = await client.call(GetNow())
            metas = tuple(
                real_segment(self.store, n, at=now.lease_time, incarnation=now.incarnation)
                for n in numbers
            )
            reply = await client.call(AddBlocks(metas))
            assert set(reply.refusals) == {""}

        self.ask(add)

    def _schedule(self, kind: str, **scope: Any) -> PlanId:
        told = self.ask(lambda client: client.call(SchedulePlan(PlanKind(kind), **scope)))
        assert told.plan is not None, told.why
        return told.plan

    def plan(self, plan: PlanId) -> Plan:
        return self.ask(lambda client: client.call(GetPlan(plan))).plan

    def roll_back(self, plan: PlanId) -> str:
        return self.ask(lambda client: client.call(RollBackPlan(plan))).outcome

    def execute(self, plan: PlanId, name: str, *, hold: bool = False) -> ExecutorProcess:
        return self._start(name, str(plan), hold=hold)

    def clean(self, name: str = "cleaner", *, hold: bool = False) -> ExecutorProcess:
        """If it is held, then before it looks for what an attempt left."""
        return self._start(name, "", hold=hold)

    def _start(self, name: str, plan: str, *, hold: bool) -> ExecutorProcess:
        file = str(self.directory / f"{name}.hold") if hold else ""
        order = Order(metastore=self.address, store=self.url, name=name, plan=plan, hold=file)
        made = ExecutorProcess(self.forks, order)
        self.processes.append(made)
        return made

    def is_cleaned(self) -> None:
        """By us, or by the cleaner beside the metastore, which may be faster."""

        def is_done() -> bool:
            said = self.clean().next_said()
            return bool(said.accepted) or said.answer == "already_completed"

        wait_for(is_done, 60, self.server.log)

    def lease_is_over(self, plan: PlanId) -> None:
        """Wait for it, by asking: nobody else tells."""
        wait_for(lambda: self.roll_back(plan) != "lease_live", 60, self.server.log)

    def check(self, plan: PlanId, *, completed: bool) -> None:
        blocks = self.ask(lambda client: client.call(ListBlocks(limit=100)))
        assert sum(block.profiles for block in blocks) == 3
        found = self.plan(plan)
        assert (found.state is PlanState.COMPLETED) is completed, found
        won = found.attempts[-1].token if completed else None

        def is_clean() -> bool:
            return all(
                bool(objects_written(self.store, plan, each.token)) is (each.token == won)
                for each in found.attempts
            )

        wait_for(is_clean, 60, self.server.log)  # the cleaner beside the metastore may be at it


DELAY_S = 600
each_kind = pytest.mark.parametrize("kind", ["logcompact", "cluster"])
# The letters of both kinds are all in test_plan_scenarios.py; processes cost more, and tell as much
# with one of them.
one_kind = pytest.mark.parametrize("kind", ["logcompact"])


@pytest.fixture(scope="module")
def forks() -> Iterator[Forks]:
    with tempfile.TemporaryDirectory(prefix="maar-forks-") as short:  # a socket's path must be
        made = Forks(Path(short))
        try:
            yield made
        finally:
            made.close()


@pytest.fixture
def site(tmp_path: Path, request: pytest.FixtureRequest, forks: Forks) -> Iterator[Site]:
    """Its parameter is the delay before a removable plan that nobody executes is rolled back."""
    delay_s = getattr(request, "param", DELAY_S)
    address = f"127.0.0.1:{free_port()}"
    server = tmp_path / "server"
    server.mkdir()
    settings = (
        f"metastore.listen={address}",
        "compaction.level_counts=1000",  # one level: what was merged once is finished
        "compaction.level_bytes=1000000000",
        "compaction.level_ages_s=3600",
        "services.compact.lease_s=4",
        "services.logcompact.lease_s=4",
        "services.logcompact.removable=true",
        "services.cluster.lease_s=4",
        "services.cluster.slots=1",
        "services.rollback.lease_s=2",
        f"services.rollback_delay_s={delay_s}",
        "services.clean.interval_s=0",
        "services.clean.lease_s=2",
    )
    with run_server(server, *settings, roles="metastore") as served:
        made = Site(served, address, tmp_path, forks)
        try:
            yield made
        finally:
            for process in made.processes:
                process.end()


# ── plans that stay ────────────────────────────────────────────────────────────────────────────


def test_immutable_a_many_processes_execute_a_new_plan(site: Site) -> None:
    plan = site.new_plan("compact")
    many = [site.execute(plan, f"w{n}") for n in range(4)]
    said = [one.next_said() for one in many]
    assert sum(one.accepted for one in said) == 1
    others = {one.answer for one in said if not one.accepted}
    assert others <= {"lease_live", "already_completed"}
    site.check(plan, completed=True)


def test_immutable_b_the_executor_is_killed_and_the_next_undoes_what_it_wrote(site: Site) -> None:
    plan = site.new_plan("compact")
    x = site.execute(plan, "x", hold=True)
    x.has_written()
    assert site.execute(plan, "early").next_said().answer == "lease_live"
    x.kill()
    dead = site.plan(plan).attempts[-1].token
    assert objects_written(site.store, plan, dead)

    def answer() -> str:
        return str(site.execute(plan, "y").next_said().answer)

    wait_for(lambda: answer() in ("granted", "already_completed"), 60, site.server.log)
    site.check(plan, completed=True)


def test_immutable_c_a_zombie_wakes_after_its_plan_was_rolled_back_and_done(site: Site) -> None:
    """Two come after it; it goes on when all is over, and completes nothing."""
    plan = site.new_plan("compact")
    zombie = site.execute(plan, "zombie", hold=True)
    zombie.has_written()
    zombie.signal(signal.SIGSTOP)

    def somebody_completes() -> bool:
        both = [site.execute(plan, "x"), site.execute(plan, "y")]
        return any(one.next_said().accepted for one in both)

    wait_for(somebody_completes, 60, site.server.log)
    zombie.let_go()
    zombie.signal(signal.SIGCONT)
    assert not zombie.next_said().accepted
    site.check(plan, completed=True)


def test_the_leader_is_killed_while_a_plan_runs_and_the_plan_is_completed(site: Site) -> None:
    plan = site.new_plan("compact")
    x = site.execute(plan, "x", hold=True)
    x.has_written()
    site.server.stop(signal.SIGKILL)
    site.server.start()
    x.let_go()
    said = x.next_said()
    if not said.accepted:  # its lease ended while nobody answered: the next one does it
        wait_for(lambda: site.execute(plan, "y").next_said().accepted, 60, site.server.log)
    site.check(plan, completed=True)


# ── plans that can be removed ──────────────────────────────────────────────────────────────────


def left_inflight(site: Site, plan: PlanId) -> None:
    """Somebody has written everything, and was killed; its lease is over."""
    x = site.execute(plan, "first", hold=True)
    x.has_written()
    x.kill()

    def answer() -> str:
        return str(site.execute(plan, "early").next_said().answer)

    wait_for(lambda: answer() != "lease_live", 60, site.server.log)


@each_kind
def test_removable_a_many_processes_execute_a_new_plan(site: Site, kind: str) -> None:
    plan = site.new_plan(kind)
    said = [one.next_said() for one in [site.execute(plan, f"w{n}") for n in range(4)]]
    assert sum(one.accepted for one in said) == 1
    others = {one.answer for one in said if not one.accepted}
    assert others <= {"lease_live", "already_completed"}
    site.check(plan, completed=True)


@one_kind
def test_removable_b_somebody_comes_while_it_is_inflight_and_completes_it(
    site: Site, kind: str
) -> None:
    plan = site.new_plan(kind)
    x = site.execute(plan, "x", hold=True)
    x.has_written()
    assert site.execute(plan, "y").next_said().answer == "lease_live"
    x.let_go()
    assert x.next_said().accepted
    assert site.execute(plan, "y").next_said().answer == "already_completed"
    site.check(plan, completed=True)


@each_kind
def test_removable_c_two_come_to_a_plan_that_was_left_inflight(site: Site, kind: str) -> None:
    plan = site.new_plan(kind)
    left_inflight(site, plan)
    both = [site.execute(plan, "x"), site.execute(plan, "y")]
    assert {one.next_said().answer for one in both} == {"must_be_rolled_back"}
    site.is_cleaned()
    assert site.plan(plan).state is PlanState.INFLIGHT, "it is too young"
    assert site.roll_back(plan) == "scheduled"
    wait_for(lambda: site.execute(plan, "y").next_said().answer == "rolled_back", 60)
    site.check(plan, completed=False)


@one_kind
def test_removable_d_a_cleaning_leaves_a_plan_alone_that_is_executed(site: Site, kind: str) -> None:
    plan = site.new_plan(kind)
    x = site.execute(plan, "x", hold=True)
    x.has_written()
    site.is_cleaned()
    assert site.plan(plan).state is PlanState.INFLIGHT
    x.let_go()
    assert x.next_said().accepted
    site.check(plan, completed=True)


@pytest.mark.parametrize("site", [1], indirect=True)
@one_kind
def test_removable_e_a_cleaning_comes_before_the_executor(site: Site, kind: str) -> None:
    plan = site.new_plan(kind)

    def is_removed() -> bool:
        """It is too young at first; if compaction wants its blocks, it may be faster."""
        site.clean().next_said()
        return site.plan(plan).state is PlanState.ROLLED_BACK

    wait_for(is_removed, 60, site.server.log)
    assert site.execute(plan, "y").next_said().answer in ("rolled_back", "must_be_rolled_back")
    site.check(plan, completed=False)


# ── cleaners ───────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("end", ["killed", "late"])
def test_a_cleaner_that_dies_half_way_is_followed_by_the_next(site: Site, end: str) -> None:
    """Or wakes when another has finished its rollback: it deletes nothing any more."""
    plan = site.new_plan("compact")
    x = site.execute(plan, "x", hold=True)
    x.has_written()
    x.kill()
    dead = site.plan(plan).attempts[-1].token
    site.lease_is_over(plan)  # which asks for the rollback, too
    cleaner = site.clean(hold=True)
    if end == "killed":
        wait_for(lambda: cleaner.is_held() or not objects_written(site.store, plan, dead), 60)
        cleaner.kill()
    wait_for(lambda: not objects_written(site.store, plan, dead), 60, site.server.log)
    if end == "late":
        cleaner.let_go()
        cleaner.next_said()
    assert site.execute(plan, "y").next_said().accepted
    site.check(plan, completed=True)
