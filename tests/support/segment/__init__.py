"""Segment writers: a real one with its surroundings in memory, and ones that do as told."""
