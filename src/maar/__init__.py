"""maar: a fleet-wide profiling lake."""

__version__ = "0.1.0"
