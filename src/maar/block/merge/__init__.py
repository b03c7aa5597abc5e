"""Sorted runs into the files of one block."""
