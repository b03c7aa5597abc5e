"""Plans on a real Spark: each fails, dies and is cancelled alone."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import pairwise
from pathlib import Path

import msgspec
import pytest
from prometheus_client import CollectorRegistry
from pyspark import cloudpickle

from maar.adapters.object_store import open_store
from maar.block.segment import segment_meta, write_segment
from maar.model import keys
from maar.model.block import BlockMeta
from maar.model.errors import Corrupt, Unavailable
from maar.model.ids import (
    MAIN_STORE,
    NO_TENANT,
    FencingToken,
    Incarnation,
    PlanId,
    Shard,
    StoreName,
    TenantId,
    WorkerId,
    segment_id,
)
from maar.model.plan import Account, LeasedPlan, PlanResult, QueueKey, Service
from maar.model.profile import RawProfile, profile_id
from maar.ports.metastore import Kept, Outcome, PollReply, PollRequest
from maar.ports.object_store import ObjectStore, StoreSettings
from maar.ports.runner import PlanFailed, RunnerDied
from maar.pprof import gzip
from maar.pprof.encode import encode
from maar.pprof.plain import (
    PlainFunction,
    PlainLine,
    PlainLocation,
    PlainProfile,
    PlainSample,
)
from maar.spark import session
from maar.spark.runner import SparkRunner
from maar.spark.session import SparkSettings
from maar.spark.task import compact
from maar.worker.service import Worker, WorkerSettings

pytestmark = [pytest.mark.component, pytest.mark.serial, pytest.mark.timeout(180)]

SLOTS = 2
TIME_NS = 1_790_000_000_000_000_000
SETTINGS = SparkSettings(master=f"local[{SLOTS}]", driver_memory="512m")


def pretend(
    plan: LeasedPlan, *, store: ObjectStore, attempt: str, scratch: Path, wall_ns: int
) -> PlanResult:
    """What a plan does is written in the name of its store: '<verb> <argument>'."""
    if plan.key.store == MAIN_STORE:
        return compact(plan, store=store, attempt=attempt, scratch=scratch, wall_ns=wall_ns)
    verb, _, argument = str(plan.key.store).partition(" ")
    (scratch / "spill").write_bytes(b"x")
    if verb == "fail":
        raise Corrupt(argument)
    if verb == "unavailable":
        raise Unavailable(argument)
    if verb == "bug":
        raise ValueError(argument)
    if verb == "die":
        os.kill(os.getpid(), getattr(signal, argument))
    if verb == "exit":
        os._exit(int(argument))
    until = time.monotonic() + float(argument if verb in ("busy", "write") else 0)
    while time.monotonic() < until:
        if verb == "write":  # as a task that nobody stopped would
            store.create(f"writes/{plan.token}-{attempt}-{time.monotonic_ns()}", b"")
            time.sleep(0.02)
    store.create(f"attempts/{plan.token}/{attempt}", str(scratch).encode())
    return PlanResult((), Account(kept=plan.id.index, duplicates=0, quarantined=0))


def nothing_to_load() -> None:
    return None


_token = iter(range(1, 1_000_000))


def plan(does: str, *, index: int = 1) -> LeasedPlan:
    return LeasedPlan(
        id=PlanId(index, 0),
        service=Service.COMPACT,
        token=FencingToken(Incarnation("0badcafe"), next(_token)),
        key=QueueKey(StoreName(does), TenantId("acme"), Shard(1), 0),
        inputs=(),
        target_block_bytes=1 << 20,
        lease_ns=3_000_000_000,
    )


def segment(store: ObjectStore, number: int) -> BlockMeta:
    """A segment of one small profile, in the store."""
    raw = encode(
        PlainProfile(
            sample_types=[("cpu", "nanoseconds")],
            samples=[PlainSample([0], [10])],
            locations=[PlainLocation(lines=(PlainLine(0, 1),))],
            functions=[PlainFunction("main", "main", "main.py")],
            time_ns=TIME_NS + number,
        )
    )
    labels = (("__name__", "process_cpu"), ("service_name", "checkout"))
    tenant = TenantId("acme")
    written = write_segment(
        [
            RawProfile(
                id=profile_id(
                    tenant=tenant, labels=labels, time_ns=TIME_NS + number, client_id="", body=raw
                ),
                tenant=tenant,
                service="checkout",
                labels=labels,
                types=("process_cpu:cpu:nanoseconds::",),
                time_ns=TIME_NS + number,
                duration_ns=0,
                samples=1,
                payload=gzip.compress(raw),
                raw_size=len(raw),
            )
        ]
    )
    block = segment_id(lease_time_ns=number, entropy=number)
    key = keys.segment(shard=Shard(1), block=block, incarnation=Incarnation("0badcafe"))
    store.create(key, written.body)
    return segment_meta(
        written,
        block=block,
        key=key,
        shard=Shard(1),
        store=MAIN_STORE,
        created_by="test",
        created_at_ns=TIME_NS,
    )


def runner_in(tmp: Path) -> SparkRunner:
    # The tasks' processes cannot import this module: send its functions by value.
    cloudpickle.register_pickle_by_value(sys.modules[__name__])
    store = StoreSettings("main", (tmp / "store").as_uri())
    return SparkRunner(
        SETTINGS,
        store,
        tmp / "scratch",
        open_store=open_store,
        carry_out=pretend,
        load=nothing_to_load,
    )


@pytest.fixture(scope="module")
def tmp(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("spark")


@pytest.fixture(scope="module")
def runner(tmp: Path) -> Iterator[SparkRunner]:
    runner = runner_in(tmp)
    runner.warm()
    yield runner
    runner.close()


@pytest.fixture(scope="module")
def store(tmp: Path) -> ObjectStore:
    return open_store(StoreSettings("main", (tmp / "store").as_uri()))


@pytest.fixture
def threads() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(4) as pool:
        yield pool


def doors(tmp: Path) -> list[Path]:
    """What tasks have left in the scratch."""
    return [path for path in tmp.glob("scratch/worker-*/*-*") if path.is_dir()]


def wait_for_writes(store: ObjectStore, token: FencingToken) -> None:
    for _ in range(500):
        if any(store.list(f"writes/{token}-")):
            return
        time.sleep(0.02)
    raise AssertionError("the task did not begin to write")


def test_plans_run_side_by_side_and_their_results_come_back(
    runner: SparkRunner, store: ObjectStore, threads: ThreadPoolExecutor, tmp: Path
) -> None:
    assert runner.slots() == SLOTS
    plans = [plan("busy 0.1", index=index) for index in range(1, 7)]
    results = list(threads.map(runner.run, plans))
    assert [result.account.kept for result in results] == [1, 2, 3, 4, 5, 6]
    attempts = [
        info.key.rpartition("/")[2] for p in plans for info in store.list(f"attempts/{p.token}/")
    ]
    assert len(set(attempts)) == 6
    assert doors(tmp) == []


def test_a_real_compaction_is_carried_out_in_a_task(
    runner: SparkRunner, store: ObjectStore, tmp: Path
) -> None:
    metas = tuple(segment(store, number) for number in range(2))
    leased = msgspec.structs.replace(
        plan("compact"), key=QueueKey(MAIN_STORE, NO_TENANT, Shard(1), 0), inputs=metas
    )
    result = runner.run(leased)
    assert result.account == Account(kept=2, duplicates=0, quarantined=0)
    (block,) = result.outputs
    assert (block.tenant, block.level, block.profiles) == ("acme", 1, 2)
    for file in block.files:
        assert store.size(file.locations[0].key) == file.size
    assert doors(tmp) == []


@pytest.mark.parametrize(
    ("does", "cause", "own"),
    [
        ("fail Segment x is corrupt: look at it.", "Segment x is corrupt: look at it.", True),
        ("unavailable The store is away.", "The store is away.", False),
        ("bug not a number", "ValueError: not a number", True),
    ],
)
def test_a_task_that_raises_fails_its_plan_with_one_sentence(
    runner: SparkRunner, does: str, cause: str, own: bool
) -> None:
    with pytest.raises(PlanFailed) as failed:
        runner.run(plan(does))
    assert (failed.value.cause, failed.value.own) == (cause, own)
    assert failed.value.stopped


@pytest.mark.parametrize("does", ["exit 3", "die SIGKILL", "die SIGSEGV"])
def test_a_task_that_kills_its_python_worker_fails_alone(
    runner: SparkRunner, threads: ThreadPoolExecutor, does: str
) -> None:
    neighbour = threads.submit(runner.run, plan("busy 1", index=7))
    with pytest.raises(PlanFailed, match="Python process died") as failed:
        runner.run(plan(does))
    assert failed.value.stopped
    assert neighbour.result(20).account.kept == 7
    assert runner.run(plan("busy 0", index=8)).account.kept == 8


def test_a_cancelled_plan_stops_alone_and_has_stopped_when_it_says_so(
    runner: SparkRunner, store: ObjectStore, threads: ThreadPoolExecutor, tmp: Path
) -> None:
    cancelled, neighbour = plan("write 60"), plan("busy 2", index=9)
    running: Future[PlanResult] = threads.submit(runner.run, cancelled)
    other = threads.submit(runner.run, neighbour)
    wait_for_writes(store, cancelled.token)
    runner.cancel(cancelled)
    failed = running.exception(20)
    assert isinstance(failed, PlanFailed)
    assert (failed.cause, failed.stopped) == ("The plan was cancelled", True)
    written = len(list(store.list(f"writes/{cancelled.token}-")))
    assert other.result(20).account.kept == 9
    time.sleep(0.3)
    assert len(list(store.list(f"writes/{cancelled.token}-"))) == written
    assert doors(tmp) == []


def test_a_plan_that_is_cancelled_before_its_task_began_never_begins(
    runner: SparkRunner, store: ObjectStore, threads: ThreadPoolExecutor
) -> None:
    full = [threads.submit(runner.run, plan("busy 1.5")) for _ in range(SLOTS)]
    time.sleep(0.5)
    waiting = plan("write 60")
    queued = threads.submit(runner.run, waiting)
    time.sleep(0.2)
    runner.cancel(waiting)
    failed = queued.exception(10)
    assert isinstance(failed, PlanFailed)
    assert failed.stopped
    for future in full:
        future.result(10)
    assert list(store.list(f"writes/{waiting.token}-")) == []


def test_cancelling_what_does_not_run_does_nothing(runner: SparkRunner) -> None:
    runner.cancel(plan("busy 0"))
    again = plan("busy 0", index=4)
    runner.run(again)
    runner.cancel(again)


def test_spark_runs_without_retries_and_speculation(runner: SparkRunner) -> None:
    conf = dict(runner._context.getConf().getAll())
    session.check_no_retries(conf)
    assert conf["spark.master"] == f"local[{SLOTS},1]"
    assert conf["spark.scheduler.mode"] == "FAIR"


class OnePlanEach:
    """Grants given plans once, keeps every lease, and notes when it heard of whom."""

    def __init__(self, plans: list[LeasedPlan]) -> None:
        self._waiting = plans
        self.heard: dict[PlanId, list[float]] = {plan.id: [] for plan in plans}
        self.done = asyncio.Event()
        self._left = len(plans)

    async def poll(self, request: PollRequest) -> PollReply:
        now = time.monotonic()
        granted = tuple(
            self._waiting.pop() for _ in range(min(request.capacity, len(self._waiting)))
        )
        for plan_id in (granted_plan.id for granted_plan in granted):
            self.heard[plan_id].append(now)
        for renewal in request.renewals:
            self.heard[renewal.plan].append(now)
        for report in request.reports:
            assert report.result is not None, report.failure
            self.heard[report.plan].append(now)
            self._left -= 1
        if self._left == 0:
            self.done.set()
        return PollReply(
            granted=granted,
            kept=tuple(Kept(r.plan, r.token, 3_000_000_000) for r in request.renewals),
            outcomes=tuple(Outcome(r.plan, r.token, True) for r in request.reports),
        )


class RealClock:
    def monotonic_ns(self) -> int:
        return time.monotonic_ns()

    def wall_ns(self) -> int:
        return time.time_ns()


def test_renewals_are_not_starved_by_tasks_that_hold_every_core(runner: SparkRunner) -> None:
    plans = [plan("busy 5", index=index) for index in range(1, SLOTS + 1)]

    async def scenario() -> OnePlanEach:
        metastore = OnePlanEach(list(plans))
        worker = Worker(
            WorkerSettings(), metastore, runner, RealClock(), CollectorRegistry(), WorkerId("w")
        )
        async with asyncio.timeout(60):
            running = asyncio.create_task(worker.run())
            await metastore.done.wait()
            worker.stop()
            await running
        return metastore

    metastore = asyncio.run(scenario())
    for times in metastore.heard.values():
        gaps = [after - before for before, after in pairwise(times)]
        assert len(gaps) >= 4
        assert max(gaps) < 3.0 / 2


def descendants(pid: int) -> set[int]:
    """All living processes below one, by the parents that the kernel names."""
    parents: dict[int, int] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue
            if fields[0] not in "ZX":
                parents[int(entry.name)] = int(fields[1])
    found: set[int] = set()
    while more := {child for child, parent in parents.items() if parent in found | {pid}} - found:
        found |= more
    return found


def wait_until_gone(pids: set[int]) -> set[int]:
    """Those that are still there after ten seconds."""
    alive = pids
    for _ in range(200):
        alive = {pid for pid in pids if Path(f"/proc/{pid}").exists()}
        if not alive:
            break
        time.sleep(0.05)
    return alive


def test_closing_leaves_no_process_and_no_file(runner: SparkRunner, tmp: Path) -> None:
    """Runs after all that need the module's Spark."""
    processes = descendants(session.jvm(runner._context).pid) | {session.jvm(runner._context).pid}
    assert len(processes) >= 1 + 1 + SLOTS  # the JVM, Spark's Python daemon, a worker per slot
    runner.close()
    assert wait_until_gone(processes) == set()
    assert list(tmp.glob("scratch/worker-*")) == []


def test_a_killed_jvm_is_the_death_of_the_runner_and_of_its_tasks(tmp_path: Path) -> None:
    runner = runner_in(tmp_path)
    runner.warm()
    store = open_store(StoreSettings("main", (tmp_path / "store").as_uri()))
    stray = plan("write 60")
    died: list[BaseException] = []

    def run() -> None:
        try:
            runner.run(stray)
        except RunnerDied as error:
            died.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    wait_for_writes(store, stray.token)
    jvm = session.jvm(runner._context).pid
    processes = descendants(jvm)
    os.kill(jvm, signal.SIGKILL)
    thread.join(10)
    assert len(died) == 1
    assert wait_until_gone(processes) == set()
    with pytest.raises(RunnerDied):
        runner.slots()
    with pytest.raises(RunnerDied):
        runner.run(plan("busy 0"))
    runner.close()
    assert list(tmp_path.glob("scratch/worker-*")) == []
