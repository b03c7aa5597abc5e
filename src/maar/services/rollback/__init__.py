"""Rollbacks: what ended attempts of a plan wrote is deleted under a lease."""
