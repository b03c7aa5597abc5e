"""Which ring takes pushes now: home's, or another zone's when home is down and that is allowed."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

from maar.distributor import breaker
from maar.distributor.links import Links
from maar.distributor.rings import FollowedRings
from maar.model.errors import Unavailable
from maar.model.ids import NodeId, TenantId, Zone
from maar.model.ring import WriterState
from maar.model.time import SECOND_NS
from maar.placement.locate import Placement
from maar.placement.rules import Rules, TenantLimits
from maar.ports.clock import Clock
from maar.ports.writer.membership import RingView

RETRY_AFTER_S = 1.0
PLACEMENT_NS_MAX = 30 * SECOND_NS  # then limits of tenants that have changed are looked at again


class Route:
    """One zone's ring as it is used now."""

    def __init__(
        self,
        view: RingView,
        rules: Rules,
        placement: Placement,
        *,
        here: NodeId | None,
        made_ns: int,
    ) -> None:
        self.view = view
        self.placement = placement
        self.rules = rules
        self.made_ns = made_ns
        self.zone = view.ring.zone
        self.writers = view.ring.writers
        dead = set(view.dead) - {here}  # the writer in this process is certainly alive
        self.takers = frozenset(
            writer.node
            for writer in self.writers
            if writer.state is WriterState.ACTIVE and writer.node not in dead and view.ring.owners
        )


class Routes:
    """The rings under the rules of now, and which of them has a writer that is worth a try."""

    def __init__(
        self,
        rings: FollowedRings,
        rules: Callable[[], Rules],
        limits: Callable[[TenantId], TenantLimits],
        links: Links,
        clock: Clock,
        random: Random,
        *,
        cross_zone: bool,  # whether pushes may leave the home zone when it is down
        here: NodeId | None,
    ) -> None:
        self._rings = rings
        self._rules = rules
        self._limits = limits
        self._links = links
        self._clock = clock
        self._random = random
        self._cross_zone = cross_zone
        self._here = here
        self._made: dict[Zone, Route] = {}

    def current(self) -> Route:
        """The home ring, or when home is down and that is allowed, another zone's."""
        home = self._of(self._rings.home())
        if home is not None and self._usable(home):
            return home
        other = self._other(home)
        if other is not None:
            return other
        if home is not None and self._only_late(home):
            return home
        raise self._nobody(home)

    def crossing(self, route: Route) -> Route | None:
        """Another zone's ring, when no writer of the home zone answered the push."""
        if route.zone != self._rings.zone or self._usable(route):
            return None
        return self._other(route)

    def waits_ns(self, route: Route) -> int:
        """Until the first breaker of those that take pushes lets one through."""
        now_ns = self._clock.monotonic_ns()
        links = [self._links.existing(route.zone, node) for node in route.takers]
        waits = [breaker.opens_in_ns(link.breaker, now_ns=now_ns) for link in links if link]
        return min(waits, default=0)

    def home_writers(self) -> float:
        """How many of home take pushes."""
        home = self._of(self._rings.home())
        return float(len(home.takers)) if home is not None else 0.0

    def _nobody(self, home: Route | None) -> Unavailable:
        if home is None:
            return Unavailable(
                f"the ring of zone {self._rings.zone} is not known yet, so nothing can be stored: "
                "the metastore has not sent it, or no segment writer has joined; send it again",
                retry_after_s=RETRY_AFTER_S,
            )
        if not home.takers:
            return Unavailable(
                f"none of the {len(home.view.ring.writers)} segment writers of zone {home.zone} "
                "is active and alive, so nothing can be stored; send it again, and see "
                "`maar ring`",
                retry_after_s=RETRY_AFTER_S,
            )
        return not_taken(
            "they did not answer lately and are skipped for a moment",
            zone=home.zone,
            waits_ns=self.waits_ns(home),
        )

    def _other(self, home: Route | None) -> Route | None:
        if not self._cross_zone or (home is None and self._rings.is_awaited()):
            return None
        for view in self._rings.others():
            route = self._of(view)
            if route is not None and self._usable(route):
                return route
        return None

    def _of(self, view: RingView | None) -> Route | None:
        """The ring under the rules of now; made anew only when one of them changed."""
        if view is None:
            return None
        known = self._made.get(view.ring.zone)
        rules, now_ns = self._rules(), self._clock.monotonic_ns()
        if (
            known is not None
            and (known.view is view and known.rules is rules)
            and now_ns - known.made_ns < PLACEMENT_NS_MAX
        ):
            return known
        placement = Placement(view.ring, rules, self._limits, self._random.randrange)
        route = Route(view, rules, placement, here=self._here, made_ns=now_ns)
        self._made[view.ring.zone] = route
        if known is None or known.view is not view:
            self._links.know(one.view.ring for one in self._made.values())
        return route

    def _usable(self, route: Route) -> bool:
        """Whether some writer there can be tried now."""
        now_ns = self._clock.monotonic_ns()
        for node in route.takers:
            link = self._links.existing(route.zone, node)
            if link is None or breaker.allows(link.breaker, now_ns=now_ns):
                return True
        return False

    def _only_late(self, route: Route) -> bool:
        """Whether some writer there was only slow: a slow one is better than none."""
        links = (self._links.existing(route.zone, one.node) for one in route.writers)
        return any(link is not None and link.late for link in links)


def not_taken(cause: object, *, zone: Zone, waits_ns: int) -> Unavailable:
    return Unavailable(
        f"no segment writer of zone {zone} took the profiles ({cause}); send it again",
        retry_after_s=max(RETRY_AFTER_S, waits_ns / SECOND_NS),
    )
