"""Joins segments that wait for compaction, undecoded, so that queries open few objects."""
