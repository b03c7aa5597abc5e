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
from typing import Any

import msgspec
import py4j.java_gateway
import pytest
from prometheus_client import CollectorRegistry
from py4j.protocol import get_return_value
from pyspark import cloudpickle
from pyspark.errors.exceptions.captured import capture_sql_exception

from maar.adapters.stores.open import open_store
from maar.model.block import Kind
from maar.model.ids import FencingToken, WorkerId
from maar.model.plan import Account, PlanResult
from maar.ports.plans.runner import AttemptFailed, RunnerDied
from maar.ports.stores.object_store import ObjectStore, StoreSettings
from maar.runner import session
from maar.runner.runner import RunnerTiming, SparkRunner
from maar.runner.settings import SparkSettings
from maar.services.logcompact.rules import LOGCOMPACT
from maar.worker.service import Worker
from maar.worker.settings import WorkerSettings
from support.processes.serving import wait_for
from support.spark.cluster import until
from support.spark.plans import (
    LEASE_NS,
    OnePlanEach,
    alive,
    leased_plan,
    nothing_to_load,
    plan,
    pretend,
    segment,
    writers,
)

pytestmark = [pytest.mark.component, pytest.mark.long(60), pytest.mark.timeout(300)]

SLOTS = 2
PATIENCE_S = 120.0
# Every task here does end, however busy the machine.
PATIENT = RunnerTiming(stop_wait_s=PATIENCE_S)
SETTINGS = SparkSettings(master=f"local[{SLOTS}]", driver_memory="512m")


def runner_in(tmp: Path, timing: RunnerTiming = PATIENT) -> SparkRunner:
    store = StoreSettings("main", (tmp / "store").as_uri())
    return SparkRunner(
        SETTINGS,
        store,
        tmp / "scratch",
        open_store=open_store,
        carry_out=pretend,
        load=nothing_to_load,
        timing=timing,
    )


