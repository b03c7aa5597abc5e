"""Turns Spark's error of a failed job into a sentence, and decides whose fault it was (S11).

Tasks return their own failures as values. Handled here is what kept a task from answering.
"""

from __future__ import annotations

import re
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class JobFailure:
    """Why a job failed; `own` False when the plan is not to blame."""

    cause: str
    plan_at_fault: bool
    lost_executor: bool = False  # together with whatever else it ran


ENVIRONMENT = "docs/spark.md says how maar and its Python get there"

_STOPPED = re.compile(r"SparkContext (was|has been) (shut ?down|stopped)|stopped SparkContext")
_CANCELLED = re.compile(r"SPARK_JOB_CANCELLED|cancelled part of cancelled job group")
_CRASHED = re.compile(r"Python worker exited unexpectedly")
_LOST = re.compile(
    r"ExecutorLostFailure \((executor \S+) exited (.*?)\)(?: Reason: (.*?))?(?:\n|$)", re.DOTALL
)
_NOT_BY_A_TASK = re.compile(
    r"heartbeat timed out|disassociated|worker lost|decommission|preempted|network", re.IGNORECASE
)
_NO_PYTHON = re.compile(r'Cannot run program "([^"]*)"')
_DISK_FULL = "No space left on device"
_IN_A_TASK = re.compile(r"Lost task ")
_NOT_THE_TASK = re.compile(
    r"FetchFailed|Failed to get broadcast|Failed to connect to|cannot run anywhere|"
    r"Python worker failed to connect back"
)
_WHERE = re.compile(r"Lost task \S+ in stage \S+ \(TID \d+\) \((\S+) (executor \S+?)\): *")
_NOISE = re.compile(
    r"^\s*(at |Driver stacktrace|Caused by|\.\.\. \d+ more|SQLSTATE|File \"|[\^~]+\s*$|$)"
)


def read(message: str) -> JobFailure:
    """The verdict on a job whose exception has this message."""
    lost = _LOST.search(message)
    if lost is not None:
        return _executor(*lost.groups(default=""))
    if _CANCELLED.search(message):
        return JobFailure(
            "Spark cancelled the plan's job; somebody may have done so by hand", False
        )
    if _CRASHED.search(message):
        return JobFailure(
            "The task's Python process died before it could answer: it was killed, ran out of "
            "memory or crashed in native code",
            plan_at_fault=True,
        )
    if _DISK_FULL in message:
        return JobFailure(
            f"The disk is full where {_where(message)}: {_DISK_FULL}", plan_at_fault=False
        )
    python = _NO_PYTHON.search(message)
    if python is not None:
        return JobFailure(
            f"The executors have no {python[1]} to run tasks with; {ENVIRONMENT}", False
        )
    if "PYTHON_EXCEPTION" in message:  # all that happens inside a task is answered as a value
        return JobFailure(
            f"The executors' Python could not load the task: {_last(message)}; {ENVIRONMENT}", False
        )
    plan_at_fault = _IN_A_TASK.search(message) is not None and _NOT_THE_TASK.search(message) is None
    return JobFailure(_last(message), plan_at_fault)


def is_over(message: str) -> bool:
    """Spark itself was stopped: no job will run there any more."""
    return _STOPPED.search(message) is not None


def _executor(name: str, how: str, reason: str) -> JobFailure:
    reason = " ".join(reason.split()).rstrip(".")
    plan_at_fault = how == "caused by one of the running tasks" and not _NOT_BY_A_TASK.search(
        reason
    )
    died = "died" if plan_at_fault else "was lost"
    told = reason or how
    return JobFailure(
        f"Spark's {name} {died} under the plan: {told}", plan_at_fault, lost_executor=True
    )


def _where(message: str) -> str:
    where = _WHERE.search(message)
    return f"{where[2]} runs on {where[1]}" if where else "Spark runs"


def _last(message: str) -> str:
    """The line that says most: the end of a traceback, without Java's frames."""
    lines = [line.strip() for line in message.splitlines() if not _NOISE.match(line)]
    if not lines:
        return "Spark failed without a message"
    return _WHERE.sub("", lines[0] if _WHERE.search(lines[0]) else lines[-1])
