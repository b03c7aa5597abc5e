"""The fixed permutation that a table of owners begins as, made from its steps."""

from __future__ import annotations

from maar.placement.permutation import step


def permutation(size: int) -> tuple[int, ...]:
    """0 … size - 1 by the inside-out shuffle of Fisher and Yates."""
    order: list[int] = []
    for index in range(size):
        order.append(index)
        other = step(index)
        order[index] = order[other]
        order[other] = index
    return tuple(order)
