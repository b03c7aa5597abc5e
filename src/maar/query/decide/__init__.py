"""Decisions of a query: what it reads, whose turn it is, what fits into memory. Pure."""
