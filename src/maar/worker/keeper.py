"""Which plans this worker holds, until when, and what the next poll reports about them.

Decisions only: time is an argument, in nanoseconds of the worker's own monotonic clock. A lease is
counted from the moment its request was *sent*, so that the worker never trusts it longer than the
metastore does.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from maar.model.ids import FencingToken, PlanId, WorkerId
from maar.model.plan import RENEWALS_PER_LEASE, LeasedPlan, PlanKind, PlanResult
from maar.ports.plans.board import Outcome, PollReply, PollRequest, Renewal, Report

CAUSE_CHARS_MAX = 1000  # of a failure, for people

Key = tuple[PlanId, FencingToken]  # a plan can come back to us under a newer token


@dataclass(frozen=True, slots=True)
class AttemptFailure:
    """Why an attempt ended without a result; `own` False when the plan is not to blame (S11)."""

    cause: str
    plan_at_fault: bool = True


LEAVING = AttemptFailure("the worker is leaving", plan_at_fault=False)
OVERDUE = AttemptFailure("it ran longer than plans of its kind may (services.<kind>.limit_s)")

End = PlanResult | AttemptFailure | None  # None: its tasks were not seen to stop


@dataclass(slots=True)
class HeldPlan:
    """A plan in one of our slots, which is busy until its run has returned."""

    plan: LeasedPlan
    since_ns: int  # when the grant was asked for, or the latest run began
    renewed_ns: int  # when the request was sent that granted or last renewed it
    until_ns: int
    begun: bool = False  # somebody works on it: from here on a loss may be the plan's own fault
    begun_told: bool = False  # and the metastore knows
    stop: str = ""  # why the metastore wants it to end after its present task
    lost: bool = False  # it belongs to somebody else, or to nobody: what comes of it is not told
    given_up: AttemptFailure | None = (
        None  # why we stop it ourselves: told once its tasks have stopped
    )

    def ours(self) -> bool:
        return not self.lost and self.given_up is None

    def news(self) -> bool:
        return self.begun and not self.begun_told


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
    told: tuple[LeasedPlan, ...] = ()  # the metastore knows that these begin: they may write
    stop: tuple[LeasedPlan, ...] = ()
    settled: tuple[Outcome, ...] = ()


@dataclass(frozen=True, slots=True)
class ExpiredLeases:
    """What has ended by the worker's own clock, without an answer of the metastore."""

    stop: tuple[LeasedPlan, ...] = ()
    overdue: tuple[LeasedPlan, ...] = ()  # to be stopped too: whatever they do, they hang
    dropped: tuple[Report, ...] = ()


