"""Ends copies that readers found bad, after a look of its own, so that repair makes them anew.

A reader may be wrong: it may have met a store that was set up differently where it runs, or bytes
that the network changed. So the leader reads the copy again, and another one too. Only a copy that
is bad by its own look ends, and only while another one is whole to the last byte (S14). The block
is not at all its stores then, which is what the incremental repair looks for.
"""

from __future__ import annotations

import logging
from enum import Enum
from functools import partial
from itertools import islice

from maar.background import Loop, Threads
from maar.block.read.damage import wrong
from maar.metastore.leader.background import Append, Led
from maar.metastore.leader.damage_reports import BadCopy, DamageReports
from maar.metastore.records.entries import CopiesEnded, Entry
from maar.metastore.replica.timing import TIMING, Timing
from maar.metastore.state.state import MetaState
from maar.model.block import BlockMeta
from maar.model.errors import MaarError, NotLeading
from maar.model.ids import StoreName
from maar.model.stores import keys_at, stores_of
from maar.ports.stores import Stores

log_ = logging.getLogger("maar.metastore")

AT_ONCE = 8  # copies that one step reads again


class Verdict(Enum):
    WHOLE = "it is whole"
    BAD = "it is bad, and another one is whole"
    UNSURE = "neither is known: a store is away, or no copy is whole"


class Healer:
    """Runs beside every leader; with a single store there is nothing to do."""

    def __init__(
        self,
        leader: Led,
        stores: Stores,
        reports: DamageReports,
        append: Append,
        *,
        timing: Timing = TIMING,
    ) -> None:
        self._leader = leader
        self._stores = stores
        self._reports = reports
        self._append = append
        self._threads = Threads(2, "heal", when_closed=NotLeading)
        failed = "bad copies not looked at"
        self._loop = Loop(self.step, failed=failed, log=log_, every_s=timing.clean_s)

    async def forever(self) -> None:
        try:
            await self._loop.run()
        finally:
            self._threads.close()

    async def step(self) -> None:
        state = self._leader.state
        if state.adopting or not state.stores.stores:
            return
        for bad in islice(self._reports.bad(state), AT_ONCE):
            if bad.block not in state.blocks:
                continue
            meta = state.blocks.get(bad.block)
            verdict = await self._threads.do(self._judge, meta, bad.store)
            if verdict is Verdict.BAD:
                await self._append(partial(_end, bad, keys_at(meta, bad.store)))
                log_.warning("bad copy ended block=%s store=%s", bad.block, bad.store)
            elif verdict is Verdict.WHOLE:
                self._reports.forget(bad)

    def _judge(self, meta: BlockMeta, store: StoreName) -> Verdict:
        """In a thread."""
        try:
            if not self._is_bad(meta, store):
                return Verdict.WHOLE
        except MaarError:
            return Verdict.UNSURE
        return Verdict.BAD if self._another_is_whole(meta, store) else Verdict.UNSURE

    def _another_is_whole(self, meta: BlockMeta, bad: StoreName) -> bool:
        for store in stores_of(meta):
            try:
                if store != bad and not self._is_bad(meta, store):
                    return True
            except MaarError:
                continue  # it is away, and another may be there
        return False

    def _is_bad(self, meta: BlockMeta, store: StoreName) -> bool:
        opened = self._stores.named(store)
        return any(
            wrong(opened, file, at, compare=True)
            for file in meta.files
            for at in file.locations
            if at.store == store
        )


def _end(bad: BadCopy, looked_at: tuple[str, ...], state: MetaState, _: object) -> list[Entry]:
    """Unless the index lists another copy there by now."""
    if bad.block not in state.blocks:
        return []
    same = keys_at(state.blocks.get(bad.block), bad.store) == looked_at
    return [CopiesEnded(bad.store, (bad.block,), gone=False, why=bad.what[:300])] if same else []
