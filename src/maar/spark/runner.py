"""Each plan is one Spark job of its own job group: it fails alone, and is cancelled alone."""

from __future__ import annotations

import functools
import logging
import re
import secrets
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
from py4j.protocol import Py4JError, Py4JJavaError
from pyspark.errors import PySparkRuntimeError

from maar.model.plan import LeasedPlan, PlanResult
from maar.ports.object_store import StoreSettings
from maar.ports.runner import PlanFailed, RunnerDied
from maar.spark import session
from maar.spark.scratch import Door, WorkerScratch
from maar.spark.session import SparkSettings
from maar.spark.task import (
    Answer,
    CarryOut,
    Done,
    OpenStore,
    Task,
    compact,
    load_compaction,
    warm_up,
    work,
)

log = logging.getLogger("maar.spark")

STOP_WAIT_S = 5.0  # a cancelled Python task writes on for a while, then is killed
_WARM_HOLD_S = 0.2
_GATEWAY_ERRORS = (Py4JError, OSError, EOFError)
_DISK_FULL = "No space left on device"
_CRASHED = re.compile(r"Python worker exited unexpectedly")
_NOISE = re.compile(r"^\s*(at |Driver stacktrace|Caused by|\.\.\. \d+ more|$)")


class SparkRunner:
    """A JobRunner. The functions that it is given run in tasks: importable there, or by value."""

    def __init__(
        self,
        settings: SparkSettings,
        store: StoreSettings,
        scratch: Path,
        *,
        open_store: OpenStore,
        carry_out: CarryOut = compact,
        load: Callable[[], None] = load_compaction,
    ) -> None:
        self._settings = settings
        self._store = store
        self._scratch_parent = scratch
        self._open_store = open_store
        self._load = load
        self._task = functools.partial(work, open_store=open_store, carry_out=carry_out)
        self._scratch: WorkerScratch | None = None
        self._context: Any = None
        self._cancelled: set[str] = set()
        self._running: set[str] = set()
        self._lock = threading.Lock()

    def warm(self) -> None:
        if self._context is not None:
            return
        self._scratch = WorkerScratch(self._scratch_parent)
        try:
            self._context = session.start(self._settings, self._scratch.path)
        except (PySparkRuntimeError, *_GATEWAY_ERRORS) as error:
            raise RunnerDied(f"Spark did not start: {_cause(error)}") from error
        slots = self.slots()
        task = functools.partial(
            warm_up,
            store=self._store,
            open_store=self._open_store,
            load=self._load,
            hold_s=_WARM_HOLD_S,
        )
        try:
            pids = self._context.parallelize(range(slots), slots).map(task).collect()
        except _GATEWAY_ERRORS as error:
            raise RunnerDied(f"Spark started but could not warm up: {_cause(error)}") from error
        log.info("spark is warm slots=%d processes=%d", slots, len(set(pids)))

    def slots(self) -> int:
        if session.is_local(self._settings):
            slots = session.local_slots(self._settings)
        else:
            slots = self._settings.slots or int(self._context.defaultParallelism)
        if self._context is not None:
            ended = session.jvm(self._context).poll()
            if ended is not None:
                raise RunnerDied(f"Spark's JVM ended with code {ended}")
        return slots

    def run(self, plan: LeasedPlan) -> PlanResult:
        group = _group(plan)
        door = self._door(plan)
        with self._lock:
            self._running.add(group)
        try:
            answer = self._submit(plan, group, door)
        except _GATEWAY_ERRORS as error:
            raise self._failure(error, group, door) from error
        finally:
            with self._lock:
                self._running.discard(group)
                self._cancelled.discard(group)
        if door is not None:
            door.shut(wait_s=STOP_WAIT_S)
        if isinstance(answer, Done):
            return answer.result
        raise PlanFailed(answer.cause, stopped=True, own=answer.own)

    def cancel(self, plan: LeasedPlan) -> None:
        group = _group(plan)
        with self._lock:
            if group not in self._running:
                return
            self._cancelled.add(group)
        try:
            # With future jobs: the group's job may not have been submitted yet.
            self._context._jsc.sc().cancelJobGroupAndFutureJobs(group)
        except _GATEWAY_ERRORS as error:
            raise RunnerDied(f"Spark cannot be told to cancel: {_cause(error)}") from error

    def close(self) -> None:
        """Stop Spark, wait until its JVM is gone, and leave nothing on this host's disk."""
        if self._context is not None:
            session.stop(self._context)
            self._context = None
        if self._scratch is not None:
            self._scratch.close()
            self._scratch = None

    def _submit(self, plan: LeasedPlan, group: str, door: Door | None) -> Answer:
        """One job of one task, from the calling thread: its job group is the thread's own."""
        body = msgspec.msgpack.encode(
            Task(plan, self._store, "" if door is None else str(door.directory))
        )
        context = self._context
        context.setJobGroup(group, plan.title, interruptOnCancel=True)
        context.setLocalProperty("spark.scheduler.pool", plan.service.value)
        answers = context.parallelize([body], 1).map(self._task).collect()
        if len(answers) != 1:  # the stream of results ended early: the JVM went away under it
            raise EOFError("Spark's answer was cut off")
        answer: Answer = msgspec.msgpack.decode(answers[0], type=Answer)
        return answer

    def _failure(self, error: Exception, group: str, door: Door | None) -> Exception:
        if not self._engine_answers():
            return RunnerDied(f"Spark's JVM is gone: {_cause(error)}")
        with self._lock:
            cancelled = group in self._cancelled
        own = isinstance(error, Py4JJavaError)
        if not own:  # the driver's side failed, a full disk perhaps: the job may be running still
            self._context._jsc.sc().cancelJobGroupAndFutureJobs(group)
        stopped = door is not None and door.shut(wait_s=STOP_WAIT_S)
        cause = "The plan was cancelled" if cancelled else _cause(error)
        return PlanFailed(cause, stopped=stopped, own=own and _DISK_FULL not in cause)

    def _engine_answers(self) -> bool:
        try:
            return not self._context._jsc.sc().isStopped()
        except _GATEWAY_ERRORS:
            return False

    def _door(self, plan: LeasedPlan) -> Door | None:
        """Only on this host can we see by a lock that a task has ended."""
        assert self._scratch is not None, "warm() comes first"
        if not session.is_local(self._settings):
            return None
        try:
            return self._scratch.door(f"{plan.id}-{plan.token}-{secrets.token_hex(4)}")
        except OSError as error:
            cause = f"There is no room for the plan in {self._scratch.path}: {error.strerror}"
            raise PlanFailed(cause, stopped=True, own=False) from error


def _group(plan: LeasedPlan) -> str:
    return f"maar {plan.id} {plan.token}"


def _cause(error: Exception) -> str:
    """One sentence out of what py4j and Spark say."""
    if not isinstance(error, Py4JJavaError):
        return f"{type(error).__name__}: {error}".splitlines()[0]
    try:
        message = str(error.java_exception.getMessage())
    except _GATEWAY_ERRORS:
        return "an error that its JVM did not live to tell"
    if _CRASHED.search(message):
        return (
            "The task's Python process died before it could answer: it was killed, ran out of "
            "memory or crashed in native code"
        )
    lines = [line.strip() for line in message.splitlines() if not _NOISE.match(line)]
    return lines[-1] if lines else "Spark failed without a message"
