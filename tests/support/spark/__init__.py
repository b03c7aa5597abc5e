"""A standalone Spark on loopback, and plans to run on it."""
