"""The profile as it comes: validate, decode to columns, encode back. Pure."""
