"""The ways in for questions: Grafana, our own page and our commands."""
