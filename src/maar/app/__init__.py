"""Reads the settings, builds the parts and runs the roles."""