class Keeper:
    """The plans and reports of one worker. Bounded by its slots: a report was a plan once."""

    def __init__(
        self,
        *,
        poll_ns: int,
        kinds: tuple[PlanKind, ...],
        execute: PlanId | None = None,
        ignore_windows: bool = False,
    ) -> None:
        self._poll_ns = poll_ns
        self._kinds = kinds  # of plans that we can carry out
        self._execute = execute  # the one plan that we are here for
        self._ignore_windows = ignore_windows
        self._held: dict[Key, HeldPlan] = {}
        self._reports: dict[Key, Unanswered] = {}

    def busy(self) -> int:
        """Plans in our slots, those that were told to stop and have not yet included."""
        return len(self._held)

    def slots_taken(self) -> int:
        """A plan may take several."""
        return sum(held.plan.slots for held in self._held.values())

    def holds(self, plan: LeasedPlan) -> bool:
        """Whether the plan is still ours, as far as we know."""
        held = self._held.get(_key(plan))
        return held is not None and held.ours()

    def why_stop(self, plan: LeasedPlan) -> str:
        """Why a plan of several tasks should begin no other one, as the metastore said when it
        last renewed the lease; '' when it may go on.
        """
        held = self._held.get(_key(plan))
        return held.stop if held is not None else ""

    def reports_left(self) -> int:
        return len(self._reports)

    def request(self, worker: WorkerId, *, slots: int, now_ns: int) -> PollRequest:
        """All that is due in one call; `slots` is 0 while no work is wanted."""
        return PollRequest(
            worker=worker,
            capacity=max(0, slots - self.slots_taken()),
            renewals=self._renewals(now_ns),
            reports=tuple(waiting.report for waiting in self._reports.values()),
            kinds=self._kinds,
            execute=self._execute,
            ignore_windows=self._ignore_windows,
        )

    def next_poll_ns(self, *, slots: int, last_poll_ns: int) -> int | None:
        """When the metastore should hear of us next; None when there is nothing to say."""
        if any(not waiting.sent for waiting in self._reports.values()):
            return last_poll_ns
        if any(held.news() for held in self._ours()):
            return last_poll_ns  # it may not write before the metastore knows
        due = [held.renewed_ns + _renewal_ns(held.plan) for held in self._ours()]
        if slots > self.slots_taken() or self._reports:
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
        told, lost = self._note_renewals(request, reply, sent_ns)
        return Decision(
            start=tuple(self._take_grants(reply.granted, sent_ns, now_ns)),
            told=tuple(told),
            stop=tuple(lost),
            settled=tuple(self._settle(reply.outcomes)),
        )

    def on_begun(self, plan: LeasedPlan, now_ns: int) -> None:
        """Work on a plan begins, perhaps again: the next poll says so, and only then may it
        write.
        """
        held = self._held.get(_key(plan))
        if held is not None:
            held.begun = True
            held.since_ns = now_ns  # the time that faults took is not the plan's to answer for

    def on_expiry(self, now_ns: int) -> ExpiredLeases:
        """Plans whose lease ran out by our own clock, and results that nobody wants any more."""
        stop = [held for held in self._ours() if now_ns > held.until_ns]
        for held in stop:
            held.lost = True
        overdue = [held for held in self._ours() if _is_overdue(held, now_ns)]
        dropped = [key for key, waiting in self._reports.items() if now_ns > waiting.until_ns]
        reports = tuple(self._reports.pop(key).report for key in dropped)
        return ExpiredLeases(stop=_plans(stop), overdue=_give_up(overdue, OVERDUE), dropped=reports)

    def on_end(self, plan: LeasedPlan, end: End, *, now_ns: int) -> bool:
        """A run has returned: free its slot, and report it if it is still ours.

        An attempt whose tasks were not seen to stop is forgotten: its lease ends in silence (S3).
        """
        held = self._held.pop(_key(plan), None)
        if held is None or held.lost or now_ns > held.until_ns:
            return False
        if end is not None:
            # The newest token is accepted even after expiry while nobody took the plan (S1), so a
            # result is worth offering for one more lease; then somebody else has surely done it.
            self._reports[_key(plan)] = Unanswered(
                _report(plan, end if isinstance(end, PlanResult) else held.given_up or end),
                until_ns=held.until_ns + plan.lease_ns,
            )
        return True

    def give_up(self) -> tuple[LeasedPlan, ...]:
        """All that still runs is to be stopped: the worker has to leave."""
        return _give_up(self._ours(), LEAVING)

    def _ours(self) -> list[HeldPlan]:
        return [held for held in self._held.values() if held.ours()]

    def _renewals(self, now_ns: int) -> tuple[Renewal, ...]:
        """None, or all at once: one entry of the log then carries them together."""
        ours = self._ours()
        if not any(
            held.news() or now_ns >= held.renewed_ns + _renewal_ns(held.plan) for held in ours
        ):
            return ()
        return tuple(Renewal(held.plan.id, held.plan.token, started=held.news()) for held in ours)

    def _note_renewals(
        self, request: PollRequest, reply: PollReply, sent_ns: int
    ) -> tuple[list[LeasedPlan], list[LeasedPlan]]:
        """Plans that the metastore now knows to begin, and plans that are not ours any more."""
        kept = {(kept.plan, kept.token): kept for kept in reply.kept}
        told, lost = [], []
        for renewal in request.renewals:
            key = (renewal.plan, renewal.token)
            held = self._held.get(key)
            if held is None or held.lost:
                continue  # it ended while the request was under way
            if key in kept:
                held.renewed_ns = sent_ns
                held.until_ns = sent_ns + kept[key].lease_ns
                held.stop = kept[key].stop
                if renewal.started and not held.begun_told:
                    held.begun_told = True
                    told.append(held.plan)
            else:
                held.lost = True
                lost.append(held.plan)
        return told, lost

    def _take_grants(
        self, granted: tuple[LeasedPlan, ...], sent_ns: int, now_ns: int
    ) -> Iterable[LeasedPlan]:
        for plan in granted:
            until_ns = sent_ns + plan.lease_ns
            if now_ns > until_ns or _key(plan) in self._held:
                continue  # the reply came too late, or twice
            self._held[_key(plan)] = HeldPlan(
                plan, since_ns=sent_ns, renewed_ns=sent_ns, until_ns=until_ns
            )
            yield plan

    def _settle(self, outcomes: tuple[Outcome, ...]) -> Iterable[Outcome]:
        for outcome in outcomes:
            if self._reports.pop((outcome.plan, outcome.token), None) is not None:
                yield outcome


def _key(plan: LeasedPlan) -> Key:
    return plan.id, plan.token


def _plans(given: Iterable[HeldPlan]) -> tuple[LeasedPlan, ...]:
    return tuple(held.plan for held in given)


def _give_up(given: list[HeldPlan], why: AttemptFailure) -> tuple[LeasedPlan, ...]:
    """Stop renewing them; if they stop within their lease, the cause is reported."""
    for held in given:
        held.given_up = why
    return _plans(given)


def _report(plan: LeasedPlan, end: PlanResult | AttemptFailure) -> Report:
    if isinstance(end, PlanResult):
        return Report(plan.id, plan.token, result=end)
    return Report(
        plan.id, plan.token, failure=end.cause[:CAUSE_CHARS_MAX], plan_at_fault=end.plan_at_fault
    )


def _renewal_ns(plan: LeasedPlan) -> int:
    return plan.renew_ns or plan.lease_ns // RENEWALS_PER_LEASE


def _is_overdue(held: HeldPlan, now_ns: int) -> bool:
    limit_ns = held.plan.limit_ns
    return limit_ns > 0 and now_ns > held.since_ns + limit_ns
