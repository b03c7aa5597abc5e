"""Every setting, read once from a file, the environment and flags."""
