"""Plans on a standalone cluster: executors die, freeze and come back under them."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import pytest

from maar.adapters.stores.open import open_store
from maar.app.processes.watcher import session_members
from maar.model import keys
from maar.model.ids import FencingToken
from maar.model.plan import LeasedPlan, PlanResult
from maar.ports.plans.runner import AttemptFailed
from maar.ports.stores.object_store import ObjectStore, StoreSettings
from maar.runner.runner import SparkRunner
from maar.runner.settings import SparkSettings
from support.spark.cluster import QUICK_JVM, Cluster, Daemon, cluster, until
from support.spark.plans import (
    alive,
    leased_plan,
    nothing_to_load,
    parent,
    plan,
    pretend,
    segment,
    writers,
)

pytestmark = [pytest.mark.component, pytest.mark.long(80), pytest.mark.timeout(600)]

WORKERS, CORES = 2, 2
PATIENCE_S = 120.0
CONF = (
    "spark.driver.host=127.0.0.1",
    "spark.driver.bindAddress=127.0.0.1",
    "spark.executor.memory=512m",
    f"spark.executor.extraJavaOptions={QUICK_JVM}",
    # An executor that is silent for so long is lost; the default is two minutes. Its host is lost
    # earlier, after at most twice what the cluster's support says.
    "spark.executor.heartbeatInterval=1s",
    "spark.storage.blockManagerHeartbeatTimeoutMs=25000",
    "spark.network.timeoutInterval=1s",
    # How an executor died may be told late on a busy machine; after this it is "disassociated".
    "spark.standalone.executorRemoveDelayOnDisconnection=60s",
)


@pytest.fixture(scope="module")
def tmp(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cluster")


@pytest.fixture(scope="module")
def spark(tmp: Path) -> Iterator[Cluster]:
    with cluster(tmp, workers=WORKERS, cores=CORES) as running:
        yield running


@pytest.fixture(scope="module")
def store(tmp: Path) -> ObjectStore:
    return open_store(StoreSettings("main", (tmp / "store").as_uri()))


def runner_on(spark: Cluster, tmp: Path, *more: str) -> SparkRunner:
    return SparkRunner(
        SparkSettings(
            master=spark.url, driver_memory="512m", python=sys.executable, conf=(*CONF, *more)
        ),
        StoreSettings("main", (tmp / "store").as_uri()),
        tmp / "scratch",
        open_store=open_store,
        carry_out=pretend,
        load=nothing_to_load,
    )


@pytest.fixture(scope="module")
def shared(spark: Cluster, tmp: Path) -> Iterator[SparkRunner]:
    runner = runner_on(spark, tmp)
    try:
        runner.warm()
        yield runner
    finally:
        runner.close()


@pytest.fixture
def runner(shared: SparkRunner) -> SparkRunner:
    """With all its executors, whatever the test before has done to them."""
    until(lambda: shared.slots() == WORKERS * CORES)
    return shared


@pytest.fixture
def threads() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(8) as pool:
        yield pool


@pytest.fixture
def gate(tmp_path: Path) -> Iterator[Path]:
    """Plans wait until it exists; it does at the latest when the test is over."""
    yield tmp_path / "gate"
    (tmp_path / "gate").touch()


def one_writer(store: ObjectStore, token: FencingToken) -> int:
    """The process of a task that writes."""
    (pids,) = until(lambda: writers(store, token)).values()
    (pid,) = pids
    return int(pid)


def executor_of(pid: int) -> int:
    """The JVM above a task's process: there is Spark's Python daemon between them."""
    return parent(parent(pid))


def host_of(pid: int, spark: Cluster) -> Daemon:
    return next(worker for worker in spark.workers if pid in session_members(worker.pid))


def signalled(number: int, *pids: int) -> None:
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, number)


def rooms(tmp: Path) -> list[Path]:
    """What tasks have left on the hosts' disks."""
    return list(tmp.glob("local/spark-*/maar/worker-*"))


def failure_of(future: Future[PlanResult]) -> AttemptFailed:
    failed = future.exception(PATIENCE_S)
    assert isinstance(failed, AttemptFailed), failed
    return failed


