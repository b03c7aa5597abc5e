"""What a worker does for each kind of plan, without Spark."""
