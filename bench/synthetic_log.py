"""Logs as the metastore writes them, made without one: what replay and snapshots are measured on.

`registrations` is the worst that a log can hold: nothing but segments of 20 services, each in an
entry of its own, and none ever merged. `pipeline` is everyday: of 20 segments one plan, scheduled,
leased, started, renewed and completed, level upon level, with cleaning behind it.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterable, Iterator
from contextlib import suppress
from itertools import islice

import metastore as bench
from maar.metastore.records import entries as e
from maar.model.block import BlockMeta
from maar.model.errors import HeadMoved, Retryable, TermLost
from maar.model.ids import FencingToken, Incarnation, PlanId, WorkerId
from maar.model.plan import LeasedPlan, PlanSpec, QueueKey
from maar.model.policy import Policy
from maar.model.time import SECOND_NS, LeaseTime, WallTime
from maar.ports.metastore.log import Candidate, Log, in_batches
from maar.services.compact.rules import COMPACT, COMPACTION

INCARNATION = Incarnation("0badcafe")
WORKER = WorkerId("bench")
RENEWALS = 2  # of a plan
KEPT_PLANS = 200  # that are done, before they are cleaned up behind
REST_S = 0.5
PACE_NS = 10_000_000  # of lease time from one entry to the next


class _Writer:
    """Numbers entries and stamps them."""

    def __init__(self) -> None:
        self.index = 0

    def put(self, entry: e.Entry) -> bytes:
        self.index += 1
        return e.encode(e.VERSION, self.now, WallTime(bench.START_NS), e.encode_entry(entry))

    @property
    def now(self) -> LeaseTime:
        return LeaseTime(SECOND_NS + self.index * PACE_NS)

    def opening(self, policy: Policy) -> Iterator[bytes]:
        yield self.put(e.Genesis(INCARNATION))
        yield self.put(e.TermStarted(1, "bench"))
        yield self.put(e.PolicySet(policy))


def registrations() -> Iterator[bytes]:
    """Bodies without an end."""
    writer, segments = _Writer(), bench.Segments()
    yield from writer.opening(Policy())
    while True:
        for meta in segments.make(bench.AT_ONCE, writer.now):
            yield writer.put(e.BlocksAdded((meta,)))


def pipeline() -> Iterator[bytes]:
    """Bodies without an end."""
    return _Pipeline().bodies()


class _Pipeline:
    def __init__(self) -> None:
        self._writer = _Writer()
        self._policy = Policy()
        self._lanes: dict[QueueKey, list[BlockMeta]] = {}
        self._done: deque[LeasedPlan] = deque()

    def bodies(self) -> Iterator[bytes]:
        segments = bench.Segments()
        yield from self._writer.opening(self._policy)
        while True:
            for meta in segments.make(bench.AT_ONCE, self._writer.now):
                yield self._writer.put(e.BlocksAdded((meta,)))
                yield from self._enter(meta)

    def _enter(self, meta: BlockMeta) -> Iterator[bytes]:
        """A lane that is full becomes a plan, whose output may fill the next."""
        key = COMPACTION.lane(meta)
        level = self._policy.level(key.level)
        lane = self._lanes.setdefault(key, [])
        lane.append(meta)
        if level is None or len(lane) < level.count:
            return
        del self._lanes[key]
        yield from self._plan(key, tuple(lane))

    def _plan(self, key: QueueKey, inputs: tuple[BlockMeta, ...]) -> Iterator[bytes]:
        put, writer = self._writer.put, self._writer
        ids = tuple(meta.id for meta in inputs)
        yield put(e.PlansScheduled((PlanSpec(COMPACT, False, key, ids, 3),)))
        plan = PlanId(writer.index, 0)
        until = LeaseTime(writer.now + self._policy.lease_ns)
        yield put(e.PlansLeased((e.Grant(plan, WORKER, until),)))
        token = FencingToken(INCARNATION, writer.index)
        yield put(e.PlansStarted((e.Start(plan, token),)))
        for _ in range(RENEWALS):
            until = LeaseTime(writer.now + self._policy.lease_ns)
            yield put(e.LeasesRenewed((e.Extension(plan, token, until),)))
        leased = LeasedPlan(plan, COMPACT, token, key, inputs, 1 << 40, 1)
        result = bench.result(leased)
        yield put(e.PlanCompleted(plan, token, result))
        self._done.append(leased)
        yield from self._clean()
        for output in result.outputs:
            yield from self._enter(output)

    def _clean(self) -> Iterator[bytes]:
        """Behind the plans of a while ago nothing is kept."""
        if len(self._done) <= KEPT_PLANS:
            return
        old = self._done.popleft()
        yield self._writer.put(e.BlocksForgotten(tuple(meta.id for meta in old.inputs)))
        yield self._writer.put(e.PlansArchived((old.id,)))
        yield self._writer.put(e.LeftoversSwept((e.AttemptKey(old.id, old.token),)))
        registration_floor = LeaseTime(self._writer.now - self._policy.registration_floor_lag_ns)
        if registration_floor > 0 and old.key.level == 1:
            yield self._writer.put(e.RegistrationFloor(registration_floor))


async def write(log: Log, bodies: Iterable[bytes], count: int) -> int:
    """Append so many of them to an empty log, as fast as it takes them; how many bytes there were.

    A disk that falls behind may cost an answer, or leadership: then we see what landed and go on.
    """
    term, head, size = await log.campaign(Candidate("bench")), await log.head(), 0
    for batch in in_batches(islice(bodies, count)):
        before = head
        while head == before:
            try:
                head = await log.append(batch, term=term, head=before)
                log.hold(term)
            except (Retryable, HeadMoved):
                await asyncio.sleep(REST_S)
                with suppress(Retryable):
                    head = await log.head()
            except TermLost:
                term = await log.campaign(Candidate("bench"))
        size += sum(map(len, batch))
    await log.resign(term)
    return size
