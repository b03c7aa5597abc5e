"""Entries of the log, effects of applying them, and the policy, with their encodings. Pure."""
