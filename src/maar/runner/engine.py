"""Calls to a running Spark's JVM, apart from running jobs."""

from __future__ import annotations

from typing import Any

from py4j.protocol import Py4JError, Py4JJavaError
from pyspark.errors import PySparkException

from maar.ports.plans.runner import RunnerDied
from maar.runner.seats import SeenExecutors

# In a process that ever made a SparkSession, PySpark turns some of py4j's errors into its own.
ERRORS = (Py4JError, PySparkException, OSError, EOFError)


class Engine:
    """A SparkContext; every call blocks, for as long as its JVM hangs."""

    def __init__(self, context: Any) -> None:
        self._spark = context._jsc.sc()
        self._profile = self._spark.resourceProfileManager().defaultResourceProfile()
        self._tracker = context._jsc.statusTracker()

    def seats(self) -> int:
        """How many tasks its executors run at once; RunnerDied when there will never be any again.

        This is asked once a second, also of an idle Spark, and each call costs both processes.
        """
        if self._spark.isStopped():
            raise RunnerDied("Spark was stopped")
        return int(self._spark.maxNumConcurrentTasks(self._profile))

    def look(self) -> SeenExecutors:
        """The same, with how many executors there are and what they run now."""
        seats = self.seats()
        executors = list(self._tracker.getExecutorInfos())
        return SeenExecutors(
            seats=seats,
            executors=len(executors) - 1,  # the driver is listed too
            running=sum(int(executor.numRunningTasks()) for executor in executors),
        )

    def progress(self, group: str) -> tuple[int, int]:
        """How many tasks of a job group have ended, and how many there are."""
        done = tasks = 0
        for job in self._tracker.getJobIdsForGroup(group):
            info = self._tracker.getJobInfo(job)
            for stage in info.stageIds() if info is not None else ():
                seen = self._tracker.getStageInfo(stage)
                if seen is not None:
                    done += int(seen.numCompletedTasks())
                    tasks += int(seen.numTasks())
        return done, tasks

    def is_over(self) -> bool:
        """Stopped, or gone."""
        try:
            return bool(self._spark.isStopped())
        except ERRORS:
            return True

    def cancel(self, group: str) -> None:
        # With future jobs: the group's job may not have been submitted yet.
        self._spark.cancelJobGroupAndFutureJobs(group)


def failures_allowed(context: Any) -> int:
    """How often Spark tries a task, whatever its settings say: a local master has its own rule."""
    return int(context._jsc.sc().taskScheduler().maxTaskFailures())


def message(error: BaseException) -> str:
    """What Java says of an error that came from there; '' when it is one of Python's."""
    try:
        if isinstance(error, Py4JJavaError):
            return str(error.java_exception.getMessage() or error.java_exception.toString())
        if isinstance(error, PySparkException):
            return str(getattr(error, "_desc", None) or error)
    except ERRORS:
        return "an error whose text is lost, since the JVM has ended"
    return ""
