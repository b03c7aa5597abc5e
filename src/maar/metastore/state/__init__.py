"""The metastore's state in memory, its hash, and its encoding in a snapshot. Pure."""
