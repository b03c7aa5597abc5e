"""Decisions of a question: what it touches, whose turn it is, what fits. Pure."""
