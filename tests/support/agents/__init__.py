"""Real agents that push."""
