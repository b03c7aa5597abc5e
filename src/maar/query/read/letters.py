"""Dead letters in queries: listed before the view is taken, each read once (S20).

They lie where segments are written, in the home store of each zone, and are not copied.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from itertools import islice
from typing import TypeVar

from maar.background import Threads
from maar.block.format import dead_letter
from maar.model import keys
from maar.model.block import BlockMeta
from maar.model.errors import Corrupt, NotFound, Overloaded
from maar.model.ids import BlockId, Incarnation, StoreName
from maar.ports.stores.object_store import ObjectInfo, ObjectStore
from maar.ports.stores.stores import Stores, stores_of
from maar.query.metrics import Metrics

log = logging.getLogger("maar.query")

THREADS = 8
LETTERS_MAX = 20_000  # that a query looks through; the leader delivers hundreds a second

Place = tuple[StoreName, str]  # of a letter: its store and key
Item = TypeVar("Item")
T = TypeVar("T")


class Letters:
    """Used by one event loop. Letters are never changed: each is read once while it is there."""

    def __init__(
        self, store: ObjectStore | Stores, metrics: Metrics, *, letters_max: int = LETTERS_MAX
    ) -> None:
        self._stores = stores_of(store)
        self.letters_max = letters_max
        self._metrics = metrics
        self._threads = Threads(THREADS, "maar-letters")
        self._read: dict[Place, BlockMeta] = {}
        self._present: set[BlockId] = set()  # whose segments were seen to be there
        self._told: set[Place] = set()  # those that had to be left out

    @property
    def remembered(self) -> int:
        """How much is kept of letters; nothing once they are gone."""
        return len(self._read) + len(self._present) + len(self._told)

    async def waiting(self, incarnation: Incarnation) -> list[BlockMeta]:
        """Every letter that is there now and can be read; the others are the leader's to hold."""
        prefix = keys.dead_letters(incarnation)
        homes = self._stores.places.homes()
        listed = await self._each(lambda store: self._list(store, prefix), homes)
        infos = {(store, info.key): info for store, some in listed for info in some}
        if len(infos) > self.letters_max:
            raise Overloaded(
                f"more than {self.letters_max} segments wait to be added to the index, too many to "
                "look through for one query; the metastore is adding them: ask again later"
            )
        known = {place: meta for place in infos if (meta := self._read.get(place))}
        new = [
            (place, info)
            for place, info in infos.items()
            if place not in known and place not in self._told
        ]
        for (place, _), found in await self._each(partial(self._open, incarnation), new):
            if isinstance(found, BlockMeta):
                known[place] = found
            elif found:
                self._leave_out(place, found)
        self._read = known
        self._told &= infos.keys()
        self._present &= {meta.id for meta in known.values()}
        return list(known.values())

    async def whole(
        self, incarnation: Incarnation, letters: Sequence[BlockMeta]
    ) -> list[BlockMeta]:
        """Those whose segments are there: one that was lost must not break queries about others.

        Such a letter is held by the leader, where people see it.
        """
        # What was known before counts: others who ask meanwhile forget what has been delivered.
        lost: set[BlockId] = set()
        unsure = [meta for meta in letters if meta.id not in self._present]
        for meta, trouble in await self._each(self._absent, unsure):
            if trouble:
                lost.add(meta.id)
                key = keys.dead_letter(incarnation=incarnation, block=meta.id)
                self._leave_out((meta.store, key), trouble)
            else:
                self._present.add(meta.id)
        return [meta for meta in letters if meta.id not in lost]

    def close(self) -> None:
        self._threads.close()

    def _list(self, store: StoreName, prefix: str) -> list[ObjectInfo]:
        return list(islice(self._stores.open(store).list(prefix), self.letters_max + 1))

    def _absent(self, meta: BlockMeta) -> str:
        return dead_letter.absent(self._stores.open(meta.store), meta)

    def _open(self, incarnation: Incarnation, found: tuple[Place, ObjectInfo]) -> BlockMeta | str:
        """Its metadata, or why it cannot be trusted; '' when it is gone, for it was delivered."""
        (name_of_store, _), info = found
        store = self._stores.open(name_of_store)
        _, _, name = keys.letter_place(info.key)
        if keys.letter_block(name) is None:
            return "it is not named like a dead letter"
        if info.size > dead_letter.BYTES_MAX:
            return f"it has {info.size} bytes, too many for a dead letter"
        try:
            meta = dead_letter.decode(store.read(info.key), key=info.key)
            own = StoreName(store.settings().name)
            return dead_letter.check(
                meta, key=info.key, name=name, incarnation=incarnation, store=own
            )
        except NotFound:
            return ""
        except Corrupt as error:
            return str(error)

    def _leave_out(self, place: Place, cause: str) -> None:
        if place not in self._told:
            self._told.add(place)
            self._metrics.letters_unreadable.inc()
            store, key = place
            log.error("dead letter skipped by queries store=%s key=%s cause=%s", store, key, cause)

    async def _each(self, act: Callable[[Item], T], items: Iterable[Item]) -> list[tuple[Item, T]]:
        given = list(items)
        made = await asyncio.gather(*(self._threads.do(act, item) for item in given))
        return list(zip(given, made, strict=True))