def test_slots_are_those_of_all_executors_and_plans_run_on_each(
    runner: SparkRunner, store: ObjectStore, threads: ThreadPoolExecutor, gate: Path
) -> None:
    plans = [plan(f"write {gate}", index=index) for index in range(1, 5)]
    running = [threads.submit(runner.run, each) for each in plans]
    pids = [one_writer(store, each.token) for each in plans]
    assert len({executor_of(pid) for pid in pids}) == WORKERS
    gate.touch()
    assert [future.result(PATIENCE_S).account.kept for future in running] == [1, 2, 3, 4]


def test_a_cancelled_plan_has_stopped_on_its_host_when_it_says_so(
    runner: SparkRunner, store: ObjectStore, threads: ThreadPoolExecutor, gate: Path
) -> None:
    cancelled = plan(f"write {gate}")
    running = threads.submit(runner.run, cancelled)
    pid = one_writer(store, cancelled.token)
    runner.cancel(cancelled)
    failed = failure_of(running)
    assert (failed.cause, failed.stopped, failed.plan_at_fault) == (
        "The plan was cancelled",
        True,
        False,
    )
    assert not alive(pid)


def test_a_corrupt_segment_fails_its_plan_alone(
    runner: SparkRunner, store: ObjectStore, threads: ThreadPoolExecutor, tmp: Path
) -> None:
    good, bad = segment(store, 1), segment(store, 2)
    (tmp / "store" / bad.files[0].locations[0].key).write_bytes(b"not what was written")
    poison = threads.submit(runner.run, leased_plan(bad))
    assert runner.run(leased_plan(good)).account.kept == 1
    failed = failure_of(poison)
    assert (failed.stopped, failed.plan_at_fault) == (True, True)
    assert str(bad.id) in failed.cause


def test_a_plan_that_kills_its_executor_is_to_blame_when_it_ran_there_alone(
    runner: SparkRunner, store: ObjectStore, threads: ThreadPoolExecutor, gate: Path, tmp: Path
) -> None:
    """What it left on its host's disk goes with the next that runs there."""
    with pytest.raises(AttemptFailed) as failed:
        runner.run(plan("kill-executor SIGKILL"))
    assert failed.value.cause.endswith("died under the plan: Command exited with code 137")
    assert (failed.value.stopped, failed.value.plan_at_fault) == (True, True)
    assert rooms(tmp) != []
    until(lambda: runner.slots() == WORKERS * CORES)
    everywhere = [plan(f"write {gate}", index=index) for index in range(1, 5)]
    running = [threads.submit(runner.run, each) for each in everywhere]
    for each in everywhere:
        one_writer(store, each.token)
    gate.touch()
    assert [future.result(PATIENCE_S).account.kept for future in running] == [1, 2, 3, 4]
    assert rooms(tmp) == []


def test_nobody_is_to_blame_for_an_executor_that_ran_several_plans(
    runner: SparkRunner, store: ObjectStore, threads: ThreadPoolExecutor, gate: Path
) -> None:
    others = [plan(f"write {gate}", index=index) for index in range(1, 4)]
    running = [threads.submit(runner.run, each) for each in others]
    for each in others:
        one_writer(store, each.token)
    poison = threads.submit(runner.run, plan("kill-executor SIGKILL"))  # into the last free slot
    killer = failure_of(poison)
    gate.touch()
    ended = [future.exception(PATIENCE_S) for future in running]
    (neighbour,) = [error for error in ended if error is not None]
    assert isinstance(neighbour, AttemptFailed)
    for failed in (killer, neighbour):
        assert "died under the plan" in failed.cause
        assert (failed.stopped, failed.plan_at_fault) == (True, False)


def intents(store: ObjectStore, leased: LeasedPlan) -> set[str]:
    """The attempts that have announced what they write."""
    prefix = keys.attempt_prefix(plan=leased.id, token=leased.token)
    found = (info.key.removeprefix(prefix) for info in store.list(prefix))
    return {name.rpartition("-")[0] for name in found}


def writes(store: ObjectStore, token: FencingToken, attempt: str) -> int:
    return len(list(store.list(f"writes/{token}/{attempt}/")))


