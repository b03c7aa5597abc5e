"""Implementations of the ports: log, object store, RPC, clock."""
