"""Answers from the state that no later entry changes. Pure."""
