"""Kinds of plans that only tests know."""
