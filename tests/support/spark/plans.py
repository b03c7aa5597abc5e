"""Plans that do as they are told, and real ones, for tests that run them on Spark."""

from __future__ import annotations

import asyncio
import errno
import os
import signal
import sys
import time
from itertools import count
from pathlib import Path

from pyspark import cloudpickle

from maar.block.format.segment import segment_meta, write_segment
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
    segment_id,
)
from maar.model.plan import Account, LeasedPlan, PlanResult, QueueKey
from maar.model.profile import RawProfile, profile_id
from maar.model.time import LeaseTime
from maar.ports.metastore.log_time import Now
from maar.ports.plans.board import Kept, Outcome, PollReply, PollRequest
from maar.ports.stores.object_store import ObjectStore
from maar.ports.stores.stores import Stores, stores_of
from maar.pprof import gzip
from maar.pprof.encode import encode
from maar.pprof.plain import (
    PlainFunction,
    PlainLine,
    PlainLocation,
    PlainProfile,
    PlainSample,
)
from maar.services.compact.rules import COMPACT
from maar.services.compact.run import run as compact
from maar.services.runs import Guard, carry_out
from support.worker.poll_only import PollOnly

TIME_NS = 1_790_000_000_000_000_000
LEASE_NS = 18_000_000_000
INCARNATION = Incarnation("0badcafe")

# The tasks' processes cannot import this module: send its functions by value.
cloudpickle.register_pickle_by_value(sys.modules[__name__])


def pretend(
    plan: LeasedPlan,
    *,
    store: ObjectStore | Stores,
    attempt: str,
    scratch: Path,
    wall_ns: int,
    guard: Guard,
) -> PlanResult:
    """What a plan does is written in the name of its store: '<verb> <argument>'."""
    store = stores_of(store).home
    if plan.key.store == MAIN_STORE:
        return carry_out(
            plan, store=store, attempt=attempt, scratch=scratch, wall_ns=wall_ns, guard=guard
        )
    verb, _, argument = str(plan.key.store).partition(" ")
    if verb == "compact":
        result = compact(
            plan, store=store, attempt=attempt, scratch=scratch, wall_ns=wall_ns, guard=guard
        )
        write_until(Path(argument), plan, store, attempt)
        return result
    (scratch / "spill").write_bytes(b"x")
    if verb == "fail":
        raise Corrupt(argument)
    if verb == "unavailable":
        raise Unavailable(argument)
    if verb == "bug":
        raise ValueError(argument)
    if verb == "full":
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), argument)
    if verb == "die":
        os.kill(os.getpid(), getattr(signal, argument))
    if verb == "exit":
        os._exit(int(argument))
    if verb == "kill-executor":
        os.kill(parent(os.getppid()), getattr(signal, argument))
    if verb == "spin":  # for so many seconds
        until = time.monotonic() + float(argument)
        while time.monotonic() < until:
            pass
    if verb in ("write", "guarded"):
        write_until(Path(argument), plan, store, attempt, guard if verb == "guarded" else None)
    while verb in ("wait", "kill-executor") and not Path(argument).exists():
        time.sleep(0.02)
    store.create(f"attempts/{plan.token}/{attempt}", str(scratch).encode())
    return PlanResult(COMPACT, (), Account(kept=plan.id.index, duplicates=0, quarantined=0))


def write_until(
    gate: Path, plan: LeasedPlan, store: ObjectStore, attempt: str, guard: Guard | None = None
) -> None:
    """As a task that nobody stopped would."""
    while not gate.exists():
        if guard is not None:
            guard()
        store.create(f"writes/{plan.token}/{attempt}/{time.monotonic_ns()}-{os.getpid()}", b"")
        time.sleep(0.02)


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


def parent(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def nothing_to_load() -> None:
    return None


_token = count(1)


def plan(does: str, *, index: int = 1, lease_ns: int = LEASE_NS) -> LeasedPlan:
    return LeasedPlan(
        id=PlanId(index, 0),
        kind=COMPACT,
        token=FencingToken(INCARNATION, next(_token)),
        key=QueueKey(StoreName(does), TenantId("acme"), Shard(1), 0),
        inputs=(),
        target_block_bytes=1 << 20,
        lease_ns=lease_ns,
        title=f"compact {index}.0 level 0 shard 1 acme",
    )


def profile(number: int) -> RawProfile:
    """A small one, unlike any other."""
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
    return RawProfile(
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


def segment(
    store: ObjectStore, number: int, *, at: int = 0, incarnation: Incarnation = INCARNATION
) -> BlockMeta:
    """A segment of one small profile, in the store; `at` is its lease time."""
    written = write_segment([profile(number)])
    block = segment_id(lease_time_ns=at, entropy=number)
    key = keys.segment(shard=Shard(1), block=block, incarnation=incarnation)
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


def leased_plan(*inputs: BlockMeta, index: int = 1, held_by: Path | None = None) -> LeasedPlan:
    """A compaction of real segments; one that is held by a file goes on until it exists."""
    name = MAIN_STORE if held_by is None else StoreName(f"compact {held_by}")
    return LeasedPlan(
        id=PlanId(index, 0),
        kind=COMPACT,
        token=FencingToken(INCARNATION, next(_token)),
        key=QueueKey(name, NO_TENANT, Shard(1), 0),
        inputs=inputs,
        target_block_bytes=1 << 20,
        lease_ns=LEASE_NS,
    )


def writers(store: ObjectStore, token: FencingToken) -> dict[str, set[int]]:
    """Attempts that have written under a token, and the process ids of each."""
    found: dict[str, set[int]] = {}
    for info in store.list(f"writes/{token}/"):
        attempt, _, rest = info.key.removeprefix(f"writes/{token}/").partition("/")
        found.setdefault(attempt, set()).add(int(rest.split("-")[1]))
    return found


class OnePlanEach(PollOnly):
    """A metastore that grants plans once, keeps every lease, and notes when it heard of whom."""

    def __init__(self, plans: list[LeasedPlan]) -> None:
        self._waiting = list(plans)
        self.results: list[PlanResult] = []
        self.heard: dict[PlanId, list[float]] = {plan.id: [] for plan in plans}
        self.done = asyncio.Event()
        self._left = len(plans)
        self._lease_ns = {plan.id: plan.lease_ns for plan in plans}

    async def now(self) -> Now:
        return Now(INCARNATION, LeaseTime(0), 0)

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
            self.results.append(report.result)
            self.heard[report.plan].append(now)
            self._left -= 1
        if self._left == 0:
            self.done.set()
        return PollReply(
            granted=granted,
            kept=tuple(Kept(r.plan, r.token, self._lease_ns[r.plan]) for r in request.renewals),
            outcomes=tuple(Outcome(r.plan, r.token, True) for r in request.reports),
        )
