"""Clustering: the finished blocks of a tenant's day, of all shards, become blocks in one order."""
