"""maar inside a Spark program of yours."""

from maar.spark.lent import run_worker

__all__ = ["run_worker"]
