"""maar inside a Spark program of yours."""

from maar.spark.backfilling import backfill
from maar.spark.borrowed_spark import run_worker
from maar.spark.plans import clean, delete, execute, rollback, schedule

__all__ = ["backfill", "clean", "delete", "execute", "rollback", "run_worker", "schedule"]
