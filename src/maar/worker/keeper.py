"""Which plans are ours, until when, and what the next poll has to say about them.

Decisions only: time is an argument, in nanoseconds of the worker's own monotonic clock. A lease is
counted from the moment its request was *sent*, so that we never believe in it longer than the
metastore does.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from maar.model.ids import FencingToken, PlanId, WorkerId
from maar.model.plan import LeasedPlan, PlanResult
from maar.ports.metastore import Outcome, PollReply, PollRequest, Renewal, Report

RENEWALS_PER_LEASE = 3  # two may be lost before the lease is

Key = tuple[PlanId, FencingToken]  # a plan can come back to us under a newer token


@dataclass(slots=True)
class Held:
    """A plan in one of our slots."""

    plan: LeasedPlan
    since_ns: int  # when the grant was asked for
    renewed_ns: int  # when the request was sent that granted or last renewed it
    until_ns: int
    started_told: bool = False  # the metastore knows that the work has begun
    lost: bool = False  # told to stop; its slot is busy until the run has returned


@dataclass(frozen=True, slots=True)
class Unanswered:
    """A report that the metastore has not answered yet."""

    report: Report
    until_ns: int
    sent: bool = False


@dataclass(frozen=True, slots=True)
class Decision:
    """What the shell has to do after a reply."""

    start: tuple[LeasedPlan, ...] = ()
    stop: tuple[LeasedPlan, ...] = ()
    settled: tuple[Outcome, ...] = ()


@dataclass(frozen=True, slots=True)
class Expired:
    """What the worker's own clock has ended without a word from the metastore."""

    stop: tuple[LeasedPlan, ...] = ()
    overdue: tuple[LeasedPlan, ...] = ()  # to be stopped too: whatever they do, they hang
    dropped: tuple[Report, ...] = ()


