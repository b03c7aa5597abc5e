"""Spark as a plan runner needs it: no retries, no speculation, fair, quiet, on loopback.

Only a SparkContext is started. Plans need no SQL, and leaving it out halves the start. A borrowed
Spark is checked and used, but never changed or stopped.
"""

from __future__ import annotations

import logging
import os
import re
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from py4j import protocol
from py4j.clientserver import ClientServer
from pyspark import SparkConf, SparkContext

from maar.model.errors import InvalidInput
from maar.runner import class_archive
from maar.runner.engine import failures_allowed
from maar.runner.java import check_java
from maar.runner.scratch import WorkerScratch
from maar.runner.settings import SparkSettings

log = logging.getLogger("maar.spark")

LOOPBACK = "127.0.0.1"
_LISTEN_VARIABLE = "SPARK_LOCAL_IP"
_LOCAL = re.compile(r"local(?:\[(\*|\d+)(?:,\s*\d+)?\])?")
_LOGGING = Path(__file__).with_name("log4j2.properties")

# What keeps Spark from running a task again: the name, what we need, and Spark's default.
ONCE = {
    "spark.task.maxFailures": ("1", "4"),
    "spark.stage.maxConsecutiveAttempts": ("1", "4"),
    "spark.speculation": ("false", "false"),
}


class SparkHandle:
    """A SparkContext, ours or borrowed; only its owner stops it."""

    def __init__(
        self, settings: SparkSettings, scratch: Path | None, borrowed: Any, *, jvm_leaves_s: float
    ) -> None:
        self._settings = settings
        self._scratch_parent = scratch
        self._jvm_leaves_s = jvm_leaves_s
        self._scratch: WorkerScratch | None = None
        self.borrowed = borrowed is not None
        self.context = borrowed

    def open(self) -> Any:
        """A running SparkContext, or InvalidInput that says what is wrong, or Unavailable."""
        if self.borrowed:
            check(self.context)
            return self.context
        assert self._scratch_parent is not None, "a Spark of our own needs a place for its files"
        check_java()
        keep_pages_on_loopback(self._settings)
        without_numpy()
        self._scratch = WorkerScratch(self._scratch_parent)
        conf = SparkConf(loadDefaults=False)
        conf.setAll(list(configuration(self._settings, self._scratch.path).items()))
        self.context = SparkContext(conf=conf)
        self.context.pythonExec = self._settings.python or sys.executable  # else `python3` of PATH
        check(self.context)
        return self.context

    def why_ended(self) -> str:
        """Why Spark has ended; '' while it has not, as far as is known."""
        if self.borrowed:
            return "" if self.context._jsc is not None else "its owner stopped Spark"
        code = jvm(self.context).poll()
        return "" if code is None else f"Spark's JVM ended with code {code}"

    def close(self) -> None:
        """Stop what is ours, see it gone, and leave nothing on this host's disk."""
        if self.borrowed:
            return
        if self.context is not None:
            stop(self.context, jvm_leaves_s=self._jvm_leaves_s)
            self.context = None
        if self._scratch is not None:
            self._scratch.close()
            self._scratch = None


def stop(context: Any, *, jvm_leaves_s: float = 10.0) -> None:
    """End Spark and its JVM, also one that is dead or hangs; then another can be started."""
    gateway, process = context._gateway, jvm(context)
    if process.poll() is None:
        stopping = threading.Thread(target=_quietly, args=(context.stop,), daemon=True)
        stopping.start()
        stopping.join(jvm_leaves_s)
        if stopping.is_alive():
            process.kill()
            stopping.join()
    _quietly(gateway.shutdown)
    process.stdin.close()  # which is what tells the JVM to leave
    try:
        process.wait(jvm_leaves_s)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
    # PySpark keeps the gateway for the life of the Python process, and has no call to forget it.
    SparkContext._gateway = SparkContext._jvm = None
    SparkContext._active_spark_context = None


def _quietly(call: Callable[[], object]) -> None:
    try:
        call()
    except Exception as error:  # noqa: BLE001  # whatever Spark says on its way out
        log.debug("error while stopping spark cause=%s", error)


def jvm(context: Any) -> Any:
    """The process of Spark's JVM."""
    return context._gateway.proc


