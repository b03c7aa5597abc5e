"""Copies that a role could not read: counted, logged once an object, told to the metastore."""

from __future__ import annotations

import logging
import threading
from collections import OrderedDict

from prometheus_client import CollectorRegistry, Counter

from maar.background import Loop
from maar.model.trouble import Trouble
from maar.ports.calls import Caller
from maar.ports.copies import REPORTED_MAX, CopyKeeper, ReportDamage

log = logging.getLogger("maar.stores")

TELL_EVERY_S = 1.0
LOGGED_MAX = 10_000  # objects that are remembered as logged
WAITING_MAX = REPORTED_MAX  # reports: what is too much is met again


def log_trouble(trouble: Trouble) -> None:
    log.warning(
        "copy not read block=%s store=%s key=%s why=%s cause=%s",
        trouble.block, trouble.store, trouble.key, trouble.why, trouble.what,
    )  # fmt: skip


class Troubles:
    """`note` may be called by any thread."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._fallovers = Counter(
            "maar_store_fallovers",
            "Copies that could not be read while there was another one, by store and cause.",
            ["store", "why"],
            registry=registry,
        )
        self._lock = threading.Lock()
        self._logged: OrderedDict[tuple[str, str], None] = OrderedDict()
        self._waiting: dict[tuple[str, str], Trouble] = {}

    def note(self, trouble: Trouble) -> None:
        if trouble.another:
            self._fallovers.labels(trouble.store, trouble.why).inc()
        place = trouble.store, trouble.key
        with self._lock:
            new = place not in self._logged
            self._logged[place] = None
            if len(self._logged) > LOGGED_MAX:
                self._logged.popitem(last=False)
            if trouble.why != "away" and len(self._waiting) < WAITING_MAX:
                self._waiting[place] = trouble
        if new:
            log_trouble(trouble)

    async def tell(self, metastore: Caller[CopyKeeper]) -> None:
        """For ever. The leader forgets what it heard when its term ends; readers meet it again."""

        async def once() -> None:
            with self._lock:
                told = dict(self._waiting)
            if told:
                await metastore.call(ReportDamage(tuple(told.values())))
                with self._lock:
                    for place in told:
                        self._waiting.pop(place, None)

        failed = "damaged copies not reported to the metastore"
        await Loop(once, failed=failed, log=log, every_s=TELL_EVERY_S).run()
