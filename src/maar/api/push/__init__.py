"""Endpoints for profiles: the push service of today's agents, and /ingest of older ones."""