def test_two_attempts_under_one_token_do_not_disturb_each_other(
    runner: SparkRunner,
    store: ObjectStore,
    spark: Cluster,
    threads: ThreadPoolExecutor,
    gate: Path,
) -> None:
    """A host that is only cut off is lost to Spark, which runs its task again, retries or not."""
    twice = leased_plan(segment(store, 3), segment(store, 4), held_by=gate)
    running = threads.submit(runner.run, twice)
    first = one_writer(store, twice.token)
    assert len(intents(store, twice)) == 1
    host = host_of(first, spark)
    frozen = (host.pid, executor_of(first))  # and not the task's own process
    signalled(signal.SIGSTOP, *frozen)

    def both_attempts() -> dict[str, set[int]] | None:
        assert not running.done(), running.exception()
        found = writers(store, twice.token)
        return found if len(found) == 2 else None

    try:
        attempts: dict[str, set[int]] = until(both_attempts)
        before = {attempt: writes(store, twice.token, attempt) for attempt in attempts}
        until(lambda: all(writes(store, twice.token, each) > before[each] for each in attempts))
        gate.touch()
        result = running.result(PATIENCE_S)
    finally:
        signalled(signal.SIGCONT, *frozen)
    assert result.account.kept == 2
    assert len(intents(store, twice)) == 2
    (block,) = result.outputs
    made_by = {keys.intents_of(file.locations[0].key) for file in block.files}
    assert len(made_by) == 1
    for file in block.files:
        assert store.size(file.locations[0].key) == file.size


def test_a_frozen_executor_is_lost_and_only_a_task_that_was_seen_to_end_has_stopped(
    runner: SparkRunner,
    store: ObjectStore,
    threads: ThreadPoolExecutor,
    gate: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """One executor is frozen with its tasks, the other without them: those hear of their end."""
    # Spark kills the frozen after ten.
    monkeypatch.setattr(runner, "timing", runner.timing._replace(stop_wait_s=5.0))
    plans = [plan(f"write {gate}", index=index) for index in range(1, 5)]
    running = [threads.submit(runner.run, each) for each in plans]
    pids = [one_writer(store, each.token) for each in plans]
    whole = executor_of(pids[0])
    half = next(jvm for jvm in map(executor_of, pids) if jvm != whole)
    inside = [pid for pid in pids if executor_of(pid) == whole]
    signalled(signal.SIGSTOP, whole, half, *inside)
    try:
        failures = [failure_of(future) for future in running]
        for pid, failed in zip(pids, failures, strict=True):
            assert "heartbeat timed out" in failed.cause
            assert not failed.plan_at_fault
            assert failed.stopped == (pid not in inside)
            assert not (failed.stopped and alive(pid))
    finally:
        signalled(signal.SIGCONT, whole, half, *inside)
    until(lambda: not any(alive(pid) for pid in inside))


def test_a_killed_spark_worker_takes_no_plan_with_it(
    runner: SparkRunner,
    store: ObjectStore,
    spark: Cluster,
    threads: ThreadPoolExecutor,
    gate: Path,
) -> None:
    plans = [plan(f"write {gate}", index=index) for index in range(1, 3)]
    running = [threads.submit(runner.run, each) for each in plans]
    pids = [one_writer(store, each.token) for each in plans]
    host = host_of(pids[0], spark)
    host.kill()
    until(lambda: not alive(pids[0]))
    spark.add_worker()
    until(lambda: all(len(writers(store, each.token)) >= 1 for each in plans))
    gate.touch()
    for future in running:
        ended = future.exception(PATIENCE_S)
        assert ended is None or (isinstance(ended, AttemptFailed) and not ended.plan_at_fault)


def test_spark_that_scales_to_nothing_is_asked_for_an_executor_again(
    shared: SparkRunner, spark: Cluster, tmp: Path
) -> None:
    """Runs after all that need the module's Spark, which holds every core."""
    shared.close()
    until(lambda: not spark.executors())
    scaling = runner_on(
        spark,
        tmp,
        "spark.dynamicAllocation.enabled=true",
        "spark.dynamicAllocation.shuffleTracking.enabled=true",
        "spark.dynamicAllocation.minExecutors=0",
        "spark.dynamicAllocation.maxExecutors=1",
        "spark.dynamicAllocation.executorIdleTimeout=2s",
        "spark.standalone.executorRemoveDelayOnDisconnection=1s",  # how they end is not asked here
    )
    try:
        scaling.warm()
        until(lambda: not spark.executors())
        until(lambda: scaling.slots() == 1)
        assert scaling.run(plan("return", index=3)).account.kept == 3
        until(lambda: scaling.slots() == CORES or not spark.executors())
    finally:
        scaling.close()
    until(lambda: not spark.executors())
