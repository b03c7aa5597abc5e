"""The jobs of all kinds, ordered by urgency: the leader finds the most urgent without a search.

Of jobs with one weight, the one that was due first is never less urgent than another, whatever the
time is. So a list by due time for each weight is one by priority, and passing time moves nothing.
Jobs that need the same resources share a list: while those are occupied, none of them is looked at.
What may not run for a while is put aside until then. A round therefore costs as much as there are
lists and jobs handed out, not as much as there are jobs.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Callable, Iterator
from heapq import heappop, heappush
from typing import NamedTuple

import msgspec

from maar.model.plan import JobId, PlanKind
from maar.model.time import LeaseTime
from maar.scheduling.priority import NOT_DUE, priority

WOKEN_AT_ONCE = 200


class QueuedJob(msgspec.Struct, frozen=True, gc=False):
    """As plain as it can be: the garbage collector has nothing to do with it, and never walks what
    is known of very many jobs.
    """

    due_at: LeaseTime
    id: JobId
    weight: int
    resources: tuple[str, ...]


class _Alike(NamedTuple):
    """Jobs of one list."""

    kind: PlanKind
    weight: int
    resources: tuple[str, ...]


class JobQueue:
    def __init__(self) -> None:
        self._jobs: dict[JobId, QueuedJob] = {}
        self._lists: dict[_Alike, list[tuple[LeaseTime, JobId]]] = {}
        self._aside: dict[JobId, LeaseTime] = {}  # until when
        self._waking: list[tuple[LeaseTime, JobId]] = []  # a heap; some are outdated

    def __len__(self) -> int:
        return len(self._jobs)

    def put(self, job: QueuedJob) -> None:
        """New, or instead of what was known of it; it stays aside if it was."""
        if self._jobs.get(job.id) == job:
            return
        aside = self._aside.get(job.id)
        self.discard(job.id)
        self._jobs[job.id] = job
        if aside is not None:
            self._aside[job.id] = aside
        else:
            insort(self._lists.setdefault(_alike(job), []), (job.due_at, job.id))

    def discard(self, job: JobId) -> None:
        known = self._jobs.pop(job, None)
        if known is not None and self._aside.pop(job, None) is None:
            self._unlist(known)

    def _unlist(self, known: QueuedJob) -> None:
        alike = _alike(known)
        some = self._lists[alike]
        del some[bisect_left(some, (known.due_at, known.id))]
        if not some:
            del self._lists[alike]

    def put_aside(self, job: JobId, until: LeaseTime) -> None:
        known = self._jobs.get(job)
        if known is None:
            return
        if job not in self._aside:
            self._unlist(known)
        self._aside[job] = until
        heappush(self._waking, (until, job))

    @property
    def aside(self) -> int:
        """How many jobs are put aside."""
        return len(self._aside)

    def wake(self, now: LeaseTime) -> None:
        """Those come back whose time has come; of very many, the rest the next time."""
        for _ in range(WOKEN_AT_ONCE):
            if not self._waking or self._waking[0][0] > now:
                return
            until, job = heappop(self._waking)
            if self._aside.get(job) == until:
                self.bring_back(job)

    def bring_back(self, job: JobId) -> None:
        """What kept it aside, if anything, has changed."""
        if self._aside.pop(job, None) is not None:
            known = self._jobs[job]
            insort(self._lists.setdefault(_alike(known), []), (known.due_at, job))

    def candidates(
        self,
        now: LeaseTime,
        *,
        granularity_ns: int,
        kind: PlanKind | None = None,
        occupied: Callable[[tuple[str, ...]], bool] = lambda _: False,
    ) -> Iterator[QueuedJob]:
        """Jobs that are due, the most urgent first; of those whose resources are occupied only the
        most urgent, which may have to reserve them.

        The queue may be changed between two of them: what was listed then is not offered twice.
        """
        heads: list[tuple[int, LeaseTime, JobId, _Alike]] = []

        def push(alike: _Alike, after: tuple[LeaseTime, JobId] | None) -> None:
            some = self._lists.get(alike)
            at = bisect_left(some, after) if some and after else 0
            if some and after and at < len(some) and some[at] == after:
                at += 1
            if some and at < len(some):
                due_at, job = some[at]
                urgent = priority(
                    due_at, now=now, weight=alike.weight, granularity_ns=granularity_ns
                )
                if urgent != NOT_DUE:
                    heappush(heads, (-urgent, due_at, job, alike))

        for alike in list(self._lists):
            if kind is None or alike.kind == kind:
                push(alike, None)
        while heads:
            _, due_at, job, alike = heappop(heads)
            if job in self._jobs and job not in self._aside:
                yield self._jobs[job]
            if not occupied(alike.resources):
                push(alike, (due_at, job))


def _alike(job: QueuedJob) -> _Alike:
    return _Alike(job.id.kind, job.weight, job.resources)
