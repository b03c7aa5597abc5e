"""Operator tools for the log: back up, restore, move to another place, verify."""
