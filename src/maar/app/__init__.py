"""Settings read once, parts built once, roles run."""
