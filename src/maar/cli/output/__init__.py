"""Prints output: tables, trees, plans, and failures."""
