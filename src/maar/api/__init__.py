"""The way in: HTTP."""
