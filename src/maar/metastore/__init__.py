"""The state of the lake as a fold over the log."""
