"""A network that a test can cut."""
