"""The public API over HTTP: push, query, administration, the page."""
