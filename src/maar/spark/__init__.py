"""maar inside a Spark program of yours."""

from maar.spark.borrowed_spark import run_worker
from maar.spark.one_plan import execute

__all__ = ["execute", "run_worker"]
