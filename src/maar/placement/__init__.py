"""Which shard and node takes a profile. Pure."""
