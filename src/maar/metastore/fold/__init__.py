"""Applies entries to the state; no other code changes it. Pure."""
