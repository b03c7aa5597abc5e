"""Dead letters of every home store: writers leave them where they write (S4, S20).

The registration floor advances only as far as the letters of all home stores allow. So a home store
that is away stops the floor, and no letter in it comes too late; a store that only holds copies has
no letters, and stops nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, cast

from maar.background import run_until_first_ends
from maar.metastore.leader.letters.dead_letters import DeadLetters
from maar.model.errors import NotFound
from maar.model.ids import StoreName
from maar.model.time import LeaseTime
from maar.ports.operator.dead_letters import Letter, LetterRetried, LettersPage, LettersStatus
from maar.ports.stores.object_store import ObjectStore
from maar.ports.stores.stores import Stores

Made = Callable[[ObjectStore, Callable[[], LettersStatus]], DeadLetters]


def home_stores(stores: Stores) -> tuple[StoreName, ...]:
    """Those that writers write to: of each zone, and of zones that have none of their own."""
    homes = {place.name for place in stores.places.places if place.zones}
    first = stores.names()[0]
    return tuple(name for name in stores.names() if name == first or name in homes)


class LaterStore:
    """A store that is opened by whoever uses it: it may be away when a term begins."""

    def __init__(self, stores: Stores, name: StoreName) -> None:
        self._stores = stores
        self._name = name

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stores.open(self._name), name)


class LettersOfStores:
    """As `DeadLetters`, for several stores."""

    def __init__(self, stores: Stores, make: Made) -> None:
        self._all = [
            make(cast(ObjectStore, LaterStore(stores, name)), self.status)
            for name in home_stores(stores)
        ]

    @property
    def floor_max(self) -> LeaseTime:
        return min(each.floor_max for each in self._all)

    def status(self) -> LettersStatus:
        return together(each.status() for each in self._all)

    async def forever(self) -> None:
        await run_until_first_ends(*(each.forever for each in self._all))

    def close(self) -> None:
        for each in self._all:
            each.close()

    async def drain(self) -> None:
        for each in self._all:
            await each.drain()

    async def list_letters(self, *, limit: int) -> LettersPage:
        pages = [await each.list_letters(limit=limit) for each in self._all]
        letters = [letter for page in pages for letter in page.letters]
        letters.sort(key=lambda letter: ("held", "waiting", "foreign").index(letter.standing))
        more = any(page.more for page in pages) or len(letters) > limit
        return LettersPage(self.status(), tuple(letters[:limit]), more)

    async def one(self, name: str) -> Letter:
        *others, last = self._all
        for each in others:
            try:
                return await each.one(name)
            except NotFound:
                continue
        return await last.one(name)

    async def retry(self, name: str) -> LetterRetried:
        *others, last = self._all
        for each in others:
            try:
                return await each.retry(name)
            except NotFound:
                continue
        return await last.retry(name)


def together(some: Iterable[LettersStatus]) -> LettersStatus:
    """The letters of several stores, in numbers; scanned when the last of them was."""
    every = list(some)
    drained = [each.drained_s for each in every]
    return LettersStatus(
        waiting=sum(each.waiting for each in every),
        oldest_s=max(each.oldest_s for each in every),
        held=sum(each.held for each in every),
        foreign=sum(each.foreign for each in every),
        delivered=sum(each.delivered for each in every),
        drained_s=-1.0 if min(drained) < 0 else max(drained),
        trouble="; ".join(each.trouble for each in every if each.trouble),
    )
