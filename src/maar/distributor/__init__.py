"""Admit a pushed profile, name it, and choose its shard."""
