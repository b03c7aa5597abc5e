"""`maar.spark.run_worker` on a session that somebody else owns, and goes on using."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

import maar.spark
from maar.adapters.rpc import RpcServer
from maar.adapters.stores.open import open_store
from maar.metastore.leader.stores.claim import mark
from maar.model.errors import InvalidInput, Unavailable
from maar.ports.metastore import log_time
from maar.ports.plans import board as plan_board
from maar.ports.stores.object_store import ObjectStore, StoreSettings
from maar.runner.runner import SparkRunner
from maar.runner.settings import SparkSettings
from maar.worker.settings import WorkerSettings
from support.spark.cluster import until
from support.spark.owned import build_session, owned_session
from support.spark.plans import INCARNATION, OnePlanEach, leased_plan, nothing_to_load, segment

pytestmark = [pytest.mark.component, pytest.mark.timeout(300)]

SETTINGS = WorkerSettings(poll_interval_ms=100, drain_ms=1000)
PATIENCE_S = 120.0


class Served:
    """A metastore of few words, on a socket, in a thread."""

    def __init__(self, directory: Path, metastore: OnePlanEach) -> None:
        self.address = f"unix:{directory}/m"
        self._metastore = metastore
        self._up = threading.Event()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._serve()))

    def __enter__(self) -> Served:
        self._thread.start()
        assert self._up.wait(PATIENCE_S)
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    async def _serve(self) -> None:
        server = RpcServer()
        server.add(log_time.CALLS, self._metastore)
        server.add(plan_board.CALLS, self._metastore)
        await server.start(self.address)
        self._up.set()
        while not self._stop.is_set():
            await asyncio.sleep(0.02)
        await server.stop()


class BorrowedSpark:
    """`run_worker` in a thread, as an owner would start it beside his own work."""

    def __init__(self, spark: Any, served: Served, store: ObjectStore) -> None:
        self.stop = threading.Event()
        self.raised: BaseException | None = None
        self._thread = threading.Thread(target=self._run, args=(spark, served, store))
        self._thread.start()

    def _run(self, spark: Any, served: Served, store: ObjectStore) -> None:
        try:
            maar.spark.run_worker(
                spark,
                metastore=served.address,
                store=store.settings(),
                stop=self.stop,
                settings=SETTINGS,
            )
        except BaseException as error:  # noqa: BLE001  # told to the test
            self.raised = error

    def returned(self) -> bool:
        self._thread.join(PATIENCE_S)
        return not self._thread.is_alive()


@pytest.fixture(scope="module")
def spark() -> Iterator[SparkSession]:
    with owned_session() as session:
        yield session


@pytest.fixture
def store(tmp_path: Path) -> ObjectStore:
    store = open_store(StoreSettings("main", (tmp_path / "store").as_uri()))
    mark(store, INCARNATION)
    return store


class OwnersJob:
    """A job of the owner's that holds some slots until it is told to end."""

    def __init__(self, spark: SparkSession, directory: Path, tasks: int) -> None:
        self._gate = directory / "owners-gate"
        self._begun = directory / "begun"
        self._begun.mkdir()
        self._results: list[Any] = []
        gate, begun = str(self._gate), str(self._begun)

        def task(number: int) -> int:
            (Path(begun) / str(number)).touch()
            while not Path(gate).exists():
                time.sleep(0.02)
            return number

        def run() -> None:
            rdd = spark.sparkContext.parallelize(range(tasks), tasks)
            self._results = rdd.map(task).collect()

        self._thread = threading.Thread(target=run)
        self._thread.start()
        until(lambda: len(list(self._begun.iterdir())) == tasks)

    def results(self) -> list[Any]:
        self._gate.touch()
        self._thread.join(PATIENCE_S)
        return self._results


def test_plans_are_carried_out_beside_the_owners_jobs_and_the_session_stays(
    spark: SparkSession, store: ObjectStore, tmp_path: Path
) -> None:
    plans = [
        leased_plan(segment(store, 2 * n), segment(store, 2 * n + 1), index=n) for n in range(1, 4)
    ]
    metastore = OnePlanEach(plans)
    owners = OwnersJob(spark, tmp_path, 1)
    with Served(tmp_path, metastore) as served:
        borrowed = BorrowedSpark(spark, served, store)
        until(lambda: metastore.done.is_set() or borrowed.raised)
        borrowed.stop.set()
        assert borrowed.returned()
    assert borrowed.raised is None
    assert [result.account.kept for result in metastore.results] == [2, 2, 2]
    assert owners.results() == [0]
    assert spark.range(3).count() == 3


def test_slots_are_those_that_the_owner_leaves_free(
    spark: SparkSession, store: ObjectStore, tmp_path: Path
) -> None:
    runner = SparkRunner(
        SparkSettings(),
        store.settings(),
        None,
        open_store=open_store,
        load=nothing_to_load,
        borrowed=spark.sparkContext,
    )
    try:
        runner.warm()
        until(lambda: runner.slots() == 2)
        owners = OwnersJob(spark, tmp_path, 1)
        until(lambda: runner.slots() == 1)
        assert owners.results() == [0]
        until(lambda: runner.slots() == 2)
    finally:
        runner.close()


def test_it_can_be_stopped_before_there_is_a_slot(
    spark: SparkSession, store: ObjectStore, tmp_path: Path
) -> None:
    owners = OwnersJob(spark, tmp_path, 2)
    with Served(tmp_path, OnePlanEach([leased_plan(segment(store, 1))])) as served:
        borrowed = BorrowedSpark(spark, served, store)
        tracker = spark.sparkContext._jsc.statusTracker()
        until(lambda: len(list(tracker.getActiveJobIds())) == 2)  # the owner's, and our warm-up
        borrowed.stop.set()
        assert borrowed.returned()
        until(lambda: len(list(tracker.getActiveJobIds())) == 1)
    assert borrowed.raised is None
    assert owners.results() == [0, 1]


def test_another_store_than_the_metastores_is_refused(spark: SparkSession, tmp_path: Path) -> None:
    other = open_store(StoreSettings("main", (tmp_path / "other").as_uri()))
    with (
        Served(tmp_path, OnePlanEach([])) as served,
        pytest.raises(InvalidInput, match="is not the store of the metastore"),
    ):
        maar.spark.run_worker(spark, metastore=served.address, store=other.settings())


def test_a_session_that_its_owner_stops_ends_the_worker_with_a_sentence(
    spark: SparkSession, store: ObjectStore, tmp_path: Path
) -> None:
    """And his next one, which would run tasks again, is refused."""
    metastore = OnePlanEach([leased_plan(segment(store, 1))])
    with Served(tmp_path, metastore) as served:
        borrowed = BorrowedSpark(spark, served, store)
        until(lambda: metastore.done.is_set() or borrowed.raised)
        spark.stop()
        assert borrowed.returned()
        assert isinstance(borrowed.raised, Unavailable)
        assert "the Spark session cannot be used any more" in str(borrowed.raised)
        with pytest.raises(InvalidInput, match="session is stopped; make a new one"):
            maar.spark.run_worker(spark, metastore=served.address, store=store.settings())
        again = build_session(conf={"spark.stage.maxConsecutiveAttempts": "4"})
        try:
            refused = BorrowedSpark(again, served, store)
            refused.stop.set()
            assert refused.returned()
            assert isinstance(refused.raised, InvalidInput)
            assert "maxConsecutiveAttempts = 4, which lets it run a task again" in str(
                refused.raised
            )
            assert again.range(3).count() == 3
        finally:
            again.stop()
