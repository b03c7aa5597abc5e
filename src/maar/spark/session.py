"""Starts Spark as a plan runner needs it: no retries, no speculation, fair, quiet, on loopback.

Only a SparkContext is started. Plans need no SQL, and leaving it out halves the start.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Annotated, Any, Literal

from msgspec import Meta, Struct
from py4j.clientserver import ClientServer
from pyspark import SparkConf, SparkContext

from maar.model.errors import InvalidInput, Unavailable

JAVA_LEAST = 17
_JAVA_TIMEOUT_S = 20
_JVM_LEAVES_S = 10
_JAVA_VERSION = re.compile(r'version "(?:1\.)?(\d+)')
_LOCAL = re.compile(r"local(?:\[(\*|\d+)(?:,\s*\d+)?\])?")
_MASTER = r"^(local(\[(\*|[1-9]\d*)(,\s*\d+)?\])?|(spark|k8s)://.+|yarn)$"
_LOGGING = Path(__file__).with_name("log4j2.properties")


class SparkSettings(Struct, frozen=True, kw_only=True):
    """Where and how plans are run."""

    master: Annotated[str, Meta(pattern=_MASTER)] = "local[*]"
    slots: Annotated[int, Meta(ge=0, le=10_000)] = 0  # plans at once; 0: as many as cores
    driver_memory: Annotated[str, Meta(pattern=r"^\d+[mg]$")] = "1g"
    ui: bool = False
    ui_port: Annotated[int, Meta(ge=0, le=65_535)] = 4050
    log_level: Literal["off", "error", "warn", "info", "debug"] = "warn"
    python: str = ""  # what runs the tasks; this interpreter when empty
    java_options: str = "-XX:+UseSerialGC -XX:TieredStopAtLevel=1"  # the JVM only schedules
    conf: tuple[str, ...] = ()  # more of Spark's own settings, as name=value


def start(settings: SparkSettings, scratch: Path) -> Any:
    """A running SparkContext, or InvalidInput that says what is missing, or Unavailable."""
    check_java()
    conf = SparkConf(loadDefaults=False)
    conf.setAll(list(configuration(settings, scratch).items()))
    context = SparkContext(conf=conf)
    context.pythonExec = settings.python or sys.executable  # else whatever `python3` PATH has
    try:
        check_no_retries(dict(context.getConf().getAll()))
        check_pinned_threads(context)
    except InvalidInput:
        stop(context)
        raise
    return context


def stop(context: Any) -> None:
    """End Spark and its JVM, also one that is dead already; afterwards another can be started."""
    gateway, process = context._gateway, jvm(context)
    if process.poll() is None:
        context.stop()
    gateway.shutdown()
    process.stdin.close()  # which is what tells the JVM to leave
    try:
        process.wait(_JVM_LEAVES_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
    # PySpark keeps the gateway for the life of the Python process, and has no call to forget it.
    SparkContext._gateway = SparkContext._jvm = None
    SparkContext._active_spark_context = None


def jvm(context: Any) -> Any:
    """The process of Spark's JVM."""
    return context._gateway.proc


def configuration(settings: SparkSettings, scratch: Path) -> dict[str, str]:
    """Spark's own settings; a name=value of `settings.conf` is added, and wins."""
    java_options = (
        f"-Dlog4j2.configurationFile={_LOGGING.as_uri()} "
        f"-Dmaar.spark.log.level={settings.log_level} "
        f"-XX:+ExitOnOutOfMemoryError {settings.java_options}"
    )
    chosen = {
        "spark.app.name": "maar",
        "spark.master": master(settings),
        "spark.submit.deployMode": "client",
        "spark.driver.memory": settings.driver_memory,
        "spark.driver.extraJavaOptions": java_options,
        "spark.local.dir": str(scratch / "spark"),
        # The lease is the retry (S3).
        "spark.task.maxFailures": "1",
        "spark.stage.maxConsecutiveAttempts": "1",
        "spark.speculation": "false",
        # Plans run side by side, services in pools of their own.
        "spark.scheduler.mode": "FAIR",
        "spark.python.worker.reuse": "true",
        "spark.python.worker.faulthandler.enabled": "true",
        "spark.python.task.killTimeout": "500ms",  # a cancelled task writes on until it is killed
        "spark.ui.enabled": str(settings.ui).lower(),
        "spark.ui.port": str(settings.ui_port),
        "spark.ui.showConsoleProgress": "false",
    }
    if is_local(settings):
        chosen |= {"spark.driver.host": "127.0.0.1", "spark.driver.bindAddress": "127.0.0.1"}
    return chosen | dict(_pair(text) for text in settings.conf)


def check_no_retries(conf: dict[str, str]) -> None:
    """Refuse a Spark that would run a task twice: two attempts may not share one lease (S3)."""
    wanted = {
        "spark.task.maxFailures": "1",
        "spark.stage.maxConsecutiveAttempts": "1",
        "spark.speculation": "false",
    }
    for name, value in wanted.items():
        if conf.get(name) != value:
            raise InvalidInput(
                f"Spark runs with {name} = {conf.get(name)}, which lets it run a task again under "
                f"the same lease; maar needs {value}. Remove it from spark.conf",
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


def check_java() -> None:
    """Say that Java is missing now, and not in a stack trace later."""
    home = os.getenv("JAVA_HOME")  # not a setting of ours: it is where Spark's own scripts look
    java = str(Path(home) / "bin" / "java") if home else shutil.which("java")
    needs = f"Spark needs Java {JAVA_LEAST} or newer to run maar's compaction"
    if java is None or not os.access(java, os.X_OK):
        where = f"JAVA_HOME is {home}, which has no bin/java" if home else "there is none on PATH"
        raise InvalidInput(f"{needs}, and {where}; install a JDK, such as OpenJDK {JAVA_LEAST}")
    try:
        shown = subprocess.run(
            [java, "-version"], capture_output=True, text=True, timeout=_JAVA_TIMEOUT_S, check=False
        ).stderr
    except (OSError, subprocess.TimeoutExpired) as error:
        # Java is there: a host without memory or time to spare may have some later.
        raise Unavailable(f"{needs}, and {java} does not run: {error}") from error
    version = java_version(shown)
    if version < JAVA_LEAST:
        found = f"version {version}" if version else "no Java that we know"
        raise InvalidInput(f"{needs}, and {java} is {found}; install OpenJDK {JAVA_LEAST}")


def java_version(shown: str) -> int:
    """The feature version in what `java -version` prints; 0 when there is none."""
    match = _JAVA_VERSION.search(shown)
    return int(match.group(1)) if match else 0


def _pair(text: str) -> tuple[str, str]:
    name, separator, value = text.partition("=")
    if not separator or not name.startswith("spark."):
        raise InvalidInput(
            f"{text!r} in spark.conf is not of the form spark.name=value", reason="settings"
        )
    return name, value
