"""Which resources a session may take: all that it needs, or none.

Nobody holds a part of what it needs while it waits for the rest, so nothing can deadlock. The most
urgent job that has to wait reserves what it needs: smaller jobs cannot pass it by for ever.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping


def busy(wanted: Iterable[str], held: Mapping[str, int], *, slots: int) -> str:
    """The first resource of which no slot is free; '' when all can be taken."""
    return next((each for each in sorted(wanted) if held.get(each, 0) >= slots), "")


class Room:
    """What is left of the resources in one round of handing out."""

    def __init__(self, held: Mapping[str, int], *, slots: int) -> None:
        self._held = dict(held)
        self._slots = slots
        self._reserved: frozenset[str] = frozenset()

    def why_not(self, wanted: tuple[str, ...]) -> str:
        """Why these cannot be taken together now, in a sentence; '' when they can."""
        if taken := busy(wanted, self._held, slots=self._slots):
            return f"{taken} is occupied"
        waited_for = next((each for each in wanted if each in self._reserved), "")
        return f"{waited_for} is reserved for a more urgent job" if waited_for else ""

    def take(self, wanted: tuple[str, ...]) -> None:
        for each in wanted:
            self._held[each] = self._held.get(each, 0) + 1

    def reserve(self, wanted: tuple[str, ...]) -> None:
        """Nobody less urgent takes these; only the first who waits reserves."""
        if not self._reserved:
            self._reserved = frozenset(wanted)
