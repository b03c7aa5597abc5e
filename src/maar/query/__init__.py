"""Answers queries over an immutable view of the index."""
