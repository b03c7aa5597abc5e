"""Keeps one replica's state up to date with the log: read, apply, compare, snapshot."""
