"""maar inside a Spark program of yours."""

from maar.spark.borrowed_spark import run_worker

__all__ = ["run_worker"]
