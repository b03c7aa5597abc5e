"""Bulk writes: many profiles become finished blocks of their days, visible whole or not at all."""
