"""Faults, heal, audit: the durations bound the faults, never the healing."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from random import Random

import msgspec

from maar.adapters.rpc import MetastoreClient
from maar.model.block import BlockMeta
from maar.model.errors import MaarError
from maar.model.plan import PlanKind
from maar.model.services import ServicesSettings
from maar.ports.operator.operator import GetStatus, ListBlocks, Status
from maar.services.kinds import KINDS
from support.oracles.log_audit import Audit, Tail
from support.soak import checks
from support.soak.fault_injector import FaultInjector
from support.soak.processes import PATIENCE_S, Parts, Processes
from support.soak.writer import Writer

PACE_S = 0.05
HEALED_S = 600.0  # a slow machine may take long; it must get there
BLOCKS_MAX = 1_000_000


def settings(*, write_s: float, leftovers_s: float) -> tuple[str, ...]:
    """Of the metastore and of Spark's workers; leftovers are deleted after `leftovers_s`, which is
    longer than any task writes, and than it can be stopped for.
    """
    return (
        *(
            f"services.{kind}.limit_s={write_s:g}"
            for kind in msgspec.structs.asdict(ServicesSettings())
            if kind in KINDS and KINDS[PlanKind(kind)].writes
        ),
        "worker.cancel_ms=4000",
        "compaction.level_counts=6,4,4",
        "compaction.level_ages_s=1,2,3",
        "compaction.failure_limit=3",
        "compaction.retry_s=0.2",
        "compaction.probe_s=2",
        "compaction.probe_max_s=10",
        "compaction.retire_delay_s=4",
        f"compaction.leftovers_s={leftovers_s:g}",
        "compaction.registration_floor_lag_s=600",
        "compaction.snapshot_entries=400",
    )


LONG = Parts(lease_s=3.0, write_s=12.0, settings=settings(write_s=12.0, leftovers_s=25.0))
SHORT = Parts(lease_s=2.0, write_s=6.0, settings=settings(write_s=6.0, leftovers_s=12.0))


@dataclass(frozen=True, slots=True)
class Summary:
    """What happened, for people; `faults` is empty or the soak has failed."""

    seed: int
    faulty_s: float
    healed_s: float
    injected: Counter[str]
    profiles: int
    audit: Audit
    log_entries: int
    objects: int
    faults: list[str]

    def __str__(self) -> str:
        audit, faults = self.audit, self.faults
        levels = Counter(life.level for life in audit.plans.values() if life.completed)
        hands = Counter(_kind(life.worker) for life in audit.plans.values() if life.completed)
        divided = sum(life.divided for life in audit.plans.values())
        lines = [
            f"seed {self.seed}: {self.faulty_s:.0f} s of faults, {self.healed_s:.0f} s to heal",
            "faults: " + ", ".join(f"{name} {times}" for name, times in (+self.injected).items()),
            f"{self.profiles} profiles, {self.log_entries} log entries, {audit.terms} terms",
            f"{len(audit.winners)} plans completed in {audit.attempts()} attempts, by level: "
            + ", ".join(f"{level}: {count}" for level, count in sorted(levels.items())),
            "by whom: " + ", ".join(f"{name} {count}" for name, count in sorted(hands.items())),
            f"{divided} plans divided, {audit.excluded} times one was excluded",
            f"refused as late: {audit.late['result']} results, {audit.late['failure']} failures",
            f"{len(audit.swept)} attempts swept, {len(audit.forgotten)} blocks cleaned away, "
            f"{self.objects} objects left",
        ]
        good = "every plan completed once, no leftovers, nothing lost or doubled, no process left"
        return "\n".join([*lines, checks.text_of(faults) if faults else good])


def _kind(worker: str) -> str:
    name = worker.partition("-")[0]
    return name if name.startswith(("worker", "zombie")) else "spark"


def soak(directory: Path, *, seconds: float | None, seed: int, parts: Parts) -> Summary:
    """One whole run, by chance for some seconds, or with every fault once when none are given.

    It must be called from the main thread, which everybody dies with.
    """
    random = Random(seed)
    everyone = Processes(directory, parts, random)
    writer = Writer(everyone.around.metastore, everyone.store, pace_s=PACE_S, seed=seed)
    tail = Tail(everyone.log_database)
    try:
        everyone.start()
        writer.start()
        injector = FaultInjector(everyone, random, lease_s=parts.lease_s)
        began = time.monotonic()
        if seconds is None:
            injector.inject_each(meanwhile=tail.follow)
        else:
            injector.inject(seconds, meanwhile=tail.follow)
        faulty_s, began = time.monotonic() - began, time.monotonic()
        everyone.stop_zombies()
        writer.enough()
        _heal(everyone, writer, tail)
        healed_s = time.monotonic() - began
        status, live, unread = asyncio.run(_look(everyone, writer))
        tail.follow()
        audit = Audit.of(tail.envelopes())
        ended = everyone.part()
        faults = [
            *checks.log_faults(audit, status, live),
            *checks.leftovers(everyone.store, live, strays_max=len(writer.repeated)),
            *checks.find_lost_or_doubled(everyone.store, live, writer),
            *unread,
            *(f"{name} ended with code {code}" for name, code in ended.items() if code > 0),
            *(f"process {pid} is left" for pid in everyone.everyone()),
            *checks.crashes(everyone.log()),
        ]
    finally:
        everyone.end()
    return Summary(
        seed=seed,
        faulty_s=faulty_s,
        healed_s=healed_s,
        injected=injector.done,
        profiles=len(writer.acknowledged),
        audit=audit,
        log_entries=tail.read_to,
        objects=sum(1 for _ in everyone.store.list("")),
        faults=faults,
    )


def _heal(everyone: Processes, writer: Writer, tail: Tail) -> None:
    deadline = time.monotonic() + HEALED_S
    left = "everything"
    while left:
        assert time.monotonic() < deadline, f"not healed: {left}\n{everyone.log()[-8000:]}"
        everyone.revive()
        tail.follow()
        time.sleep(0.3)
        left = _left(everyone, writer)


def _left(everyone: Processes, writer: Writer) -> str:
    if not writer.is_finished():
        return "pushes without an answer"
    return "zombies" if everyone.zombies_alive() else asyncio.run(_busy(everyone))


async def _busy(everyone: Processes) -> str:
    metastore = MetastoreClient(everyone.around.metastore)
    try:
        return checks.busy(await metastore.call(GetStatus()))
    except MaarError as error:
        return str(error)
    finally:
        await metastore.close()


async def _look(
    everyone: Processes, writer: Writer
) -> tuple[Status, tuple[BlockMeta, ...], list[str]]:
    metastore = MetastoreClient(everyone.around.metastore, deadline_s=PATIENCE_S)
    try:
        live = await metastore.call(ListBlocks(limit=BLOCKS_MAX))
        status = await metastore.call(GetStatus())
        unread = await checks.unread(metastore, everyone.store, writer.acknowledged.values())
        return status, live, unread
    finally:
        await metastore.close()
