"""Copies that a role could not read: logged once an object, and told to the metastore."""

from __future__ import annotations

import logging
import threading
from collections import OrderedDict, deque

from maar.background import Loop
from maar.model.trouble import Trouble
from maar.ports.calls import Caller
from maar.ports.operator.copies import REPORTED_MAX, CopyKeeper, ReportDamage

log = logging.getLogger("maar.stores")

TELL_EVERY_S = 1.0
NOT_TOLD = "damaged copies not reported to the metastore"
LOGGED_MAX = 10_000  # objects that are remembered as logged


class Troubles:
    """`note` may be called by any thread. They are counted by the leader, who hears of all."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._logged: OrderedDict[tuple[str, str], None] = OrderedDict()
        self._waiting: deque[Trouble] = deque(maxlen=REPORTED_MAX)

    def note(self, trouble: Trouble) -> None:
        place = trouble.store, trouble.key
        with self._lock:
            new = place not in self._logged
            self._logged[place] = None
            if len(self._logged) > LOGGED_MAX:
                self._logged.popitem(last=False)
            self._waiting.append(trouble)
        if new:
            log.warning(
                "copy not read block=%s store=%s key=%s why=%s cause=%s",
                trouble.block, trouble.store, trouble.key, trouble.why, trouble.what,
            )  # fmt: skip

    async def tell(self, metastore: Caller[CopyKeeper]) -> None:
        """For ever. The leader forgets what it heard when its term ends; readers meet it again."""

        async def once() -> None:
            await self.tell_once(metastore)

        await Loop(once, failed=NOT_TOLD, log=log, every_s=TELL_EVERY_S).run()

    async def tell_once(self, metastore: Caller[CopyKeeper]) -> None:
        """What was noted so far; all of it stays noted when nobody hears."""
        with self._lock:
            told = list(self._waiting)
            self._waiting.clear()
        if not told:
            return
        try:
            await metastore.call(ReportDamage(tuple(told)))
        except BaseException:  # raised again: they are told with the next ones
            with self._lock:
                self._waiting.extendleft(reversed(told))
            raise
