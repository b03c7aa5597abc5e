"""Deletes copies that wait for a single store, in every store by itself (S14).

A store that is away holds up its own list only: each has a thread of its own, and what cannot be
deleted stays on the list, which has a bound.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple

from maar.background import Threads
from maar.metastore.fold.stores import copies
from maar.metastore.leader.background import Append, Deleting, LedStores
from maar.metastore.leader.deleting import removals
from maar.metastore.leader.held_back import HeldBack
from maar.metastore.records.entries import Entry, TombstonesEnded
from maar.metastore.state.tombstones import CopyKey
from maar.model.errors import NotLeading, Retryable
from maar.model.ids import StoreName
from maar.model.stores import STORES_MAX
from maar.model.trouble import Trouble

log_ = logging.getLogger("maar.metastore")

HELD_MAX = 10_000  # more failures than this are systematic


class DeletedIn(NamedTuple):
    """What became of the copies that were due in a store."""

    store: StoreName
    gone: list[str]
    held: dict[str, str]  # why each has to stay
    bad_copies: list[Trouble]  # of what they wait for
    away: str = ""  # why the store could not be asked


class TombstoneDeletes:
    def __init__(
        self,
        leader: Deleting,
        stores: LedStores,
        append: Append,
        hear_damage: Callable[[Sequence[Trouble]], None],
        *,
        limit: int,
        looked_at: int,
    ) -> None:
        self._leader = leader
        self._stores = stores
        self._append = append
        self._hear_damage = hear_damage
        self._limit = limit
        self._looked_at = looked_at
        # One for each store.
        self._threads = Threads(STORES_MAX, "tombstones", when_closed=NotLeading)
        self._held: HeldBack[CopyKey] = HeldBack(HELD_MAX)
        self._starts: dict[StoreName, int] = {}  # where the next look at a long list begins

    @property
    def blocked(self) -> tuple[str, ...]:
        """Sentences for the status: which lists are full, and what could not be deleted."""
        state = self._leader.state
        full = (
            f"store {store}: {state.policy.tombstones_max:,} copies wait to be deleted in it, the "
            "most there can be; for each that comes, the oldest is left to the search for orphans. "
            f"Bring the store back, or give it up (maar stores remove {store} --lost)"
            for store in state.tombstones.stores()
            if not copies.has_room(state, store)
        )
        return (*full, *self._held.sentences())

    def close(self) -> None:
        self._threads.close()

    async def delete_due(self) -> bool:
        """Delete what is due; whether there may be more to do."""
        state = self._leader.state
        if state.adopting or not state.tombstones:
            return False
        more = False
        for found in await self._threads.each(self._delete_in, self._due(), catching=Exception):
            if isinstance(found, NotLeading):
                raise found
            if isinstance(found, Exception):
                log_.error("copies not deleted cause=%s", found)
                continue
            if found.gone:
                await self._append(partial(_only, TombstonesEnded(found.store, tuple(found.gone))))
                more = True
            self._tell(found)
            self._hear_damage(found.bad_copies)
        return more

    def _due(self) -> list[tuple[StoreName, list[removals.DueTombstone]]]:
        state, now = self._leader.state, self._leader.now()
        resting = self._held.resting(now)
        look = partial(
            removals.due_tombstones,
            state,
            now=now,
            limit=self._limit,
            looked_at=self._looked_at,
            resting=resting,
        )
        work = []
        for store in state.tombstones.stores():
            start = self._starts.pop(store, 0)
            due = look(store, start=start)
            ahead = start if len(due) >= self._limit else start + self._looked_at
            if ahead < len(state.tombstones.of_store(store)):
                self._starts[store] = ahead  # else from the beginning
            work.append((store, due))
        return work

    def _delete_in(self, work: tuple[StoreName, list[removals.DueTombstone]]) -> DeletedIn:
        store, due = work
        found = DeletedIn(store, [], {}, [])
        for one in due:
            try:
                deleter = self._stores.deleter(store)
                named, bad_copies = self._stores.open, found.bad_copies
                why = removals.carry_out(deleter, one.removal, named, bad_copies)
            except NotLeading:
                raise
            except Retryable as error:
                return found._replace(away=str(error))
            if why:
                found.held[one.key] = why
            else:
                found.gone.append(one.key)
        return found

    def _tell(self, found: DeletedIn) -> None:
        now = self._leader.now()
        self._held.settle([CopyKey(found.store, key) for key in found.gone])
        for key, why in found.held.items():
            self._held.hold([CopyKey(found.store, key)], why, now=now)
        itself = CopyKey(found.store, "")
        if found.away:
            left = len(self._leader.state.tombstones.of_store(found.store))
            why = (
                f"store {found.store} is unreachable, and {left:,} copies wait to be deleted in it"
            )
            self._held.hold([itself], f"{why}: {found.away}", now=now, tell=False)
        else:
            self._held.settle([itself])


def _only(entry: Entry, *_: object) -> list[Entry]:
    return [entry]
