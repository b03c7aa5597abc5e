"""Parses input: options, times and short names of profile types."""
