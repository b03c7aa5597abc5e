"""The rings, refreshed from the metastore; a complete ring is never replaced by less."""

from __future__ import annotations

import logging

from maar.background import Loop
from maar.model.ids import Zone
from maar.ports.calls import Caller
from maar.ports.writer.membership import ListRings, RingReader, RingView

log = logging.getLogger("maar.distributor")

IMPATIENT_S = 0.1  # between two refreshes while there is no writer to push to


class FollowedRings:
    """Until the metastore has sent a complete ring there is none, and pushes get a 503 (S16).

    A zone that the metastore does not mention keeps its last ring: a new leader knows less than we
    do.
    """

    def __init__(self, home: Zone) -> None:
        self.zone = home
        self._views: dict[Zone, RingView] = {}
        self._awaited = True

    def learn(self, views: tuple[RingView, ...]) -> None:
        for view in views:
            known = self._views.get(view.ring.zone)
            if known is not None and (known.ring, known.dead) == (view.ring, view.dead):
                continue  # the same value, so that whoever depends on it sees no change
            if view.complete:
                self._views[view.ring.zone] = view
                _tell(view)
        homes = [view for view in views if view.ring.zone == self.zone]
        self._awaited = self.zone not in self._views and any(not v.complete for v in homes)

    def home(self) -> RingView | None:
        return self._views.get(self.zone)

    def others(self) -> tuple[RingView, ...]:
        """Of the other zones, by name."""
        return tuple(self._views[zone] for zone in sorted(self._views) if zone != self.zone)

    def is_awaited(self) -> bool:
        """Whether the home ring is about to be known: too early to treat the zone as down."""
        return self._awaited

    async def follow(self, metastore: Caller[RingReader], *, every_s: float) -> None:
        """Refresh for ever; more often while there is no writer to push to."""

        async def ask() -> None:
            self.learn(await metastore.call(ListRings()))

        def pause_s(_: object) -> float:
            home = self.home()
            waits = home is None or not home.ring.owners
            return min(every_s, IMPATIENT_S) if waits else every_s

        failed = "rings not refreshed, the last ones stay in force"
        await Loop(ask, failed=failed, log=log, every_s=pause_s).run()


def _tell(view: RingView) -> None:
    log.info(
        "ring updated zone=%s changed_at=%d writers=%d shards=%d dead=%s",
        view.ring.zone,
        view.ring.changed_at,
        len(view.ring.writers),
        len(view.ring.owners),
        ",".join(view.dead) or "none",
    )
