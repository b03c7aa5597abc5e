"""What the schedule costs a leader: a turn of its loop with 1,000, 10,000 and 100,000 jobs.

A turn looks at some jobs, hands out what a worker asks for, and folds what came of it. The baseline
is a thousand jobs: a turn should cost the same, however many there are. Once jobs that only occupy
stores, half of which are due; then the repairs of as many tenants, each with a block that a second
store lacks, beside the gauges of the stores and of repairs that a leader sets in each turn.
Then a session of the full repair of one tenant with many blocks: to make it, and to hand it out.
Each line: name value unit ratio baseline.

    python bench/schedule.py [--jobs 1000 10000 100000] [--blocks 20000]
"""

from __future__ import annotations

import argparse
import gc
import statistics
import time
from itertools import combinations
from random import Random

import msgspec
from prometheus_client import CollectorRegistry

from maar.metastore.decide import schedule
from maar.metastore.decide.jobs import JobBook, Moment
from maar.metastore.decide.repairs import session_blocks
from maar.metastore.decide.schedule import Wish
from maar.metastore.decide.workers import WorkerRegistry
from maar.metastore.fold.apply import Indexed, apply
from maar.metastore.records.entries import (
    Entry,
    Envelope,
    Genesis,
    PlansScheduled,
    PolicySet,
    StoresSet,
    TermStarted,
)
from maar.metastore.records.packs import pack
from maar.metastore.replica.metrics import MetastoreMetrics
from maar.metastore.state.repairs import HistoryKey
from maar.metastore.state.state import MetaState
from maar.model.block import TABLES, BlockMeta, File, Kind, Location
from maar.model.ids import BlockId, Incarnation, Shard, StoreName, TenantId
from maar.model.plan import JobId
from maar.model.policy import Policy
from maar.model.repair import RepairType
from maar.model.schedule import Schedule
from maar.model.stores import StoreSet, StoreSpec
from maar.model.time import DAY_NS, SECOND_NS, LeaseTime, WallTime
from maar.scheduling import rules
from maar.services.compact.rules import COMPACTION
from maar.services.kinds import Kinds
from maar.services.repair.history import Repaired, VnodeHistory
from maar.services.repair.ranges import VNODES, vnode
from maar.services.repair.rules import REPAIR, REPAIRING
from maar.services.rules import KindRules
from maar.tools.simulate.schedule import KIND, WORKER, OccupyingRules

HOUR_NS = 3600 * SECOND_NS
TURNS = 600
SESSIONS = 30
PROMISE_MS = 10.0
HISTORIES = 2_000  # tenants; a range of history takes a kilobyte or so

STORES = [f"store:s{n}" for n in range(6)]


