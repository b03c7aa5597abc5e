"""A Spark session as somebody else has one, which maar borrows."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import pytest
from pyspark.sql import SparkSession

from maar.runner import session as sessions
from maar.runner.session import ONCE
from support.spark.cluster import QUICK_JVM


def build_session(slots: int = 2, conf: Mapping[str, str] = {}) -> SparkSession:
    builder = SparkSession.builder.master(f"local[{slots}]").config("spark.ui.enabled", "false")
    always = {"spark.driver.host": "127.0.0.1", "spark.driver.extraJavaOptions": QUICK_JVM}
    for name, value in {**always, **conf}.items():
        builder = builder.config(name, value)
    session: SparkSession = builder.getOrCreate()
    session.sparkContext.setLogLevel("OFF")
    return session


@contextmanager
def owned_session(slots: int = 2) -> Iterator[SparkSession]:
    """One that maar accepts."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYSPARK_PYTHON", sys.executable)
        session = build_session(slots, {name: wanted for name, (wanted, _) in ONCE.items()})
        context = session.sparkContext
        yield session
        sessions.stop(context)
