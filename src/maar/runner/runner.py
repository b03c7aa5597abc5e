"""Each plan is one Spark job of its own job group: it fails alone, and is cancelled alone.

Most plans are one task. A kind may cut its plans into several, which hold the same lifeline, and
joins what they answer.
"""

from __future__ import annotations

import functools
import logging
import secrets
import threading
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from maar.model.errors import MaarError
from maar.model.ids import FencingToken, PlanId
from maar.model.plan import LeasedPlan, PlanKind, PlanResult
from maar.model.trouble import Trouble
from maar.ports.plans.runner import AttemptFailed, RunnerDied
from maar.ports.stores.object_store import StoreSettings
from maar.ports.stores.stores import OpenStore, StorePlaces, ignore, places_of
from maar.runner import engine, failure, seats
from maar.runner.engine import Engine
from maar.runner.failure import JobFailure
from maar.runner.lifeline import Lifeline, Lifelines
from maar.runner.pulse import Pulse
from maar.runner.seats import Scaling, SeenExecutors
from maar.runner.session import SparkHandle
from maar.runner.settings import SparkSettings
from maar.runner.task import (
    Answer,
    CarryShare,
    Done,
    Task,
    TaskFailed,
    warm_up,
    work,
    work_share,
)
from maar.services import runs
from maar.services.kinds import KINDS
from maar.services.runs import CarryOut

log = logging.getLogger("maar.spark")

FROZEN_BEATS = 5  # without an answer: no slots
FALLEN_MAX = 1000
GROUPS_MAX = 1000  # of sessions, that are remembered
_WARM_HOLD_S = 0.2


class RunnerTiming(NamedTuple):
    """How long a runner waits for Spark."""

    limit_s: float = 1800.0  # a task writes nothing after that, unless its plan says another time
    seat_wait_s: float = 300.0  # a plan without a seat is given up: another worker may have one
    stop_wait_s: float = 10.0  # Spark itself kills the process of a cancelled task within five
    beat_s: float = 1.0  # Spark is asked for its slots this often
    dead_beats: int = 60  # without an answer: a new start is better than to wait on
    jvm_leaves_s: float = 10.0  # a JVM that is told to stop is killed after this


Key = tuple[PlanId, FencingToken]
Cut = Callable[[LeasedPlan], tuple[LeasedPlan, ...]]
Join = Callable[[LeasedPlan, Sequence[PlanResult]], PlanResult]


class RowSource(NamedTuple):
    """Where the rows of a plan come from that has a source of its own: Spark brings them, shuffled
    or not, and each partition is a task that holds the plan's lifeline.
    """

    rows: Callable[[Any], Any]  # from a SparkContext to an RDD
    carry_out: CarryShare  # in tasks
    tell: Callable[[Sequence[bytes]], None]  # the notes of all tasks, when all have succeeded


@dataclass(eq=False, slots=True)
class _Run:
    """One submission of a plan. A group that was cancelled stays so: it has one of its own."""

    plan: LeasedPlan
    line: Lifeline
    group: str
    given_up: str = ""  # why we ended it ourselves

    def give_up(self, cause: str) -> None:
        """End its tasks ourselves: Spark would let them go on for seconds."""
        self.given_up = cause
        self.line.cut()


