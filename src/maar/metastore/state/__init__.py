"""All that the metastore knows, in memory, and how it is hashed and put into a snapshot. Pure."""
