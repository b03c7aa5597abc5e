"""The worker: polls, holds leases, runs plans in threads, reports with the token.

It polls for no plans until its runner is warm, stops plans whose lease it lost, and does not report
an attempt whose tasks it did not see stop. Plans that it had not begun when it was stopped are
handed back. When the runner's engine dies, `run` raises: the process has to restart, and its leases
expire.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from random import Random

from prometheus_client import CollectorRegistry

from maar.background import Threads, wait_any
from maar.model.errors import Corrupt, MaarError
from maar.model.ids import PlanId, WorkerId
from maar.model.plan import ROLLBACK, LeasedPlan, PlanResult, Rollback
from maar.ports.calls import Caller
from maar.ports.clock import Clock
from maar.ports.plans.board import (
    Answer,
    CommitPart,
    Outcome,
    PartCommitted,
    PlanBoard,
    PollReply,
    PollRequest,
    Report,
)
from maar.ports.plans.runner import AttemptFailed, JobRunner
from maar.worker import session
from maar.worker.backoff import Backoff
from maar.worker.executed import Executed
from maar.worker.keeper import LEAVING, OVERDUE, AttemptFailure, End, Keeper, Key
from maar.worker.metrics import WorkerMetrics
from maar.worker.settings import WorkerSettings

log = logging.getLogger("maar.worker")

FAULTS_MAX = 8  # of the engine or store, while we hold a plan; then its failure is reported
PLANS_MAX = 1000  # at once, whatever the runner says: each takes a thread
ASKED_MAX = 5  # polls for the one plan to execute; then whoever asked is told that nobody answers
SLOTS_ANSWER_S = 0.5  # a runner that takes longer to tell its slots has none for now
_MS = 1_000_000


Undo = Callable[[Rollback], PlanResult]  # in a thread


class Worker:
    """One worker. The runner belongs to the caller, who closes it after `run`."""

    def __init__(
        self,
        settings: WorkerSettings,
        metastore: Caller[PlanBoard],
        runner: JobRunner,
        clock: Clock,
        registry: CollectorRegistry,
        worker: WorkerId,
        *,
        random: Random | None = None,
        restarts: int = 0,  # counted by whoever restarts the process
        undo: Undo | None = None,  # None: a cleaning does what plans would have to undo first
        execute: PlanId | None = None,  # carry out this one plan, then stop
        ignore_windows: bool = False,  # of the schedule, for that plan
    ) -> None:
        self._settings = settings
        self._metastore = metastore
        self._runner = runner
        self._clock = clock
        self._worker = worker
        self._random = random or Random()
        self._metrics = WorkerMetrics(registry)
        self._metrics.restarts.set(restarts)
        self._poll_ns = settings.poll_interval_ms * _MS
        self._keeper = Keeper(
            poll_ns=self._poll_ns,
            kinds=runner.kinds(),
            execute=execute,
            ignore_windows=ignore_windows,
        )
        self._undo = undo
        self._execute = execute
        self.executed = Executed()  # what came of that plan
        self._silence = Backoff(settings.retry_min_ms * _MS, settings.retry_max_ms * _MS)
        self._faults = Backoff(settings.fault_min_ms * _MS, settings.fault_max_ms * _MS)
        self._faulty = 0  # plans that wait to be run again after a fault
        self._given_up: dict[Key, asyncio.Event] = {}  # of those that wait
        self._announced: dict[Key, asyncio.Event] = {}  # plans that wait to be begun
        self._slots = 0  # what the runner said last
        self._asking: asyncio.Task[int] | None = None
        self._wake = asyncio.Event()
        self._stopping = asyncio.Event()
        self._tasks: set[asyncio.Task[None]] = set()
        # For plans and for their ends: an engine that hangs must not keep asyncio's own threads.
        self._threads = Threads(2 * PLANS_MAX, "maar-plan")
        self._warm = False
        self._died: BaseException | None = None
        self._drain_until_ns = 0  # 0: not stopped
        self._last_poll_ns = 0

    def ready(self) -> str:
        """'' when plans can run here, else why not."""
        if self._died is not None:
            return "the engine died"
        if not self._warm:
            return "the engine is warming up"
        if self._stopping.is_set():
            return "stopping"
        return "" if self._slots else "the engine has no slots: it hangs, or waits for executors"

    def stop(self) -> None:
        """Take no new work, finish or give up what runs, then let `run` return."""
        if not self._stopping.is_set():
            self._drain_until_ns = self._clock.monotonic_ns() + self._settings.drain_ms * _MS
            log.info("draining worker=%s running=%d", self._worker, self._keeper.busy())
        self._stopping.set()
        self._wake.set()

    async def run(self) -> None:
        """Work until stopped; raises RunnerDied when the engine is gone."""
        begun_ns = self._clock.monotonic_ns()
        await asyncio.to_thread(self._runner.warm)
        now_ns = self._clock.monotonic_ns()
        await self._look_at_runner()
        log.info(
            "worker is ready worker=%s slots=%d ms=%d",
            self._worker,
            self._slots,
            (now_ns - begun_ns) // _MS,
        )
        self._warm = True
        self._last_poll_ns = now_ns - self._poll_ns  # the first poll is due at once
        try:
            while not self._is_drained():
                await self._turn()
        finally:
            self._metrics.capacity.set(0)
            self._threads.close()

    async def _turn(self) -> None:
        """Sleep until something is due, then say all of it in one poll."""
        await self._sleep_until(self._poll_due_ns(self._slots_wanted()))
        if self._died is not None:
            raise self._died
        self._give_up_expired()
        await self._look_at_runner()
        slots, now_ns = self._slots_wanted(), self._clock.monotonic_ns()
        due_ns = self._poll_due_ns(slots)
        if due_ns is not None and now_ns >= due_ns:
            await self._poll(self._keeper.request(self._worker, slots=slots, now_ns=now_ns))

    async def _look_at_runner(self) -> None:
        """How many plans it takes now, and whether it lives: RunnerDied when it does not.

        It may have to ask an engine that hangs; renewals do not wait for that.
        """
        patience_s = SLOTS_ANSWER_S if self._asking is None else 0.0
        if self._asking is None:
            self._asking = asyncio.create_task(asyncio.to_thread(self._runner.slots))
        done, _ = await asyncio.wait({self._asking}, timeout=patience_s)
        self._slots = 0
        if done:
            asked, self._asking = self._asking, None
            self._slots = min(asked.result(), PLANS_MAX)
        self._metrics.capacity.set(self._slots)
        self._metrics.running.set(self._keeper.busy())

    def _slots_wanted(self) -> int:
        """Slots that may hold plans now."""
        resting = self._faulty > 0 or self._clock.monotonic_ns() < self._faults.until_ns
        if resting or self._stopping.is_set():
            return 0
        return min(1, self._slots) if self._execute else self._slots

    def _poll_due_ns(self, slots: int) -> int | None:
        due_ns = self._keeper.next_poll_ns(slots=slots, last_poll_ns=self._last_poll_ns)
        return None if due_ns is None else max(due_ns, self._silence.until_ns)

    async def _sleep_until(self, due_ns: int | None) -> None:
        """Until the time, or until a run ends or somebody stops us."""
        now_ns = self._clock.monotonic_ns()
        # Once a poll interval at least: a dead engine and an expired lease must not go unnoticed.
        until_ns = min(now_ns + self._poll_ns, now_ns + self._poll_ns if due_ns is None else due_ns)
        if now_ns < self._drain_until_ns:
            until_ns = min(until_ns, self._drain_until_ns)
        await wait_any((until_ns - now_ns) / 1e9, self._wake)
        self._wake.clear()

    async def _poll(self, request: PollRequest) -> None:
        sent_ns = self._last_poll_ns = self._clock.monotonic_ns()
        self._keeper.on_sent(request)
        try:
            async with asyncio.timeout(self._settings.call_timeout_ms / 1000):
                reply = await self._metastore.call(request)
        except (MaarError, TimeoutError) as error:
            self._metrics.poll_failures.inc()
            wait_ns = self._silence.on_failure(
                now_ns=self._clock.monotonic_ns(), chance=self._random.random()
            )
            log.warning(
                "poll failed worker=%s times=%d again_in_ms=%d cause=%s",
                self._worker,
                self._silence.failures,
                wait_ns // _MS,
                str(error) or type(error).__name__,
            )
            if self._execute and not self._keeper.busy() and self._silence.failures >= ASKED_MAX:
                self.stop()
            return
        if self._silence.on_success():
            log.info("metastore answers again worker=%s", self._worker)
        self._carry_out(request, reply, sent_ns)

    def _carry_out(self, request: PollRequest, reply: PollReply, sent_ns: int) -> None:
        decision = self._keeper.on_reply(
            request, reply, sent_ns=sent_ns, now_ns=self._clock.monotonic_ns()
        )
        results = {(report.plan, report.token) for report in request.reports if report.result}
        for outcome in decision.settled:
            self._log_outcome(outcome, is_result=(outcome.plan, outcome.token) in results)
            self.executed.outcome = outcome
        if reply.execution is not None:
            self.executed.execution = reply.execution
            if reply.execution.answer is not Answer.GRANTED:
                self.stop()
        for plan in decision.told:
            self._end_wait(plan)
        self._cancel(decision.stop, cause="the metastore does not renew its lease any more")
        for plan in decision.start:
            log.info("plan granted plan=%s token=%s title=%s", plan.id, plan.token, plan.title)
            self._hold(asyncio.create_task(self._run_one(plan)))
        self._metrics.running.set(self._keeper.busy())

    def _log_outcome(self, outcome: Outcome, *, is_result: bool) -> None:
        plan, token = outcome.plan, outcome.token
        if not outcome.accepted:
            self._metrics.refused.inc()
            log.warning("report refused plan=%s token=%s cause=%s", plan, token, outcome.refusal)
            return
        log.info("report accepted plan=%s token=%s", plan, token)
        if is_result:
            self._metrics.completed.inc()

    def _give_up_expired(self) -> None:
        now_ns = self._clock.monotonic_ns()
        expired = self._keeper.on_expiry(now_ns)
        self._cancel(expired.stop, cause="its lease expired while the metastore did not answer")
        self._cancel(expired.overdue, cause=OVERDUE.cause)
        for report in expired.dropped:
            log.warning(
                "report dropped, its lease expired long ago plan=%s token=%s",
                report.plan,
                report.token,
            )
        if self._stopping.is_set() and now_ns >= self._drain_until_ns:
            self._cancel(self._keeper.give_up(), cause=LEAVING.cause)

    def _cancel(self, plans: tuple[LeasedPlan, ...], *, cause: str) -> None:
        for plan in plans:
            self._metrics.lost.inc()
            log.warning("plan given up plan=%s token=%s cause=%s", plan.id, plan.token, cause)
            self._end_wait(plan)
            self._hold(asyncio.create_task(self._cancel_one(plan)))

    def _end_wait(self, plan: LeasedPlan) -> None:
        for waits in (self._given_up, self._announced):
            if event := waits.get((plan.id, plan.token)):
                event.set()

    async def _cancel_one(self, plan: LeasedPlan) -> None:
        try:
            await self._threads.do(self._runner.cancel, plan)
        except Exception as error:  # noqa: BLE001  # RunnerDied or a bug: run() raises it for us
            self._die(error)

    async def _run_one(self, plan: LeasedPlan) -> None:
        """One plan from start to end, in a thread; its slot is busy until the thread is back."""
        begun_ns = self._clock.monotonic_ns()
        end: End
        try:
            await self._undo_first(plan)
            await self._announce(plan)
            end = await self._result(plan)
        except _NotBegun:
            end = LEAVING
        except AttemptFailed as failed:
            self.executed.cause = failed.cause
            self._metrics.failed.inc()
            log.warning(
                "plan failed plan=%s token=%s stopped=%s cause=%s",
                plan.id,
                plan.token,
                failed.stopped,
                failed.cause,
            )
            # Tasks that were not seen to stop may still write: silence lets the lease run out (S3).
            end = (
                AttemptFailure(failed.cause, plan_at_fault=failed.plan_at_fault)
                if failed.stopped
                else None
            )
        except Exception as error:  # noqa: BLE001  # RunnerDied or a bug: run() raises it for us
            self._die(error)
            return
        self._on_end(plan, begun_ns, end)
        self._wake.set()

    async def _undo_first(self, plan: LeasedPlan) -> None:
        """Finish the rollbacks that came with a plan: what its earlier attempts left goes first."""
        if self._undo is None or plan.kind == ROLLBACK:
            return
        for rollback in plan.rollbacks:
            log.info("rolling back first plan=%s rollback=%s", plan.id, rollback.plan)
            try:
                report = await self._undo_one(self._undo, rollback)
                reply = await self._metastore.call(PollRequest(self._worker, 0, reports=(report,)))
            except MaarError as error:
                cause = f"what an earlier attempt left was not rolled back: {error}"
                raise AttemptFailed(cause, stopped=True, plan_at_fault=False) from error
            for outcome in reply.outcomes:
                self._log_outcome(outcome, is_result=report.result is not None)

    async def _undo_one(self, undo: Undo, rollback: Rollback) -> Report:
        """An intent that cannot be followed waits for an operator, and the plan does not wait with
        it: all that the others name is gone.
        """
        try:
            return Report(rollback.plan, rollback.token, await self._threads.do(undo, rollback))
        except Corrupt as error:
            log.warning("rollback failed rollback=%s cause=%s", rollback.plan, error)
            return Report(rollback.plan, rollback.token, None, str(error))

    async def _announce(self, plan: LeasedPlan) -> None:
        """Tell the metastore that the plan begins, and wait until it knows: before that, nothing is
        written. A removable plan that has begun can only be completed or rolled back.
        """
        if self._stopping.is_set() or not self._keeper.holds(plan):
            raise _NotBegun
        key = plan.id, plan.token
        told = self._announced.setdefault(key, asyncio.Event())
        self._keeper.on_begun(plan, self._clock.monotonic_ns())
        self._wake.set()
        try:
            await told.wait()
        finally:
            self._announced.pop(key, None)
        if not self._keeper.holds(plan):
            raise _NotBegun

    async def _result(self, plan: LeasedPlan) -> PlanResult:
        """All of a plan at once, or, of a session, one task after the other."""
        if plan.repair is None:
            return await self._run_through_faults(plan)
        return await session.carry_out(
            plan,
            run=self._run_through_faults,
            commit=self._commit,
            may_go_on=lambda: not self._stopping.is_set() and self._keeper.holds(plan),
            why_stop=lambda: self._keeper.why_stop(plan),
            monotonic_ns=self._clock.monotonic_ns,
        )

    async def _commit(self, request: CommitPart) -> PartCommitted:
        async with asyncio.timeout(self._settings.call_timeout_ms / 1000):
            reply = await self._metastore.call(request)
        for block in reply.refused:
            log.info("copy refused by the metastore plan=%s cause=%s", request.plan, block)
        return reply

    async def _run_through_faults(self, plan: LeasedPlan) -> PlanResult:
        """Run a plan, and again after faults that were not its own: those must not count (S11).

        Meanwhile the worker keeps the lease and asks for nothing else: what is wrong with the store
        would only fail the next plan too.
        """
        faults = 0
        try:
            while True:
                try:
                    self._keeper.on_begun(plan, self._clock.monotonic_ns())
                    result = await self._threads.do(self._runner.run, plan)
                except AttemptFailed as failed:
                    if failed.plan_at_fault or not failed.stopped or faults == FAULTS_MAX:
                        raise
                    faults += 1
                    self._faulty += faults == 1
                    await self._wait_out(plan, failed)
                    if self._stopping.is_set() or not self._keeper.holds(plan):
                        raise
                else:
                    self._faults.on_success()
                    return result
        finally:
            self._faulty -= faults > 0

    async def _wait_out(self, plan: LeasedPlan, fault: AttemptFailed) -> None:
        self._metrics.faults.inc()
        now_ns = self._clock.monotonic_ns()
        wait_ns = self._faults.on_failure(now_ns=now_ns, chance=self._random.random())
        log.warning(
            "engine or store failed, plan is run again plan=%s token=%s again_in_ms=%d cause=%s",
            plan.id,
            plan.token,
            wait_ns // _MS,
            fault.cause,
        )
        key = plan.id, plan.token
        given_up = self._given_up.setdefault(key, asyncio.Event())
        try:
            await wait_any(wait_ns / 1e9, self._stopping, given_up)
        finally:
            del self._given_up[key]

    def _on_end(self, plan: LeasedPlan, begun_ns: int, end: End) -> None:
        now_ns = self._clock.monotonic_ns()
        ours = self._keeper.on_end(plan, end, now_ns=now_ns)
        word = "lost" if not ours else "completed" if isinstance(end, PlanResult) else "failed"
        ms = (now_ns - begun_ns) // _MS
        self._metrics.task_seconds.labels(plan.kind, word).observe(ms / 1000)
        self._metrics.running.set(self._keeper.busy())
        log.info("plan ended plan=%s token=%s end=%s ms=%d", plan.id, plan.token, word, ms)
        if self._execute is not None:
            self.executed.end = end if ours else None
            self.executed.lost = not ours
            self.stop()

    def _die(self, error: BaseException) -> None:
        self._died = self._died or error
        log.error("engine died worker=%s cause=%s", self._worker, error)
        self._wake.set()

    def _hold(self, task: asyncio.Task[None]) -> None:
        """The loop holds its tasks weakly; we hold them until they are done."""
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _is_drained(self) -> bool:
        """Nothing runs and nothing is left to report, or we have waited long enough."""
        if self._died is not None:
            raise self._died
        if not self._stopping.is_set():
            return False
        if self._clock.monotonic_ns() >= self._drain_until_ns + self._settings.cancel_ms * _MS:
            return True
        return self._keeper.busy() == 0 and self._keeper.reports_left() == 0


class _NotBegun(Exception):
    """The worker was stopped before it came to the plan, which goes back untouched."""
