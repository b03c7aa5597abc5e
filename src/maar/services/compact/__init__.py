"""Compaction: a batch of blocks of one lane becomes blocks of the next level."""
