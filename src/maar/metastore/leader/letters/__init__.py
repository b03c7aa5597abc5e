"""Delivers the dead letters of segment writers (S4, S20)."""
