"""Deletes objects, each within a second of the confirmation that it may go.

Whoever deletes acts on what was true a moment ago. Its process may be stopped at any point, and
meanwhile another leader may be elected, or the log restored as another incarnation that needs just
these objects. So a batch is confirmed first, and before each delete its age is checked: whoever was
stopped for longer asks again, and is refused. Time is an argument, of a clock that goes on while
the process is stopped.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from maar.model.errors import Unavailable
from maar.ports.stores.object_store import ObjectStore

CONFIRMED_NS = 1_000_000_000  # how long a confirmation counts, from before it was asked for
AT_ONCE_MAX = 100  # objects that are confirmed together
TRIES_MAX = 3  # confirmations in a row that took too long

Confirm = Callable[[Sequence[str]], Sequence[str]]  # which may be deleted now; raises when none may


class BatchDeleter(NamedTuple):
    """What deleting takes."""

    store: ObjectStore
    confirm: Confirm
    monotonic_ns: Callable[[], int]

    def delete(self, keys: Sequence[str]) -> int:
        """How many were deleted, in the order in which they are given."""
        return sum(1 for _ in self.deleting(keys))

    def deleting(self, keys: Sequence[str]) -> Iterator[str]:
        """Each of them when it has been deleted: should a later one fail, the caller knows how far
        it came.
        """
        for first in range(0, len(keys), AT_ONCE_MAX):
            yield from self._delete_batch(keys[first : first + AT_ONCE_MAX])

    def _delete_batch(self, keys: Sequence[str]) -> Iterator[str]:
        asked_ns, left = self._ask(keys)
        while left:
            if self.monotonic_ns() - asked_ns >= CONFIRMED_NS:
                asked_ns, left = self._ask(left)
                continue
            key = left.pop(0)
            self.store.delete(key)
            yield key

    def _ask(self, keys: Sequence[str]) -> tuple[int, list[str]]:
        """When it was asked, and what may go; Unavailable when no answer comes within a second."""
        for _ in range(TRIES_MAX):
            asked_ns = self.monotonic_ns()
            keys = list(self.confirm(keys))
            if self.monotonic_ns() - asked_ns < CONFIRMED_NS:
                return asked_ns, keys
        raise Unavailable(
            "it takes over a second to confirm what may be deleted, so nothing is; ask again"
        )
