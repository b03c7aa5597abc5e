"""maar inside a Spark program of yours."""

from maar.spark.borrowed_spark import run_worker
from maar.spark.plans import clean, execute, rollback, schedule

__all__ = ["clean", "execute", "rollback", "run_worker", "schedule"]