class SparkRunner:
    """A JobRunner. The functions that it is given run in tasks: importable there, or by value."""

    def __init__(
        self,
        settings: SparkSettings,
        stores: StoreSettings | StorePlaces,
        scratch: Path | None,  # None for a Spark that we do not own
        *,
        open_store: OpenStore,
        carry_out: CarryOut = runs.carry_out,
        cut: Cut = runs.cut,  # these two run in this process
        join: Join = runs.join,
        load: Callable[[], None] = runs.load,
        kinds: tuple[PlanKind, ...] = KINDS.on_engine(),
        timing: RunnerTiming = RunnerTiming(),  # noqa: B008 - it is frozen
        borrowed: Any = None,  # a SparkContext of somebody else, who alone may stop it
        source: RowSource | None = None,
        told: Callable[[Trouble], None] = ignore,  # of copies that tasks could not read
    ) -> None:
        self._settings = settings
        self._stores = places_of(stores)
        self._told = told
        self.session = SparkHandle(settings, scratch, borrowed, jvm_leaves_s=timing.jvm_leaves_s)
        self._load = load
        self._kinds = kinds
        self._open_store = open_store
        self._cut, self._join = cut, join
        self._source = source
        self.task = functools.partial(work, open_store=open_store, carry_out=carry_out)
        self.timing = timing
        self._lock = threading.Lock()
        self.runs: dict[Key, _Run] = {}
        self._groups: dict[Key, str] = {}  # of sessions that have had a task here
        self._fallen: deque[str] = deque(maxlen=FALLEN_MAX)  # executors, once per plan they took
        self._warming = ""  # the group of the job that warms
        self._lines: Lifelines | None = None
        self._engine: Engine | None = None
        self._pulse: Pulse[int] | None = None
        self._scaling = Scaling()

    def warm(self) -> None:
        if self._pulse is not None:
            return
        try:
            self._start()
            slots = self._look()
        except (RunnerDied, MaarError):
            raise
        except Exception as error:  # py4j and Spark raise what they like; RunnerDied says it all
            raise RunnerDied(f"Spark did not start: {_failure(error).cause}") from error
        try:
            answers = self._warm_up(slots)
            if slots == 0:  # the executors had not come yet
                slots = self._look()
                answers = self._warm_up(slots)
        except Exception as error:  # as above
            raise RunnerDied(f"Spark cannot warm up: {_failure(error).cause}") from error
        refused = [answer for answer in answers if isinstance(answer, str)]
        if refused:
            raise RunnerDied(f"Spark cannot warm up: {refused[0]}")
        self._pulse = Pulse(self._look, first=slots, beat_s=self.timing.beat_s)
        log.info("spark is warm slots=%d processes=%d", slots, len(set(answers)))

    def kinds(self) -> tuple[PlanKind, ...]:
        return self._kinds

    def slots(self) -> int:
        assert self._pulse is not None, "warm() comes first"
        ended = self.session.why_ended()
        if ended:
            raise RunnerDied(ended)
        if self._pulse.error is not None:
            cause = self._pulse.error
            raise RunnerDied(f"Spark's JVM is gone: {_failure(cause).cause}") from cause
        if self._pulse.missed >= self.timing.dead_beats:
            silent_s = self.timing.dead_beats * self.timing.beat_s
            raise RunnerDied(f"Spark's JVM has not answered for {silent_s:.0f} s")
        return 0 if self._pulse.missed >= FROZEN_BEATS else self._pulse.answer

    def run(self, plan: LeasedPlan) -> PlanResult:
        assert self._lines is not None, "warm() comes first"
        if self._source is None and not self._cut(plan):
            return self._join_results(plan, [])  # there is nothing to carry out
        line = self._lines.new(timeout_s=plan.limit_ns / 1e9 or self.timing.limit_s)
        key = plan.id, plan.token
        with self._lock:
            group = self._groups.pop(key, None) or f"maar {plan.id} {plan.token} {_chance()}"
            run = self.runs[key] = _Run(plan, line, group)
        waiting = threading.Timer(self.timing.seat_wait_s, self._give_up_waiting, [run])
        waiting.daemon = True
        waiting.start()
        try:
            answers = self._submit(run)
        except Exception as error:  # as above: it becomes AttemptFailed or RunnerDied
            raise self._describe_failure(run, error) from error
        finally:
            waiting.cancel()
            line.cut()
            with self._lock:
                if self.runs.get(key) is run:
                    del self.runs[key]
        for trouble in (each for answer in answers for each in answer.troubles):
            self._told(trouble)
        failures = [answer for answer in answers if isinstance(answer, TaskFailed)]
        if not failures:
            self._keep_group(run)
            if self._source is not None:
                self._source.tell([each.note for each in answers if isinstance(each, Done)])
            return self._join_results(
                plan, [each.result for each in answers if isinstance(each, Done)]
            )
        failure = min(failures, key=lambda each: not each.plan_at_fault)
        stopped = line.wait_gone(wait_s=self.timing.stop_wait_s)
        raise AttemptFailed(failure.cause, stopped=stopped, plan_at_fault=failure.plan_at_fault)

    def _keep_group(self, run: _Run) -> None:
        """Tasks of a session are jobs of one group, unless it was cancelled: a group stays so."""
        if run.plan.repair is None or run.given_up:
            return
        with self._lock:
            self._groups[run.plan.id, run.plan.token] = run.group
            while len(self._groups) > GROUPS_MAX:
                del self._groups[next(iter(self._groups))]

    def _join_results(self, plan: LeasedPlan, results: list[PlanResult]) -> PlanResult:
        try:
            return self._join(plan, results)
        except MaarError as error:  # all its tasks have answered, and so have ended
            raise AttemptFailed(str(error), stopped=True) from error

    def cancel(self, plan: LeasedPlan) -> None:
        with self._lock:
            run = self.runs.get((plan.id, plan.token))
        if run is None:
            return
        assert self._engine is not None
        run.give_up("The plan was cancelled")
        try:
            self._engine.cancel(run.group)
        except engine.ERRORS as error:
            raise RunnerDied(f"Spark cannot cancel a job: {_failure(error).cause}") from error

    def close(self) -> None:
        """End our jobs in a borrowed Spark; of our own Spark also the JVM and its files."""
        with self._lock:
            runs = list(self.runs.values())
        if self._pulse is not None:
            self._pulse.close()
        if self._lines is not None:
            self._lines.close()
        if self.session.borrowed and self._engine is not None and not self._engine.is_over():
            self._cancel_groups([self._warming, *(run.group for run in runs)])
        self.session.close()

    def _start(self) -> None:
        context = self.session.open()
        conf: dict[str, str] = dict(context.getConf().getAll())
        host = conf.get("spark.driver.host", "127.0.0.1")
        self._lines = Lifelines(
            bind=conf.get("spark.driver.bindAddress", host),
            host=host,
            port=self._settings.lifeline_port,
        )
        self._scaling = seats.scaling(conf)
        self._engine = Engine(context)

    def _warm_up(self, slots: int) -> list[int | str]:
        """A process per slot, with all loaded that a plan needs; a sentence where it cannot be."""
        assert self._lines is not None
        line = self._lines.new(timeout_s=self.timing.limit_s)
        self._warming = f"maar warm-up {secrets.token_hex(4)}"
        task = functools.partial(
            warm_up,
            store=self._stores.home.settings,
            open_store=self._open_store,
            load=self._load,
            lifeline=line.address,
            hold_s=_WARM_HOLD_S,
        )
        context, tasks = self.session.context, max(1, slots)
        context.setJobGroup(self._warming, "maar warms up", interruptOnCancel=True)
        try:
            answers: list[int | str] = context.parallelize(range(tasks), tasks).map(task).collect()
        finally:
            line.cut()
        return answers

    def _look(self) -> int:
        """Slots that Spark has for us now."""
        assert self._engine is not None
        if self.session.borrowed or self._scaling.most:
            seen = self._engine.look()
        else:  # nobody else has tasks there, and none is added
            seen = SeenExecutors(self._engine.seats(), executors=0, running=0)
        strangers = self._strangers(seen) if self.session.borrowed else 0
        return seats.slots(seen, self._scaling, strangers=strangers, limit=self._settings.slots)

    def _strangers(self, seen: SeenExecutors) -> int:
        """Tasks of others, in a borrowed Spark."""
        with self._lock:
            ours = sum(run.line.tasks() for run in self.runs.values())
        return max(0, seen.running - ours)

    def _submit(self, run: _Run) -> list[Answer]:
        """One job, from the calling thread: its job group is the thread's own."""
        context = self.session.context
        context.setJobGroup(run.group, run.plan.title, interruptOnCancel=True)
        context.setLocalProperty("spark.scheduler.pool", run.plan.kind)
        tasks = self._tasks(run)
        answers = tasks.collect()
        if len(answers) != tasks.getNumPartitions():  # the JVM went away under the results
            raise EOFError("Spark's answer was cut off")
        return [msgspec.msgpack.decode(answer, type=Answer) for answer in answers]

    def _tasks(self, run: _Run) -> Any:
        """An RDD whose partitions are the tasks of a plan, each with one answer."""
        context, address = self.session.context, run.line.address
        if self._source is None:
            parts = [Task(part, self._stores, address) for part in self._cut(run.plan)]
            bodies = [msgspec.msgpack.encode(task) for task in parts]
            return context.parallelize(bodies, len(bodies)).map(self.task)
        task = functools.partial(
            work_share,
            body=msgspec.msgpack.encode(Task(run.plan, self._stores, address)),
            open_store=self._open_store,
            carry_out=self._source.carry_out,
        )
        return self._source.rows(context).mapPartitionsWithIndex(task)

    def progress(self) -> float:
        """How much of the plans that run is done, by tasks; 0 while nothing is known."""
        with self._lock:
            groups = [run.group for run in self.runs.values()]
        if self._engine is None or not groups:
            return 0.0
        try:
            done, tasks = map(sum, zip(*map(self._engine.progress, groups), strict=True))
        except engine.ERRORS:
            return 0.0
        return done / tasks if tasks else 0.0

    def _describe_failure(self, run: _Run, error: Exception) -> Exception:
        """The failure of a run without an answer, after waiting for its tasks to end."""
        assert self._engine is not None
        verdict = _failure(error)
        if self._engine.is_over() or failure.is_over(verdict.cause):
            return RunnerDied(f"Spark is gone: {verdict.cause}")
        run.line.cut()
        if not engine.message(error):  # the driver's side failed: the job may be running still
            self._cancel_groups([run.group])
        stopped = run.line.wait_gone(wait_s=self.timing.stop_wait_s)
        if run.given_up:
            return AttemptFailed(run.given_up, stopped=stopped, plan_at_fault=False)
        begun = bool(run.line.places)  # a task that did not come so far has killed nobody
        plan_at_fault = (
            verdict.plan_at_fault
            and begun
            and not (verdict.lost_executor and self._fell_with_others(run))
        )
        return AttemptFailed(verdict.cause, stopped=stopped, plan_at_fault=plan_at_fault)

    def _fell_with_others(self, run: _Run) -> bool:
        """Whether its executor ran another of our plans: then either may have killed it."""
        with self._lock:
            others = {
                place
                for other in self.runs.values()
                if other is not run
                for place in other.line.places
            }
            shared = any(place in others or place in self._fallen for place in run.line.places)
            self._fallen.extend(run.line.places)
        return shared

    def _give_up_waiting(self, run: _Run) -> None:
        if not run.line.places:
            run.give_up(f"Spark had no free slot for it within {self.timing.seat_wait_s:.0f} s")
            self._cancel_groups([run.group])

    def _cancel_groups(self, groups: list[str]) -> None:
        assert self._engine is not None
        for group in groups:
            try:
                self._engine.cancel(group)
            except engine.ERRORS as error:
                log.warning(
                    "spark job not cancelled group=%r cause=%s", group, _failure(error).cause
                )


def _chance() -> str:
    return secrets.token_hex(4)


def _failure(error: BaseException) -> JobFailure:
    said = engine.message(error)
    if said:
        return failure.read(said)
    text = f"{type(error).__name__}: {error}".splitlines()[0].removesuffix(": ")
    return JobFailure(text, plan_at_fault=False)
