"""Endpoints for queries: Grafana, our own page and our commands."""
