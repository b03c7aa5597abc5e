"""What happens inside a Spark task: one plan, from bytes to bytes, in a Python worker.

A failure is answered as a value, so that the worker process lives on with all that it has loaded,
and the driver reads a sentence and not a stack trace.
"""

from __future__ import annotations

import contextlib
import logging
import os
import secrets
import tempfile
import time
from collections import deque
from collections.abc import Callable, Iterator
from functools import cache, partial
from pathlib import Path
from typing import Any

import msgspec
from pyspark import TaskContext

from maar.model.errors import LeaseLost, MaarError, Retryable
from maar.model.plan import LeasedPlan, PlanResult
from maar.model.trouble import Trouble
from maar.ports.stores.object_store import StoreSettings
from maar.ports.stores.stores import OpenStore, StorePlaces, Stores
from maar.runner.give_back import GiveBackWhenIdle
from maar.runner.lifeline import hold_lifeline
from maar.runner.scratch import WorkerScratch
from maar.services.runs import CarryOut, Noted

log = logging.getLogger("maar.spark")

TROUBLES_MAX = 100  # copies that one task tells of; repair finds the others itself

CarryShare = Callable[..., Noted]  # a CarryOut that also takes `rows` and `share`


class Task(msgspec.Struct, frozen=True):
    """A plan on its way into a Python worker."""

    plan: LeasedPlan
    stores: StorePlaces
    lifeline: str


class Done(msgspec.Struct, frozen=True, tag=True):
    result: PlanResult
    note: bytes = b""  # what the task tells its driver beside that, and nobody else
    troubles: tuple[Trouble, ...] = ()  # copies that it could not read


class TaskFailed(msgspec.Struct, frozen=True, tag=True):
    cause: str
    plan_at_fault: bool  # False: the store or the host was at fault, not the plan
    troubles: tuple[Trouble, ...] = ()


Answer = Done | TaskFailed

_NOT_OWN = (Retryable, OSError, LeaseLost)
_MEMORY = GiveBackWhenIdle()  # of this process


def work(body: bytes, *, open_store: OpenStore, carry_out: CarryOut | CarryShare) -> bytes:
    """Carry one task out and answer."""
    with _MEMORY.task():
        return msgspec.msgpack.encode(_carry_out(body, open_store, carry_out))


def _carry_out(body: bytes, open_store: OpenStore, carry_out: CarryOut | CarryShare) -> Answer:
    task = msgspec.msgpack.decode(body, type=Task)
    troubles: deque[Trouble] = deque(maxlen=TROUBLES_MAX)
    try:
        with hold_lifeline(task.lifeline) as hold, _room() as scratch:
            result = carry_out(
                task.plan,
                store=Stores(task.stores, open_store, told=troubles.append),
                attempt=attempt_id(),
                scratch=scratch,
                wall_ns=time.time_ns(),
                guard=hold.check,
            )
        done, note = result if isinstance(result, Noted) else (result, b"")
        return Done(done, note, tuple(troubles))
    except Exception as error:
        # Whatever went wrong is returned to the driver as the plan's failure.
        if not isinstance(error, MaarError):  # our own errors say it all in their sentence
            log.exception("task failed plan=%s token=%s", task.plan.id, task.plan.token)
        at_fault = not isinstance(error, _NOT_OWN)
        return TaskFailed(sentence(error), plan_at_fault=at_fault, troubles=tuple(troubles))


def work_share(
    share: int, rows: Iterator[Any], *, body: bytes, open_store: OpenStore, carry_out: CarryShare
) -> Iterator[bytes]:
    """Carry out the share of a plan that a partition of rows is."""
    mine = partial(carry_out, rows=rows, share=share)
    yield work(body, open_store=open_store, carry_out=mine)


def warm_up(
    _slot: int,
    *,
    store: StoreSettings,
    open_store: OpenStore,
    load: Callable[[], None],
    lifeline: str,
    hold_s: float,
) -> int | str:
    """Make a Python worker ready: its process id, which tells how many are, or why it is not."""
    try:
        with hold_lifeline(lifeline):
            load_once(load)
            open_store(store)
            time.sleep(hold_s)  # keep the slot, so that the next task gets another process
    except MaarError as error:
        return sentence(error)
    return os.getpid()


@cache
def load_once(load: Callable[[], None]) -> None:
    """Not again in a process that was forked after it: that would copy what it shares."""
    load()


def attempt_id() -> str:
    """Unlike any other, also if Spark ran the same task twice (S3)."""
    context = TaskContext.get()
    return f"{context.attemptNumber()}-{context.taskAttemptId()}-{secrets.token_hex(6)}"


def sentence(error: BaseException) -> str:
    """An error as a sentence: ours are sentences, others need the name of their type."""
    text = " ".join(str(error).split())
    if isinstance(error, MaarError) and text:
        return text
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


@contextlib.contextmanager
def _room() -> Iterator[Path]:
    """A directory for this attempt alone, gone when it ends; those of killed ones are wiped."""
    room = WorkerScratch(_host_scratch() / "maar")
    try:
        yield room.path
    finally:
        room.close()


def _host_scratch() -> Path:
    """Where Spark wants temporary files, shared by the executors of a host where there is one."""
    executor = os.getenv("SPARK_EXECUTOR_DIRS")  # a standalone worker's; each has its own below
    if executor:
        return Path(executor.partition(os.pathsep)[0]).parent
    return Path((os.getenv("SPARK_LOCAL_DIRS") or tempfile.gettempdir()).partition(",")[0])
