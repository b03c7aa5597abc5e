"""A disk that fills up: what is reported, what is refused, and that it recovers by itself."""

from __future__ import annotations

from pathlib import Path
from random import Random
from threading import Event
from threading import enumerate as enumerate_threads

import pytest
from prometheus_client import CollectorRegistry

from maar.app.health.disks import (
    HANGS_NS,
    LOOK_NS,
    Disk,
    Disks,
    DiskState,
    Free,
    Patiently,
    disks_of,
    measure_disk,
    reserve_of,
)
from maar.app.health.readiness import Readiness
from maar.app.settings.config import load
from maar.model.errors import StoreFull
from maar.model.ids import Shard
from maar.ports.calls import LocalPort
from maar.segment.service import SegmentService
from support.clock.virtual_time import run_virtually
from support.http.memory_metastore import MemoryMetastore
from support.http.pushed import SetClock, run
from support.segment.writer_in_memory import QUICK, raw_profile
from support.stores.memory_store import MemoryStore

MIB = 1 << 20


class Measured:
    """One disk with several directories, or several disks, as a test says."""

    def __init__(self, **free_mib: float) -> None:
        self.free_mib = free_mib
        self.one = False
        self.silent: set[str] = set()

    def __call__(self, path: Path) -> Free | None:
        if path.name in self.silent:
            raise TimeoutError
        free = self.free_mib.get(path.name)
        device = 1 if self.one else hash(path.name)
        return None if free is None else Free(int(free * MIB), 1000 * MIB, device)


def disks(clock: SetClock, measure: Measured, *, reserve_mib: int = 100) -> Disks:
    paths = {name: Path("/data") / name for name in ("data", "log", "store")}
    return Disks(paths, clock, reserve_bytes=reserve_mib * MIB, measure=measure)


@pytest.mark.parametrize(
    ("free_mib", "standing", "words"),
    [
        (1000, DiskState.ROOMY, ""),
        (300, DiskState.ROOMY, ""),
        (299, DiskState.LOW, "299.0 MiB left of 1,000.0 MiB; below 100.0 MiB pushes are refused"),
        (100, DiskState.LOW, "free some space"),
        (99, DiskState.FULL, "100.0 MiB are kept for the log and compaction"),
        (12.5, DiskState.FULL, "pushes are refused until some is freed"),
        (12, DiskState.SPENT, "nothing can be written until some is freed"),
        (0, DiskState.SPENT, "0.0 MiB left"),
    ],
)
def test_what_is_left_of_a_disk_says_what_may_be_done(
    free_mib: float, standing: DiskState, words: str
) -> None:
    disk = Disk("store", "/data/store", Free(int(free_mib * MIB), 1000 * MIB), 100 * MIB)
    assert disk.standing is standing
    assert words in disk.sentence
    assert bool(disk.sentence) == (standing is not DiskState.ROOMY)


def test_the_reserve_is_a_part_of_a_small_disk_and_bounded_on_a_large_one() -> None:
    assert reserve_of(Free(0, 64 * MIB), 0) == 64 * MIB // 20
    assert reserve_of(Free(0, 1 << 50), 0) == 512 * MIB
    assert reserve_of(Free(0, 1 << 50), 7) == 7


def test_a_real_directory_is_measured_and_one_that_is_not_here_is_none(tmp_path: Path) -> None:
    found = measure_disk(tmp_path)
    assert found is not None
    assert 0 < found.bytes <= found.of
    assert measure_disk(tmp_path / "elsewhere") is None


def test_the_directories_are_those_of_the_settings(tmp_path: Path) -> None:
    environ = {"MAAR_SERVER__DATA_DIR": str(tmp_path)}
    for name in ("log", "store"):
        (tmp_path / name).mkdir()
    here = disks_of(load(file=None, environ=environ), SetClock(), measure=measure_disk)
    assert [disk.name for disk in here.look()] == ["data", "log", "store"]
    away = environ | {"MAAR_STORE__URL": "s3://bucket/maar", "MAAR_LOG__URL": "etcd://e1:2379/maar"}
    there = disks_of(load(file=None, environ=away), SetClock(), measure=measure_disk)
    assert [disk.name for disk in there.look()] == ["data"]


def test_directories_on_one_disk_are_told_once() -> None:
    measure = Measured(data=1, log=1, store=1)
    assert disks(SetClock(), measure).no_room().count("left") == 3
    measure.one = True
    one = disks(SetClock(), measure)
    assert one.no_room().count("left") == 1
    assert "(data, log, store)" in one.no_room()
    assert [bool(disk["trouble"]) for disk in one.plain()] == [True, False, False]