class Keeper:
    """The plans and reports of one worker. Bounded by its slots: a report was a plan once."""

    def __init__(self, *, poll_ns: int, plan_ns: int) -> None:
        self._poll_ns = poll_ns
        self._plan_ns = plan_ns  # a plan that runs longer is not renewed for ever
        self._held: dict[Key, Held] = {}
        self._reports: dict[Key, Unanswered] = {}

    def busy(self) -> int:
        """Slots taken, those of lost plans that have not ended yet included."""
        return len(self._held)

    def running(self) -> tuple[LeasedPlan, ...]:
        return tuple(held.plan for held in self._ours())

    def holds(self, plan: LeasedPlan) -> bool:
        """Whether the plan is still ours, as far as we know."""
        held = self._held.get(_key(plan))
        return held is not None and not held.lost

    def unanswered(self) -> int:
        return len(self._reports)

    def request(self, worker: WorkerId, *, slots: int, now_ns: int) -> PollRequest:
        """All that is due in one call; `slots` is 0 while no work is wanted."""
        return PollRequest(
            worker=worker,
            capacity=max(0, slots - self.busy()),
            renewals=self._renewals(now_ns),
            reports=tuple(waiting.report for waiting in self._reports.values()),
        )

    def next_poll_ns(self, *, slots: int, last_poll_ns: int) -> int | None:
        """When the metastore should hear of us next; None when there is nothing to say."""
        if any(not waiting.sent for waiting in self._reports.values()):
            return last_poll_ns
        due = [held.renewed_ns + _renewal_ns(held.plan) for held in self._ours()]
        untold = any(not held.started_told for held in self._ours())
        if slots > self.busy() or untold or self._reports:
            due.append(last_poll_ns + self._poll_ns)
        return min(due, default=None)

    def on_sent(self, request: PollRequest) -> None:
        """From here on its reports wait for their answer at the usual pace."""
        for report in request.reports:
            waiting = self._reports.get((report.plan, report.token))
            if waiting is not None:
                self._reports[report.plan, report.token] = Unanswered(
                    waiting.report, waiting.until_ns, sent=True
                )

    def on_reply(
        self, request: PollRequest, reply: PollReply, *, sent_ns: int, now_ns: int
    ) -> Decision:
        """Fold the answer to a request that was sent at `sent_ns`."""
        lost = self._renewed(request, reply, sent_ns)
        return Decision(
            start=tuple(self._granted(reply.granted, sent_ns, now_ns)),
            stop=tuple(lost),
            settled=tuple(self._settled(reply.outcomes)),
        )

    def on_expiry(self, now_ns: int) -> Expired:
        """Plans whose lease ran out by our own clock, and results that nobody wants any more."""
        stop = self._lose(held for held in self._ours() if now_ns > held.until_ns)
        overdue = self._lose(
            held for held in self._ours() if now_ns > held.since_ns + self._plan_ns
        )
        dropped = [key for key, waiting in self._reports.items() if now_ns > waiting.until_ns]
        reports = tuple(self._reports.pop(key).report for key in dropped)
        return Expired(stop=stop, overdue=overdue, dropped=reports)

    def on_end(
        self, plan: LeasedPlan, *, result: PlanResult | None, failure: str, now_ns: int
    ) -> bool:
        """A run has returned: free its slot, and report it if it is still ours.

        `result` None and `failure` '' stand for an attempt whose tasks were not seen to stop: it is
        forgotten, so that its lease expires in silence (S3).
        """
        held = self._held.pop(_key(plan), None)
        if held is None or held.lost or now_ns > held.until_ns:
            return False
        if result is not None or failure:
            # The newest token is accepted even after expiry while nobody took the plan (S1), so a
            # result is worth offering for one more lease; then somebody else has surely done it.
            self._reports[_key(plan)] = Unanswered(
                Report(plan.id, plan.token, result=result, failure=failure),
                until_ns=held.until_ns + plan.lease_ns,
            )
        return True

    def give_up(self) -> tuple[LeasedPlan, ...]:
        """Lose everything that still runs: the worker has to leave."""
        return self._lose(self._ours())

    def _lose(self, given: Iterable[Held]) -> tuple[LeasedPlan, ...]:
        lost = []
        for held in given:
            held.lost = True
            lost.append(held.plan)
        return tuple(lost)

    def _ours(self) -> list[Held]:
        return [held for held in self._held.values() if not held.lost]

    def _renewals(self, now_ns: int) -> tuple[Renewal, ...]:
        """None, or all at once: one entry of the log then carries them together."""
        ours = self._ours()
        if not any(
            not held.started_told or now_ns >= held.renewed_ns + _renewal_ns(held.plan)
            for held in ours
        ):
            return ()
        return tuple(
            Renewal(held.plan.id, held.plan.token, started=not held.started_told) for held in ours
        )

    def _renewed(
        self, request: PollRequest, reply: PollReply, sent_ns: int
    ) -> Iterable[LeasedPlan]:
        kept = {(kept.plan, kept.token): kept for kept in reply.kept}
        lost = []
        for renewal in request.renewals:
            key = (renewal.plan, renewal.token)
            held = self._held.get(key)
            if held is None or held.lost:
                continue  # it ended while the request was under way
            if key in kept:
                held.renewed_ns = sent_ns
                held.until_ns = sent_ns + kept[key].lease_ns
                held.started_told = held.started_told or renewal.started
            else:
                held.lost = True
                lost.append(held.plan)
        return lost

    def _granted(
        self, granted: tuple[LeasedPlan, ...], sent_ns: int, now_ns: int
    ) -> Iterable[LeasedPlan]:
        for plan in granted:
            until_ns = sent_ns + plan.lease_ns
            if now_ns > until_ns or _key(plan) in self._held:
                continue  # the reply came too late, or twice
            self._held[_key(plan)] = Held(
                plan, since_ns=sent_ns, renewed_ns=sent_ns, until_ns=until_ns
            )
            yield plan

    def _settled(self, outcomes: tuple[Outcome, ...]) -> Iterable[Outcome]:
        for outcome in outcomes:
            if self._reports.pop((outcome.plan, outcome.token), None) is not None:
                yield outcome


def _key(plan: LeasedPlan) -> Key:
    return plan.id, plan.token


def _renewal_ns(plan: LeasedPlan) -> int:
    return plan.lease_ns // RENEWALS_PER_LEASE