class Leader:
    """The schedule of a leader with one worker, in virtual time."""

    def __init__(self, kind: KindRules) -> None:
        self.state = MetaState(kinds=Kinds(COMPACTION, kind))
        self.book, self.registry = JobBook(), WorkerRegistry()
        self.metrics = MetastoreMetrics(CollectorRegistry())
        self.kind, self.now = kind.kind, LeaseTime(0)
        opening = (Genesis(Incarnation("be9c0000")), TermStarted(1, "one"), PolicySet(Policy()))
        for first in opening:
            self.put(first)

    @property
    def wall(self) -> WallTime:
        return WallTime(1_800_000_000 * SECOND_NS + self.now)

    def put(self, entry: Entry) -> None:
        envelope = Envelope(1, self.now, self.wall, entry)
        effects = apply(self.state, Indexed(self.state.index + 1, envelope))
        self.book.follow(self.state, effects)

    def turn(self) -> None:
        self.now = LeaseTime(self.now + SECOND_NS // 2)
        at = Moment(self.now, self.wall)
        self.book.turn(self.state, at)
        for entry in self.book.entries(self.state, at):
            self.put(entry)
        given = schedule.assign(
            self.state,
            [Wish(WORKER, 1, (self.kind,))],
            now=self.now,
            worker_registry=self.registry,
            book=self.book,
            at=at,
        )
        for entry in given:
            self.put(entry)
        self.metrics.repairs.observe(self.state, self.now)
        self.metrics.stores.observe(self.state.blocks.copies.of_stores(), {})


def turns_ms(leader: Leader) -> list[float]:
    """Long enough that the collector of garbage comes to all generations."""
    took = []
    gc.collect()
    gc.freeze()  # as a member does with what it has loaded
    for _ in range(TURNS):
        begun = time.process_time()
        leader.turn()
        took.append(1000 * (time.process_time() - begun))
    gc.unfreeze()
    return took


def waiting(jobs: int) -> Leader:
    """Half of the jobs are due, the stores of all but one set are free."""
    sets = list(combinations(STORES, 3))
    needs = {JobId(TenantId(f"t{n:05}"), KIND): sets[n % len(sets)] for n in range(jobs)}
    kind = OccupyingRules(needs, rules.with_interval(Schedule(interval_ns=0), HOUR_NS))
    for number, job in enumerate(needs):
        kind.last[job] = LeaseTime(-number * 2 * HOUR_NS // jobs)
    return Leader(kind)


def repairs(jobs: int) -> Leader:
    """Two jobs of each tenant. Half of the tenants were repaired long ago, range by range."""
    leader, a, b = Leader(REPAIRING), StoreName("a"), StoreName("b")
    leader.put(StoresSet(StoreSet((StoreSpec(a), StoreSpec(b)), default=(a, b))))
    state = leader.state
    for number in range(jobs // 2):
        tenant = TenantId(f"t{number:05}")
        meta = block(number, tenant, a)
        state.blocks.put(meta, pack(meta))
        if number % 2 and number < HISTORIES:
            for each in range(VNODES):
                history = VnodeHistory(None, (Repaired(vnode(each), LeaseTime(number)),))
                state.repairs.history[HistoryKey(tenant, (a, b), each)] = history
    return leader


def block(number: int, tenant: TenantId, store: StoreName) -> BlockMeta:
    name = BlockId(f"{number:032x}")
    files = tuple(
        File(table, 10, b"0" * 16, 4, 1, (Location(store, f"k/{name}.{table}"),))
        for table in TABLES
    )
    return BlockMeta(
        1, name, Kind.BLOCK, 1, tenant, Shard(1), store, 20_000, 0, 1, 1, 1, 50, files, (), "b", 0
    )


def sessions_ms(blocks: int) -> dict[str, list[float]]:
    """Of one tenant that was never repaired, in two stores, over two months and 64 shards."""
    leader, a, b = Leader(REPAIRING), StoreName("a"), StoreName("b")
    leader.put(StoresSet(StoreSet((StoreSpec(a), StoreSpec(b)), default=(a, b))))
    state, tenant = leader.state, TenantId("acme")
    for number in range(blocks):
        meta = _one_of_many(number, blocks, block(number, tenant, a), b)
        state.blocks.put(meta, pack(meta))
    job = JobId(tenant, REPAIR, RepairType.VNODE)
    known = leader.book.look_at(state, job, Moment(leader.now, leader.wall))
    assert known is not None
    took: dict[str, list[float]] = {"make": [], "hand_out": []}
    gc.collect()
    gc.freeze()
    for _ in range(SESSIONS):
        begun = time.process_time()
        spec = REPAIRING.session(state, known.found, known.schedule, now=leader.now)
        took["make"].append(1000 * (time.process_time() - begun))
        assert spec is not None
        leader.put(PlansScheduled((spec,)))
        plan = state.plans[max(state.plans)]
        assert plan.repair is not None
        begun = time.process_time()
        session_blocks(state, plan, plan.repair)
        took["hand_out"].append(1000 * (time.process_time() - begun))
    gc.unfreeze()
    return took


def _one_of_many(number: int, blocks: int, meta: BlockMeta, other: StoreName) -> BlockMeta:
    """Ids and checksums without a pattern: a pack of them does not shrink to nothing."""
    chance = Random(number)
    name, day = BlockId(f"{number:016x}{chance.randbytes(8).hex()}"), 64 * number // blocks
    files = tuple(
        msgspec.structs.replace(
            file,
            checksum=chance.randbytes(16),
            locations=tuple(
                Location(store, f"lake/{meta.tenant}/{name}/{file.table}")
                for store in (meta.store, other)
            ),
        )
        for file in meta.files
    )
    return msgspec.structs.replace(
        meta,
        id=name,
        shard=Shard(number % 64),
        min_time_ns=day * DAY_NS,
        max_time_ns=day * DAY_NS + 1,
        files=files,
    )


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--blocks", type=int, nargs="*", default=[20_000])
    parser.add_argument("--jobs", type=int, nargs="*", default=[1_000, 10_000, 100_000])
    options = parser.parse_args()
    for what, made in (("waiting", waiting), ("repair", repairs)):
        first = 0.0
        for jobs in options.jobs:
            took = sorted(turns_ms(made(jobs)))
            median, p99 = statistics.median(took), took[int(0.99 * len(took))]
            first = first or median
            name = f"turn_{jobs}_{what}_jobs"
            print(f"{name} {median:.2f} ms {median / first:.2f} with-{options.jobs[0]}-jobs")
            for which, value in (("p99", p99), ("max", took[-1])):
                said = f"{value / PROMISE_MS:.3f} the-promise-of-{PROMISE_MS:.0f}-ms"
                print(f"{name}_{which} {value:.2f} ms {said}")
    for blocks in options.blocks:
        for which, some in sessions_ms(blocks).items():
            median = statistics.median(some)
            said = f"{median / PROMISE_MS:.3f} the-promise-of-{PROMISE_MS:.0f}-ms"
            print(f"session_{blocks}_blocks_{which} {median:.2f} ms {said}")


if __name__ == "__main__":
    main()
