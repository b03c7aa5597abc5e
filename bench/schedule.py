"""What the schedule costs a leader: a turn of its loop with 1,000 and with 10,000 jobs.

A turn looks at some jobs and hands out what a worker asks for. The baseline is a tenth of the jobs:
a turn should cost the same, however many there are.

    python bench/schedule.py
"""

from __future__ import annotations

import statistics
import time
from itertools import combinations

from maar.metastore.decide import schedule
from maar.metastore.decide.jobs import JobBook, Moment
from maar.metastore.decide.schedule import Wish
from maar.metastore.decide.workers import WorkerRegistry
from maar.metastore.fold.apply import Indexed, apply
from maar.metastore.records.entries import Entry, Envelope, Genesis, PolicySet, TermStarted
from maar.metastore.state.state import MetaState
from maar.model.ids import Incarnation, TenantId
from maar.model.plan import JobId
from maar.model.policy import Policy
from maar.model.schedule import Schedule
from maar.model.time import SECOND_NS, LeaseTime, WallTime
from maar.scheduling import rules
from maar.services.compact.rules import COMPACTION
from maar.services.kinds import Kinds
from maar.tools.simulate.schedule import KIND, WORKER, Waiting

HOUR_NS = 3600 * SECOND_NS
TURNS = 600
PROMISE_MS = 10.0
STORES = [f"store:s{n}" for n in range(6)]


def turns_ms(jobs: int) -> list[float]:
    """Half of the jobs are due, the stores of all but one set are free."""
    sets = list(combinations(STORES, 3))
    needs = {JobId(TenantId(f"t{n:05}"), KIND): sets[n % len(sets)] for n in range(jobs)}
    kind = Waiting(needs, rules.with_interval(Schedule(interval_ns=0), HOUR_NS))
    for number, job in enumerate(needs):
        kind.last[job] = LeaseTime(-number * 2 * HOUR_NS // jobs)
    state = MetaState(kinds=Kinds(COMPACTION, kind))
    book, registry = JobBook(), WorkerRegistry()
    now = LeaseTime(0)

    def put(entry: Entry) -> None:
        wall = WallTime(1_800_000_000 * SECOND_NS + now)
        effects = apply(state, Indexed(state.index + 1, Envelope(1, now, wall, entry)))
        book.follow(state, effects)

    opening = (Genesis(Incarnation("be9c0000")), TermStarted(1, "one"), PolicySet(Policy()))
    for first in opening:
        put(first)
    took = []
    for turn in range(TURNS):
        now = LeaseTime(turn * SECOND_NS // 2)
        at = Moment(now, WallTime(1_800_000_000 * SECOND_NS + now))
        begun = time.process_time()
        book.turn(state, at)
        changed = book.entries(state, at)
        given = schedule.assign(
            state, [Wish(WORKER, 1, (KIND,))], now=now, worker_registry=registry, book=book, at=at
        )
        took.append(1000 * (time.process_time() - begun))
        for entry in (*changed, *given):
            put(entry)
    return took


def main() -> None:
    medians = {}
    for jobs in (1_000, 10_000):
        took = sorted(turns_ms(jobs))
        medians[jobs] = statistics.median(took)
        p99 = took[int(0.99 * len(took))]
        print(
            f"{jobs:>6,} jobs: a turn takes {medians[jobs]:.2f} ms in the median, {p99:.2f} ms at "
            f"p99, {took[-1]:.2f} ms at most; the promise is {PROMISE_MS:.0f} ms"
        )
    ratio = medians[10_000] / medians[1_000]
    print(f"10 x the jobs: {ratio:.2f} x the time of a turn; 100 jobs in a turn are looked at")


if __name__ == "__main__":
    main()
