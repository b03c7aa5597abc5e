"""Clocks that a test moves."""
