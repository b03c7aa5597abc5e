"""What Spark says of a failed job: the sentence, and whose fault it was."""

from __future__ import annotations

import pytest

from maar.runner import failure

HEAD = (
    "Job aborted due to stage failure: Task 0 in stage 4.0 failed 1 times, most recent failure: "
    "Lost task 0.0 in stage 4.0 (TID 4) (10.0.0.7 executor 1): "
)
TAIL = "\n\tat org.apache.spark.scheduler.Task.run(Task.scala:147)\nDriver stacktrace:"
TRACEBACK = (
    "[PYTHON_EXCEPTION] An exception was thrown from the Python worker: Traceback (most recent "
    'call last):\n  File "/s/pyspark.zip/pyspark/serializers.py", line 483, in loads\n'
    "    return cloudpickle.loads(obj, encoding=encoding)\n           ^^^^^^^^^^^^^^^^^^\n"
)


@pytest.mark.parametrize(
    ("message", "cause", "own"),
    [
        (
            HEAD + "org.apache.spark.SparkException: Python worker exited unexpectedly (crashed): "
            "\n" + TAIL,
            "The task's Python process died before it could answer: it was killed, ran out of "
            "memory or crashed in native code",
            True,
        ),
        (
            HEAD + "ExecutorLostFailure (executor 1 exited caused by one of the running tasks) "
            "Reason: Command exited with code 137" + TAIL,
            "Spark's executor 1 died under the plan: Command exited with code 137",
            True,
        ),
        (
            HEAD + "ExecutorLostFailure (executor 1 exited caused by one of the running tasks) "
            "Reason: Executor heartbeat timed out after 6841 ms" + TAIL,
            "Spark's executor 1 was lost under the plan: Executor heartbeat timed out after "
            "6841 ms",
            False,
        ),
        (
            HEAD + "ExecutorLostFailure (executor 1 exited caused by one of the running tasks) "
            "Reason: Remote RPC client disassociated. Likely due to containers exceeding "
            "thresholds, or network issues. Check driver logs for WARN messages." + TAIL,
            "Spark's executor 1 was lost under the plan: Remote RPC client disassociated. Likely "
            "due to containers exceeding thresholds, or network issues. Check driver logs for "
            "WARN messages",
            False,
        ),
        (
            HEAD + "ExecutorLostFailure (executor 3 exited unrelated to the running tasks) "
            "Reason: Executor decommission finished: spot instance taken back" + TAIL,
            "Spark's executor 3 was lost under the plan: Executor decommission finished: spot "
            "instance taken back",
            False,
        ),
        (
            HEAD + "java.io.IOException: No space left on device" + TAIL,
            "The disk is full where executor 1 runs on 10.0.0.7: No space left on device",
            False,
        ),
        (
            HEAD + 'java.io.IOException: Cannot run program "./maar/bin/python": error=2' + TAIL,
            "The executors have no ./maar/bin/python to run tasks with; docs/spark.md says how "
            "maar and its Python get there",
            False,
        ),
        (
            TRACEBACK + "ModuleNotFoundError: No module named 'maar'\n SQLSTATE: 38000",
            "The executors' Python could not load the task: ModuleNotFoundError: No module named "
            "'maar'; docs/spark.md says how maar and its Python get there",
            False,
        ),
        (
            "[SPARK_JOB_CANCELLED] Job 1 cancelled part of cancelled job group x SQLSTATE: XXKDA",
            "Spark cancelled the plan's job; somebody may have done so by hand",
            False,
        ),
        (
            HEAD + "java.io.IOException: org.apache.spark.SparkException: Failed to get "
            "broadcast_3_piece0 of broadcast_3" + TAIL,
            "Job aborted due to stage failure: Task 0 in stage 4.0 failed 1 times, most recent "
            "failure: java.io.IOException: org.apache.spark.SparkException: Failed to get "
            "broadcast_3_piece0 of broadcast_3",
            False,
        ),
        (
            HEAD + "java.lang.ClassCastException: who knows" + TAIL,
            "Job aborted due to stage failure: Task 0 in stage 4.0 failed 1 times, most recent "
            "failure: java.lang.ClassCastException: who knows",
            True,
        ),
        ("", "Spark failed without a message", False),
    ],
)
def test_a_failure_is_read_as_a_sentence_and_a_verdict(message: str, cause: str, own: bool) -> None:
    read = failure.read(message)
    assert (read.cause, read.plan_at_fault) == (cause, own)


def test_only_a_lost_executor_may_have_taken_others_with_it() -> None:
    lost = "ExecutorLostFailure (executor 1 exited caused by one of the running tasks) Reason: x"
    assert failure.read(HEAD + lost).lost_executor
    assert not failure.read(HEAD + "Python worker exited unexpectedly (crashed)").lost_executor


@pytest.mark.parametrize(
    "message",
    [
        "Job 3 cancelled because SparkContext was shut down",
        "Cannot call methods on a stopped SparkContext.",
        "SparkContext has been shutdown",
    ],
)
def test_a_spark_that_was_stopped_is_told_from_a_job_that_failed(message: str) -> None:
    assert failure.is_over(message)
    assert not failure.is_over(HEAD + "java.io.IOException: x")
