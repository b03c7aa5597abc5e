"""/api/v1: what the server knows of itself, and what an operator changes."""
