"""The `maar` command line."""