@pytest.fixture(scope="module")
def tmp(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("spark")


@pytest.fixture(scope="module")
def runner(tmp: Path) -> Iterator[SparkRunner]:
    runner = runner_in(tmp)
    try:
        runner.warm()
        yield runner
    finally:
        runner.close()


@pytest.fixture(scope="module")
def store(tmp: Path) -> ObjectStore:
    return open_store(StoreSettings("main", (tmp / "store").as_uri()))


@pytest.fixture
def threads() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(4) as pool:
        yield pool


@pytest.fixture
def gate(tmp_path: Path) -> Iterator[Path]:
    """Plans wait until it exists; it does at the latest when the test is over."""
    yield tmp_path / "gate"
    (tmp_path / "gate").touch()


def rooms(tmp: Path) -> list[Path]:
    """What tasks have left in the scratch."""
    return list(tmp.glob("scratch/worker-*/spark/*/maar/worker-*"))


def wait_for_writes(store: ObjectStore, token: FencingToken) -> set[int]:
    """The processes that write."""
    found: dict[str, set[int]] = until(lambda: writers(store, token))
    return set().union(*found.values())


def test_a_process_of_a_slot_begins_with_all_loaded_that_plans_need(runner: SparkRunner) -> None:
    """It was told to load nothing, and has carried nothing out yet."""
    loaded = runner.session.context.parallelize([0], 1).map(
        lambda _: {"numba", "pyarrow", "maar.services.compact.run"} <= set(sys.modules)
    )
    assert loaded.collect() == [True]


def test_a_process_of_a_slot_reads_no_archives_before_its_tasks(runner: SparkRunner) -> None:
    """Python reads their tables of contents anew for each task, once for each package in them."""
    archives = runner.session.context.parallelize([0], 1).map(
        lambda _: [
            place
            for place, finder in sys.path_importer_cache.items()
            if type(finder).__name__ == "zipimporter"
        ]
    )
    assert archives.collect() == [[]]


def test_plans_run_side_by_side_and_their_results_come_back(
    runner: SparkRunner, store: ObjectStore, threads: ThreadPoolExecutor, tmp: Path
) -> None:
    assert runner.slots() == SLOTS
    plans = [plan("return", index=index) for index in range(1, 7)]
    results = list(threads.map(runner.run, plans))
    assert [result.account.kept for result in results] == [1, 2, 3, 4, 5, 6]
    attempts = [
        info.key.rpartition("/")[2] for p in plans for info in store.list(f"attempts/{p.token}/")
    ]
    assert len(set(attempts)) == 6
    assert rooms(tmp) == []


def test_a_real_compaction_is_carried_out_in_a_task(
    runner: SparkRunner, store: ObjectStore, tmp: Path
) -> None:
    result = runner.run(leased_plan(segment(store, 0), segment(store, 1)))
    assert result.account == Account(kept=2, duplicates=0, quarantined=0)
    (block,) = result.outputs
    assert (block.tenant, block.level, block.profiles) == ("acme", 1, 2)
    for file in block.files:
        assert store.size(file.locations[0].key) == file.size
    assert rooms(tmp) == []


def test_segments_are_joined_in_a_task(runner: SparkRunner, store: ObjectStore, tmp: Path) -> None:
    inputs = [segment(store, number, at=number) for number in (10, 11, 12)]
    plan = msgspec.structs.replace(leased_plan(*inputs, index=88), kind=LOGCOMPACT)
    result = runner.run(plan)
    assert (result.kind, result.account) == (LOGCOMPACT, Account(3, 0, 0))
    (made,) = result.outputs
    assert (made.kind, made.level, made.profiles) == (Kind.SEGMENT, 0, 3)
    assert store.size(made.files[0].locations[0].key) == made.size
    after = runner.run(leased_plan(made, index=89))
    assert after.account == Account(3, 0, 0), "and it is compacted like any other segment"
    assert rooms(tmp) == []


def test_each_plan_is_one_job_that_spark_shows_by_its_name(runner: SparkRunner) -> None:
    named = plan("return", index=77)
    runner.run(named)
    jobs = runner.session.context._jsc.sc().statusStore().jobsList(None)
    shown = [(jobs.apply(i).jobGroup(), jobs.apply(i).description()) for i in range(jobs.size())]
    mine = [(group.get(), title.get()) for group, title in shown if "77.0" in group.get()]
    assert [title for _, title in mine] == ["compact 77.0 level 0 shard 1 acme"]
    assert mine[0][0].startswith(f"maar 77.0 {named.token} ")


@pytest.mark.parametrize(
    ("does", "cause", "own"),
    [
        ("fail Segment x is corrupt: look at it.", "Segment x is corrupt: look at it.", True),
        ("unavailable The store is away.", "The store is away.", False),
        ("bug not a number", "ValueError: not a number", True),
        ("full /", "OSError: [Errno 28] No space left on device: '/'", False),
    ],
)
def test_a_task_that_raises_fails_its_plan_with_one_sentence(
    runner: SparkRunner, does: str, cause: str, own: bool
) -> None:
    with pytest.raises(AttemptFailed) as failed:
        runner.run(plan(does))
    assert (failed.value.cause, failed.value.plan_at_fault) == (cause, own)
    assert failed.value.stopped


@pytest.mark.parametrize("does", ["exit 3", "die SIGKILL", "die SIGSEGV"])
def test_a_task_that_kills_its_python_worker_fails_alone(
    runner: SparkRunner, threads: ThreadPoolExecutor, gate: Path, does: str
) -> None:
    neighbour = threads.submit(runner.run, plan(f"wait {gate}", index=7))
    with pytest.raises(AttemptFailed, match="Python process died") as failed:
        runner.run(plan(does))
    assert (failed.value.stopped, failed.value.plan_at_fault) == (True, True)
    gate.touch()
    assert neighbour.result(PATIENCE_S).account.kept == 7
    assert runner.run(plan("return", index=8)).account.kept == 8


def test_what_killed_tasks_left_on_disk_is_wiped_by_the_next(
    runner: SparkRunner, tmp: Path
) -> None:
    with pytest.raises(AttemptFailed):
        runner.run(plan("die SIGKILL"))
    assert len(rooms(tmp)) == 1
    runner.run(plan("return"))
    assert rooms(tmp) == []


class Unloadable:
    """A task that an executor's Python cannot load, as without maar on its path."""

    def __call__(self, body: bytes) -> bytes:
        return body

    def __reduce__(self) -> Any:
        return __import__, ("maar_is_not_here",)


def killed_before_it_began(body: bytes) -> bytes:
    os.kill(os.getpid(), signal.SIGKILL)
    return body


def test_a_task_that_had_not_begun_is_not_to_blame(
    runner: SparkRunner, monkeypatch: pytest.MonkeyPatch
) -> None:
    cloudpickle.register_pickle_by_value(sys.modules[__name__])
    monkeypatch.setattr(runner, "task", killed_before_it_began)
    with pytest.raises(AttemptFailed, match="Python process died") as failed:
        runner.run(plan("return"))
    assert (failed.value.stopped, failed.value.plan_at_fault) == (True, False)


@pytest.mark.parametrize("converted", [False, True])
def test_an_executor_without_maar_is_not_the_fault_of_the_plan(
    runner: SparkRunner, monkeypatch: pytest.MonkeyPatch, converted: bool
) -> None:
    """Also where a SparkSession was made before: PySpark then raises classes of its own."""
    raising = capture_sql_exception(get_return_value) if converted else get_return_value
    monkeypatch.setattr(py4j.java_gateway, "get_return_value", raising)
    monkeypatch.setattr(runner, "task", Unloadable())
    with pytest.raises(AttemptFailed) as failed:
        runner.run(plan("return"))
    assert "No module named 'maar_is_not_here'; docs/spark.md says how" in failed.value.cause
    assert (failed.value.stopped, failed.value.plan_at_fault) == (True, False)
    monkeypatch.undo()
    assert runner.run(plan("return", index=6)).account.kept == 6


def test_a_cancelled_plan_stops_alone_and_has_stopped_when_it_says_so(
    runner: SparkRunner, store: ObjectStore, threads: ThreadPoolExecutor, gate: Path
) -> None:
    cancelled, neighbour = plan(f"write {gate}"), plan(f"wait {gate}", index=9)
    running: Future[PlanResult] = threads.submit(runner.run, cancelled)
    other = threads.submit(runner.run, neighbour)
    pids = wait_for_writes(store, cancelled.token)
    runner.cancel(cancelled)
    failed = running.exception(PATIENCE_S)
    assert isinstance(failed, AttemptFailed)
    assert (failed.cause, failed.stopped, failed.plan_at_fault) == (
        "The plan was cancelled",
        True,
        False,
    )
    # A process that has closed its files is a moment from its end: the slot is truly free.
    wait_for(lambda: not any(alive(pid) for pid in pids), 5)
    gate.touch()
    assert other.result(PATIENCE_S).account.kept == 9


def test_a_plan_can_be_run_again_after_it_was_cancelled(
    runner: SparkRunner, store: ObjectStore, threads: ThreadPoolExecutor, gate: Path
) -> None:
    """Under the same token too: Spark remembers cancelled groups, so each run has its own."""
    again = plan(f"write {gate}", index=5)
    running = threads.submit(runner.run, again)
    wait_for_writes(store, again.token)
    runner.cancel(again)
    assert isinstance(running.exception(PATIENCE_S), AttemptFailed)
    gate.touch()
    assert runner.run(again).account.kept == 5


def test_a_plan_that_is_cancelled_before_its_task_began_never_begins(
    runner: SparkRunner, store: ObjectStore, threads: ThreadPoolExecutor, gate: Path
) -> None:
    full = [plan(f"write {gate}") for _ in range(SLOTS)]
    running = [threads.submit(runner.run, each) for each in full]
    for each in full:
        wait_for_writes(store, each.token)
    waiting = plan("write /never")
    queued = threads.submit(runner.run, waiting)
    until(lambda: (waiting.id, waiting.token) in runner.runs)
    runner.cancel(waiting)
    failed = queued.exception(PATIENCE_S)
    assert isinstance(failed, AttemptFailed)
    assert failed.stopped
    gate.touch()
    for future in running:
        future.result(PATIENCE_S)
    assert writers(store, waiting.token) == {}


def test_a_plan_that_spark_has_no_slot_for_is_given_back(
    runner: SparkRunner,
    store: ObjectStore,
    threads: ThreadPoolExecutor,
    gate: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    full = [plan(f"write {gate}") for _ in range(SLOTS)]
    running = [threads.submit(runner.run, each) for each in full]
    for each in full:
        wait_for_writes(store, each.token)
    monkeypatch.setattr(runner, "timing", PATIENT._replace(seat_wait_s=0.1))
    with pytest.raises(AttemptFailed, match="no free slot") as failed:
        runner.run(plan("write /never"))
    assert (failed.value.stopped, failed.value.plan_at_fault) == (True, False)
    gate.touch()
    for future in running:
        future.result(PATIENCE_S)


def test_cancelling_what_does_not_run_does_nothing(runner: SparkRunner) -> None:
    runner.cancel(plan("return"))
    again = plan("return", index=4)
    runner.run(again)
    runner.cancel(again)


def test_a_task_whose_driver_lets_go_ends_its_process_without_spark(
    runner: SparkRunner, store: ObjectStore, threads: ThreadPoolExecutor, gate: Path
) -> None:
    """As when the driver is cut off from its executors, and Spark on both sides only waits."""
    alone = plan(f"write {gate}")
    running = threads.submit(runner.run, alone)
    pids = wait_for_writes(store, alone.token)
    runner.runs[alone.id, alone.token].line.cut()
    until(lambda: not any(alive(pid) for pid in pids))
    assert isinstance(running.exception(PATIENCE_S), AttemptFailed)


def test_a_task_writes_nothing_after_its_time(
    runner: SparkRunner, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runner, "timing", PATIENT._replace(limit_s=0.5))
    with pytest.raises(AttemptFailed, match="time is over") as failed:
        runner.run(plan("guarded /never"))
    assert (failed.value.stopped, failed.value.plan_at_fault) == (True, False)


def test_spark_runs_without_retries_and_speculation(runner: SparkRunner) -> None:
    conf = dict(runner.session.context.getConf().getAll())
    session.check(runner.session.context)
    assert conf["spark.master"] == f"local[{SLOTS},1]"
    assert conf["spark.scheduler.mode"] == "FAIR"


class RealClock:
    def monotonic_ns(self) -> int:
        return time.monotonic_ns()

    def wall_ns(self) -> int:
        return time.time_ns()


def test_renewals_are_not_starved_by_tasks_that_hold_every_core(runner: SparkRunner) -> None:
    lease_ns = LEASE_NS // 2
    plans = [plan("spin 7", index=n, lease_ns=lease_ns) for n in range(1, SLOTS + 1)]

    async def scenario() -> OnePlanEach:
        metastore = OnePlanEach(list(plans))
        worker = Worker(
            WorkerSettings(), metastore, runner, RealClock(), CollectorRegistry(), WorkerId("w")
        )
        async with asyncio.timeout(PATIENCE_S):
            running = asyncio.create_task(worker.run())
            await metastore.done.wait()
            worker.stop()
            await running
        return metastore

    metastore = asyncio.run(scenario())
    for times in metastore.heard.values():
        gaps = [after - before for before, after in pairwise(times)]
        assert len(gaps) >= 3
        assert max(gaps) < lease_ns / 1e9  # or the lease would have been lost


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


def test_closing_leaves_no_process_and_no_file(runner: SparkRunner, tmp: Path) -> None:
    """Runs after all that need the module's Spark."""
    jvm = session.jvm(runner.session.context).pid
    processes = descendants(jvm) | {jvm}
    assert len(processes) >= 1 + 1 + SLOTS  # the JVM, Spark's Python daemon, a worker per slot
    runner.close()
    until(lambda: not any(alive(pid) for pid in processes))
    assert list(tmp.glob("scratch/worker-*")) == []


def test_a_frozen_jvm_has_no_slots_and_dies_of_it(tmp_path: Path) -> None:
    runner = runner_in(tmp_path, PATIENT._replace(jvm_leaves_s=2.0, beat_s=0.3))
    try:
        runner.warm()
        jvm = session.jvm(runner.session.context).pid
        os.kill(jvm, signal.SIGSTOP)
        until(lambda: runner.slots() == 0)
        os.kill(jvm, signal.SIGCONT)
        until(lambda: runner.slots() == SLOTS)
        runner.timing = runner.timing._replace(dead_beats=8)
        os.kill(jvm, signal.SIGSTOP)
        with pytest.raises(RunnerDied, match="has not answered"):
            until(lambda: runner.slots() == -1)
    finally:
        runner.close()
    assert not alive(jvm)
    assert list(tmp_path.glob("scratch/worker-*")) == []


def test_a_killed_jvm_is_the_death_of_the_runner_and_of_its_tasks(
    tmp_path: Path, gate: Path
) -> None:
    runner = runner_in(tmp_path)
    try:
        runner.warm()
        store = open_store(StoreSettings("main", (tmp_path / "store").as_uri()))
        stray = plan(f"write {gate}")
        died: list[BaseException] = []

        def run() -> None:
            try:
                runner.run(stray)
            except RunnerDied as error:
                died.append(error)

        thread = threading.Thread(target=run)
        thread.start()
        wait_for_writes(store, stray.token)
        jvm = session.jvm(runner.session.context).pid
        processes = descendants(jvm)
        os.kill(jvm, signal.SIGKILL)
        thread.join(PATIENCE_S)
        assert len(died) == 1
        until(lambda: not any(alive(pid) for pid in processes))
        with pytest.raises(RunnerDied):
            runner.slots()
        with pytest.raises(RunnerDied):
            runner.run(plan("return"))
    finally:
        runner.close()
    assert list(tmp_path.glob("scratch/worker-*")) == []
