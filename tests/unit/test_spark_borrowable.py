"""Which Spark a worker can borrow, and which cannot."""

from __future__ import annotations

from typing import Any

import pytest

from maar.model.errors import InvalidInput
from maar.ports.plans.runner import RunnerDied
from maar.spark.borrowed_spark import context_of, warm_up
from support.clock.virtual_time import Gate, run_virtually


def test_a_spark_connect_session_is_refused_with_a_sentence() -> None:
    connect = type("SparkSession", (), {"__module__": "pyspark.sql.connect.session"})
    with pytest.raises(InvalidInput, match=r"Spark Connect session.*Use a classic session"):
        context_of(connect())


def test_what_is_no_spark_at_all_is_refused_with_a_sentence() -> None:
    with pytest.raises(InvalidInput, match="a str is neither a SparkSession nor a SparkContext"):
        context_of("spark://host:7077")


class SlowToSubmit:
    """A runner whose first close comes before there is a job to cancel."""

    def __init__(self) -> None:
        self.closed = 0
        self._cancelled = Gate()

    def warm(self) -> None:
        self._cancelled.wait()
        raise RunnerDied("the job was cancelled")

    def close(self) -> None:
        self.closed += 1
        if self.closed > 1:
            self._cancelled.set()


def test_a_worker_that_is_stopped_before_its_warm_up_was_submitted_does_not_hang() -> None:
    runner: Any = SlowToSubmit()
    assert run_virtually(warm_up(runner, lambda: True)) is False
    assert runner.closed > 1
