"""Plans as Spark jobs. Only this package and `maar.spark` import pyspark."""
