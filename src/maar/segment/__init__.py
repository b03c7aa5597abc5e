"""Collect profiles per shard, write one object, announce it, then acknowledge."""
