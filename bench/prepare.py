"""A poll prepared by a read against one prepared by a log entry, on the SQLite log.

    python bench/prepare.py [--polls 900]

Preparing a poll only reads. Three ways to know that the state it reads is the newest:

    append   nothing first: the update is appended only if the log's head has not moved (ours)
    head     ask the log for its head, as every linearizable read does, then the same
    entry    append a read-only entry and fold it, then append the update, as the peer does

Three kinds of polls: `idle` (there is no work), `renew` (two leases), `work` (reports a result,
renews a lease, takes a new plan). The read-only entry is the smallest that the log knows; the
peer's carries the whole request. Each line: name value unit ratio baseline, all against `entry`.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import statistics
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from prometheus_client import CollectorRegistry

import synthetic
from maar.adapters.sqlite.log import SqliteLog
from maar.adapters.stores.open import open_store
from maar.adapters.system_clock import SystemClock
from maar.app.processes.long_lived import long_lived
from maar.metastore.records.entries import Tick
from maar.metastore.service import MetastoreService
from maar.model.errors import Unavailable
from maar.model.ids import MAIN_STORE, WorkerId
from maar.model.plan import LeasedPlan
from maar.model.policy import Policy
from maar.ports.metastore.log import Candidate, Head, Term
from maar.ports.plans.board import PollReply, PollRequest, Renewal, Report
from maar.ports.stores.object_store import StoreSettings
from maar.services.compact.rules import COMPACT
from synthetic_hour import Flush, entropy, result_of, segment

SEGMENTS = 20
WAYS = ("append", "head", "entry")
KINDS = ("idle", "renew", "work")
WORKER = WorkerId("bench")


class CountedLog(SqliteLog):
    """The SQLite log, and how often and how much is appended to it."""

    appends = 0
    appended_bytes = 0

    async def append(
        self, bodies: Sequence[bytes], *, term: Term, head: Head, reserve: bool = False
    ) -> Head:
        self.appends += 1
        self.appended_bytes += sum(map(len, bodies))
        return await super().append(bodies, term=term, head=head, reserve=reserve)


@dataclass
class Taken:
    """What the polls of one kind took in one way."""

    seconds: list[float] = field(default_factory=list)
    appends: int = 0
    bytes: int = 0


class Polls:
    """Polls of a metastore, each in the next of the three ways, so that a drift hits all."""

    def __init__(self, service: MetastoreService, log: CountedLog) -> None:
        self._service = service
        self._log = log
        self._ways = itertools.cycle(WAYS)
        self.taken = {(kind, way): Taken() for kind in KINDS for way in WAYS}

    async def poll(self, kind: str, request: PollRequest) -> PollReply:
        way = next(self._ways)
        taken = self.taken[kind, way]
        appends, size = self._log.appends, self._log.appended_bytes
        begun = time.perf_counter()
        if way == "head":
            await self._log.head()
        elif way == "entry":
            assert self._service._leader_term is not None
            await self._service._leader_term.append(
                lambda *_: [Tick()]
            )  # as background tasks and operators do
        reply = await self._service.poll(request)
        taken.seconds.append(time.perf_counter() - begun)
        taken.appends += self._log.appends - appends
        taken.bytes += self._log.appended_bytes - size
        return reply


async def measure(directory: Path, polls: int) -> tuple[dict[tuple[str, str], Taken], list[float]]:
    """What was taken, and the seconds that single reads of the head took."""
    log = CountedLog(directory / "log", writes=True)
    service = MetastoreService(
        log,
        open_store(StoreSettings(MAIN_STORE, (directory / "store").as_uri())),
        SystemClock(),
        Policy(snapshot_entries=10**9, snapshot_bytes=10**15, backlog_count=0),
        entropy=entropy,
        candidate=Candidate("bench"),
        take_snapshot=no_snapshot,
        registry=CollectorRegistry(),
        loading=long_lived,
    )
    await service.start()
    try:
        asked = Polls(service, log)
        for _ in range(polls):
            await asked.poll("idle", PollRequest(WORKER, 2, kinds=(COMPACT,)))
        await register(service, plans=polls + 3)
        first = await service.poll(PollRequest(WORKER, 3, kinds=(COMPACT,)))
        *held, current = first.granted
        for _ in range(polls):
            await asked.poll("renew", PollRequest(WORKER, 0, renewals(held)))
        for _ in range(polls):
            report = Report(current.id, current.token, result_of(current, shrink=0.25))
            reply = await asked.poll(
                "work", PollRequest(WORKER, 1, renewals(held), (report,), kinds=(COMPACT,))
            )
            assert reply.outcomes[0].accepted, reply.outcomes
            (current,) = reply.granted
        return asked.taken, await heads(log, polls)
    finally:
        await service.stop()


async def no_snapshot() -> int:
    raise Unavailable("there is nobody who makes one")


async def register(service: MetastoreService, *, plans: int) -> None:
    now = await service.now()
    flush = Flush(0, 1, {"acme": 4})
    metas = [
        segment(
            number,
            flush,
            lease_time_ns=now.lease_time,
            wall_ns=SystemClock().wall_ns(),
            profile_bytes=20_000,
        )
        for number in range(plans * SEGMENTS)
    ]
    for at in range(0, len(metas), 500):
        reply = await service.add_blocks(tuple(metas[at : at + 500]))
        assert not any(reply.refusals), reply.refusals


def renewals(held: Sequence[LeasedPlan]) -> tuple[Renewal, ...]:
    return tuple(Renewal(plan.id, plan.token) for plan in held)


async def heads(log: CountedLog, count: int) -> list[float]:
    seconds = []
    for _ in range(count):
        begun = time.perf_counter()
        await log.head()
        seconds.append(time.perf_counter() - begun)
    return seconds


def report(taken: dict[tuple[str, str], Taken], heads: list[float]) -> None:
    for kind in KINDS:
        base = taken[kind, "entry"]
        for way in WAYS:
            one = taken[kind, way]
            polls = len(one.seconds)
            for what, unit, mine, its in (
                ("appends", "per_poll", one.appends / polls, base.appends / len(base.seconds)),
                ("bytes", "per_poll", one.bytes / polls, base.bytes / len(base.seconds)),
                ("p50", "ms", _ms(one, 50), _ms(base, 50)),
                ("p99", "ms", _ms(one, 99), _ms(base, 99)),
            ):
                print(f"poll_{kind}_{way}_{what} {mine:.2f} {unit} {mine / its:.2f} entry")
    head, entry = statistics.median(heads) * 1e3, _ms(taken["idle", "entry"], 50)
    print(f"log_head {head:.3f} ms {head / entry:.2f} idle_poll_by_entry")


def _ms(taken: Taken, percent: int) -> float:
    return statistics.quantiles(taken.seconds, n=100, method="inclusive")[percent - 1] * 1e3


async def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--polls", type=int, default=900, help="of each kind")
    options = parser.parse_args()
    load = synthetic.load_now()
    with tempfile.TemporaryDirectory(prefix="maar-bench-") as directory:
        report(*await measure(Path(directory), options.polls))
    synthetic.tell_of_neighbours(load)


if __name__ == "__main__":
    asyncio.run(main())
