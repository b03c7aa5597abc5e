"""Rewriting blocks without what was deleted."""
