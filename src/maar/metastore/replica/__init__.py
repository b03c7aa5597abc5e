"""Keeps one replica's state in step with the log: read ahead, fold, compare, snapshot."""