def test_a_disk_that_does_not_answer_for_long_is_named_and_not_one_that_is_late() -> None:
    clock, measure = SetClock(), Measured(data=500, log=500, store=500)
    watch = disks(clock, measure)

    def look() -> str:
        clock.now_ns += LOOK_NS
        return watch.no_room()

    assert look() == ""
    measure.silent = {"store", "log"}
    for _ in range(HANGS_NS // LOOK_NS):
        assert look() == ""
        assert [disk.free.bytes for disk in watch.look()] == [500 * MIB] * 3
    told = "the disk of /data/log (log, store) does not answer"
    assert look().startswith(told)
    assert watch.no_room_to_read().startswith("the disk of /data/log (log) does not answer")
    assert [bool(disk["trouble"]) for disk in watch.plain()] == [False, True, False]
    assert {each.labels["directory"] for each in watch.collect()[0].samples} == {"data"}
    measure.silent = set()
    assert look() == ""
    measure.silent = {"store"}
    assert look() == "", "it begins anew"


def test_whoever_measures_a_disk_that_hangs_waits_a_moment_once() -> None:
    """In the kernel it would hang an event loop, and a process that hangs is killed."""
    answers, others = Event(), set(enumerate_threads())

    def measure(_: Path) -> Free:
        assert answers.wait(60)
        return Free(1, 2)

    patiently = Patiently(measure, answer_s=0.001)
    for _ in range(3):
        with pytest.raises(TimeoutError):
            patiently(Path("/mnt"))
    (thread,) = set(enumerate_threads()) - others
    answers.set()
    thread.join(60)
    assert patiently(Path("/mnt")) == Free(1, 2)


def test_free_space_is_a_metric_by_directory() -> None:
    registry = CollectorRegistry()
    disks(SetClock(), Measured(log=250, store=500)).register_in(registry)
    assert registry.get_sample_value("maar_disk_free_bytes", {"directory": "log"}) == 250 * MIB
    assert registry.get_sample_value("maar_disk_reserve_bytes", {"directory": "store"}) == 100 * MIB
    assert registry.get_sample_value("maar_disk_free_bytes", {"directory": "data"}) is None


class Answers(LocalPort):
    """A role that has nothing to complain about."""

    async def ready(self) -> str:
        return ""

    async def metrics(self) -> str:
        return ""


def test_ready_names_the_duty_that_fails_and_is_true_again_by_itself() -> None:
    clock, measure = SetClock(), Measured(store=500, log=500)
    others = {"metastore": Answers(), "query": Answers()}
    readiness = Readiness(
        others,
        MemoryStore(),
        clock,
        pushes=True,
        asks=True,
        placed=lambda: "",
        disks=disks(clock, measure),
    )

    def asked(purpose: str = "") -> str:
        clock.now_ns += LOOK_NS
        return run(readiness(purpose))

    assert asked() == ""
    measure.free_mib["store"] = 200
    assert asked() == "", "low is a warning"
    measure.free_mib["store"] = 50
    assert asked().startswith("push: the disk of /data/store (store) has 50.0 MiB left")
    assert asked("push") == asked()
    assert asked("query") == ""
    measure.free_mib["store"] = 0
    assert asked("query") == "", "what they read needs no room"
    measure.free_mib["log"] = 1
    assert "query: the disk of /data/log (log) has 1.0 MiB left" in asked()
    assert asked("query") != ""
    measure.free_mib |= {"store": 500, "log": 500}
    assert [asked(purpose) for purpose in ("", "push", "query")] == ["", "", ""]


def test_a_process_that_has_no_such_duty_says_so() -> None:
    readiness = Readiness(
        {"metastore": Answers()}, None, SetClock(), pushes=True, asks=False, placed=lambda: ""
    )
    assert "does not serve that" in run(readiness("query"))
    assert run(readiness("")) == ""


def test_pushes_are_refused_early_with_a_sentence_and_taken_again_when_there_is_room() -> None:
    clock, measure = SetClock(), Measured(log=50, store=500)
    registry = CollectorRegistry()
    watch = disks(clock, measure)

    async def test() -> None:
        service = SegmentService(
            QUICK,
            MemoryStore(),
            MemoryMetastore(),
            clock,
            Random(7),
            registry,
            "w1",
            no_room=watch.no_room,
        )
        with pytest.raises(StoreFull, match="kept for the log and compaction") as refused:
            await service.push(Shard(1), (raw_profile(1),))
        assert refused.value.retry_after_s == 30
        measure.free_mib["log"] = 500
        clock.now_ns += LOOK_NS
        await service.push(Shard(1), (raw_profile(1),))
        await service.stop()

    run_virtually(test())
    refusals = registry.get_sample_value("maar_segment_refusals_total", {"reason": "disk"})
    assert refusals == 1
