"""Bytes at rest: the segment and block formats, read, written and merged."""
