"""Whose a store is, what lies in it, and that the index knows it (S5, S14)."""
