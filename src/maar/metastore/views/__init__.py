"""Answers made from the state, as values that no later entry changes. Pure."""
