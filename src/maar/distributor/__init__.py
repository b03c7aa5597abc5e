"""Admit a pushed profile, name it, choose its shard, and find a writer that takes it."""
