"""From what was written where to how many shards a dataset gets. Pure: time is an argument."""