def configuration(settings: SparkSettings, scratch: Path) -> dict[str, str]:
    """Spark's own settings; a name=value of `settings.conf` is added, and wins."""
    java_options = (
        f"-Dlog4j2.configurationFile={_LOGGING.as_uri()} "
        f"-Dmaar.spark.log.level={settings.log_level} "
        f"-XX:+ExitOnOutOfMemoryError {class_archive.options()} {settings.java_options}"
    )
    chosen = {
        "spark.app.name": "maar",
        "spark.master": master(settings),
        "spark.submit.deployMode": "client",
        "spark.driver.memory": settings.driver_memory,
        "spark.driver.extraJavaOptions": java_options,
        "spark.local.dir": str(scratch / "spark"),
        # No retries by Spark: an expired lease is handed out again instead (S3).
        **{name: wanted for name, (wanted, _) in ONCE.items()},
        # Plans run side by side, services in pools of their own.
        "spark.scheduler.mode": "FAIR",
        "spark.python.worker.reuse": "true",
        "spark.broadcast.blockSize": "64k",  # a job is told in a few kB, for which 4 MB are taken
        "spark.python.worker.faulthandler.enabled": "true",
        "spark.python.task.killTimeout": "500ms",  # a cancelled task writes on until it is killed
        "spark.ui.enabled": str(settings.ui).lower(),
        "spark.ui.port": str(settings.ui_port),
        "spark.ui.showConsoleProgress": "false",
        # What Spark remembers of plans that are over, with or without its page.
        "spark.ui.retainedJobs": "200",
        "spark.ui.retainedStages": "200",
        "spark.ui.retainedTasks": "1000",
    }
    if is_local(settings):
        chosen |= {"spark.driver.host": LOOPBACK, "spark.driver.bindAddress": LOOPBACK}
    if is_local(settings) and not settings.python:
        # This Python has maar. Another may not, and says so better in the task that warms it up.
        chosen["spark.python.daemon.module"] = "maar.runner.daemon"
    return chosen | dict(_pair(text) for text in settings.conf)


def check(context: Any) -> None:
    """Refuse a Spark that plans cannot be run on."""
    conf = dict(context.getConf().getAll())
    conf["spark.task.maxFailures"] = str(failures_allowed(context))
    check_no_retries(conf)
    check_pinned_threads(context)


def check_no_retries(conf: Mapping[str, str]) -> None:
    """Refuse a Spark that would run a task twice: two attempts may not share one lease (S3)."""
    for name, (wanted, default) in ONCE.items():
        found = conf.get(name, default)
        if found != wanted:
            raise InvalidInput(
                f"Spark runs with {name} = {found}, which lets it run a task again under the same "
                f"lease; maar needs {wanted}, set before Spark starts",
                reason="settings",
            )


def check_pinned_threads(context: Any) -> None:
    """Job groups are per thread only if every Python thread has a Java thread of its own."""
    if not isinstance(context._gateway, ClientServer):
        raise InvalidInput(
            "Spark runs with PYSPARK_PIN_THREAD=false, so that cancelling one plan would cancel "
            "others; remove that environment variable",
            reason="settings",
        )


def master(settings: SparkSettings) -> str:
    """The master's URL; a local one names its slots and allows no second try."""
    if not is_local(settings):
        return settings.master
    return f"local[{local_slots(settings)},1]"


def is_local(settings: SparkSettings) -> bool:
    return _LOCAL.fullmatch(settings.master) is not None


def local_slots(settings: SparkSettings) -> int:
    """How many tasks run at once on this host."""
    match = _LOCAL.fullmatch(settings.master)
    named = match.group(1) if match else None
    if settings.slots:
        return settings.slots
    if named == "*":
        return len(os.sched_getaffinity(0))
    return int(named or 1)


def without_numpy() -> None:
    """A driver hands no arrays to its JVM. PySpark looks for them among the arguments of each call,
    and loads NumPy, Arrow and its own tests for that, which is a third of a driver's memory.
    """
    protocol.INPUT_CONVERTER[:] = [
        each for each in protocol.INPUT_CONVERTER if not type(each).__name__.startswith("Numpy")
    ]


def keep_pages_on_loopback(settings: SparkSettings) -> None:
    """Spark's page listens where this variable of its JVM says, and everywhere without one.

    Under a cluster's master the variable also names the driver to its executors: there it is for
    whoever runs it to set. One that is set is obeyed.
    """
    if not settings.ui or os.getenv(_LISTEN_VARIABLE):
        return
    if is_local(settings):
        os.environ[_LISTEN_VARIABLE] = LOOPBACK  # noqa: TID251  # the JVM inherits it
    else:
        log.warning(
            "Spark's page can be reached from other machines, without a password "
            "setting=spark.ui port=%d remedy=%r",
            settings.ui_port,
            f"set {_LISTEN_VARIABLE}, or spark.ui to false",
        )


def _pair(text: str) -> tuple[str, str]:
    name, separator, value = text.partition("=")
    if not separator or not name.startswith("spark."):
        raise InvalidInput(
            f"{text!r} in spark.conf is not of the form spark.name=value", reason="settings"
        )
    return name, value
