"""Dead letters in queries: listed before the view is taken, each read once (S20)."""

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
from maar.ports.object_store import ObjectInfo, ObjectStore
from maar.query.metrics import Metrics

log = logging.getLogger("maar.query")

THREADS = 8
LETTERS_MAX = 20_000  # that a query looks through; the leader delivers hundreds a second

Item = TypeVar("Item")
T = TypeVar("T")


class Letters:
    """Used by one event loop. Letters are never changed: each is read once while it is there."""

    def __init__(
        self, store: ObjectStore, metrics: Metrics, *, letters_max: int = LETTERS_MAX
    ) -> None:
        self._store = store
        self.letters_max = letters_max
        self._name = StoreName(store.settings().name)
        self._metrics = metrics
        self._threads = Threads(THREADS, "maar-letters")
        self._read: dict[str, BlockMeta] = {}  # by key
        self._present: set[BlockId] = set()  # whose segments were seen to be there
        self._told: set[str] = set()  # keys of those that had to be left out

    @property
    def remembered(self) -> int:
        """How much is kept of letters; nothing once they are gone."""
        return len(self._read) + len(self._present) + len(self._told)

    async def waiting(self, incarnation: Incarnation) -> list[BlockMeta]:
        """Every letter that is there now and can be read; the others are the leader's to hold."""
        prefix = keys.dead_letters(incarnation)
        infos = await self._threads.do(
            lambda: list(islice(self._store.list(prefix), self.letters_max + 1))
        )
        if len(infos) > self.letters_max:
            raise Overloaded(
                f"more than {self.letters_max} segments wait to be added to the index, too many to "
                "look through for one query; the metastore is adding them: ask again later"
            )
        known = {info.key: meta for info in infos if (meta := self._read.get(info.key))}
        new = [info for info in infos if info.key not in known and info.key not in self._told]
        for info, found in await self._each(partial(self._open, incarnation), new):
            if isinstance(found, BlockMeta):
                known[info.key] = found
            elif found:
                self._leave_out(info.key, found)
        self._read = known
        self._told &= {info.key for info in infos}
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
        for meta, trouble in await self._each(partial(dead_letter.absent, self._store), unsure):
            if trouble:
                lost.add(meta.id)
                self._leave_out(keys.dead_letter(incarnation=incarnation, block=meta.id), trouble)
            else:
                self._present.add(meta.id)
        return [meta for meta in letters if meta.id not in lost]

    def close(self) -> None:
        self._threads.close()

    def _open(self, incarnation: Incarnation, info: ObjectInfo) -> BlockMeta | str:
        """Its metadata, or why it cannot be trusted; '' when it is gone, for it was delivered."""
        _, _, name = keys.letter_place(info.key)
        if keys.letter_block(name) is None:
            return "it is not named like a dead letter"
        if info.size > dead_letter.BYTES_MAX:
            return f"it has {info.size} bytes, too many for a dead letter"
        try:
            meta = dead_letter.decode(self._store.read(info.key), key=info.key)
            return dead_letter.check(
                meta, key=info.key, name=name, incarnation=incarnation, store=self._name
            )
        except NotFound:
            return ""
        except Corrupt as error:
            return str(error)

    def _leave_out(self, key: str, cause: str) -> None:
        if key not in self._told:
            self._told.add(key)
            self._metrics.letters_unreadable.inc()
            log.error("dead letter skipped by queries key=%s cause=%s", key, cause)

    async def _each(self, act: Callable[[Item], T], items: Iterable[Item]) -> list[tuple[Item, T]]:
        given = list(items)
        made = await asyncio.gather(*(self._threads.do(act, item) for item in given))
        return list(zip(given, made, strict=True))
