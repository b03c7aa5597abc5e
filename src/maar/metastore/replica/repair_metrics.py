"""Metrics of repairs: how much is repaired, how old that is, and what is left to do.

The gauges are of tenants with blocks, of so many at most. They are set anew in rounds, one every
half minute at most, of which each step sets those of a few tenants: a thousand take some minutes.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from itertools import islice

from prometheus_client import CollectorRegistry, Counter, Gauge

from maar.metastore.decide import jobs
from maar.metastore.decide.stores import NO_DAMAGE
from maar.metastore.records.effects import (
    AttemptEnded,
    Completed,
    CopiesLost,
    CopyAdded,
    CopyEnded,
    Effect,
    RangesRepaired,
)
from maar.metastore.state.state import MetaState
from maar.metastore.views import repairs
from maar.model.ids import NO_TENANT, TenantId
from maar.model.time import SECOND_NS, LeaseTime
from maar.ports.operator.repairs import RepairJob

EVERY_NS = 30 * SECOND_NS
TENANTS_MAX = 1_000  # that have gauges of their own
TENANTS_AT_ONCE = 10


class RepairMetrics:
    def __init__(self, registry: CollectorRegistry) -> None:
        def gauge(name: str, text: str, *labels: str) -> Gauge:
            return Gauge(f"maar_repair_{name}", text, labels, registry=registry)

        def counter(name: str, text: str, *labels: str) -> Counter:
            return Counter(f"maar_repair_{name}", text, labels, registry=registry)

        job = ("tenant", "type")
        self.ratio = gauge("repaired_ratio", "Share of a tenant that is repaired", *job)
        self.age = gauge("since_last_repaired_seconds", "Age of the oldest part of it", *job)
        self.remaining = gauge("remaining_seconds", "Work that is left of it", *job)
        self.sessions = counter("sessions", "Sessions that have ended", *job, "successful")
        self.lost = gauge("lost_blocks", "Blocks of which no copy is whole")
        self.ranges = counter("ranges", "Ranges that were repaired")
        self.checked = counter("checked_copies", "Copies that were read")
        self.bytes = counter("checked_bytes", "Bytes that were read for it")
        self.copies = counter("copies", "Copies that came into the index")
        self.damaged = counter("damaged_copies", "Copies that were missing or not whole")
        self.found_lost = counter("found_lost_blocks", "Blocks that were found without a copy")
        self._observed_at: LeaseTime | None = None
        self._todo: deque[TenantId] = deque()  # of the present round
        self._shown: dict[tuple[str, str], LeaseTime] = {}  # with gauges, and since which round
        self._tenants: set[TenantId] = set()  # whose sessions are counted by themselves

    def count(self, effects: Sequence[Effect], state: MetaState) -> None:
        """`state` is as the effects left it."""
        for effect in effects:
            match effect:
                case RangesRepaired():
                    self.ranges.inc(effect.ranges)
                    self.checked.inc(effect.checked)
                    self.bytes.inc(effect.bytes)
                case CopyAdded():
                    self.copies.inc()
                case CopyEnded() if effect.what not in NO_DAMAGE:
                    self.damaged.inc()
                case CopiesLost():
                    self.found_lost.inc(len(effect.blocks))
                case Completed(again=False) | AttemptEnded():
                    self._count_session(effect, state)
                case _:
                    pass

    def _count_session(self, effect: Completed | AttemptEnded, state: MetaState) -> None:
        """A session that another one goes on with has succeeded; every attempt that fails counts,
        since each has held stores for a while.
        """
        plan = state.finished.get(effect.plan) or state.plans.get(effect.plan)
        if plan is None or plan.repair is None:
            return
        tenant = plan.key.tenant
        if tenant not in self._tenants and len(self._tenants) >= TENANTS_MAX:
            tenant = NO_TENANT
        self._tenants.add(tenant)
        successful = "yes" if isinstance(effect, Completed) else "no"
        self.sessions.labels(tenant, plan.repair.type, successful).inc()

    def observe(self, state: MetaState, now: LeaseTime) -> None:
        self.lost.set(len(state.repairs.lost))
        if not self._todo:
            if self._observed_at is not None and now - self._observed_at < EVERY_NS:
                return
            self._observed_at = now
            self._todo.extend(islice(state.tenants_with_blocks(), TENANTS_MAX))
        at = jobs.moment(state, now)
        for _ in range(min(TENANTS_AT_ONCE, len(self._todo))):
            for job in repairs.status_of(state, self._todo.popleft(), at):
                self._show(job)
        if not self._todo:
            self._hide_gone()

    def _show(self, job: RepairJob) -> None:
        whose = (job.tenant, job.type)
        assert self._observed_at is not None
        self._shown[whose] = self._observed_at
        self.ratio.labels(*whose).set(job.percent_repaired / 100.0)
        self.remaining.labels(*whose).set(job.remaining_s)
        if job.age_s is not None:
            self.age.labels(*whose).set(job.age_s)

    def _hide_gone(self) -> None:
        """Jobs that the round did not come to have no gauges any more."""
        for whose in [each for each, since in self._shown.items() if since != self._observed_at]:
            del self._shown[whose]
            for gauge in (self.ratio, self.age, self.remaining):
                gauge.remove(*whose)
