"""Addresses of several servers of one kind, as an operator writes them."""

from __future__ import annotations


def addresses_in(text: str) -> tuple[str, ...]:
    """Addresses with commas between, in their order, each once."""
    return tuple(dict.fromkeys(part.strip() for part in text.split(",") if part.strip()))
