"""The front over memory, on a port or in a process, and clients of it."""
