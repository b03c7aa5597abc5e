"""Profiles to the segment writer of their shard, or to the next that can take them.

A batch keeps its shard wherever it goes, so that locality survives a failover. What a writer
rejects is rejected; what it has no room for, or does not answer, goes to the next writer in the
dataset's own order, within the deadline and the budget of retries. The same batch stored twice
shows once (S9).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Iterator, Sequence
from functools import partial
from random import Random
from typing import Any, TypeVar

from prometheus_client import CollectorRegistry

from maar.distributor import breaker, budget
from maar.distributor.batches import ShardBatch, batches
from maar.distributor.breaker import BreakerState
from maar.distributor.links import Connect, Link, Links
from maar.distributor.metrics import RouterMetrics
from maar.distributor.rings import FollowedRings
from maar.distributor.settings import RouterSettings
from maar.model.errors import (
    Draining,
    MaarError,
    Overloaded,
    Retryable,
    StoreFull,
    Unavailable,
    Unreachable,
)
from maar.model.ids import NodeId, TenantId, Zone
from maar.model.profile import RawProfile
from maar.model.ring import Writer, WriterState
from maar.model.time import SECOND_NS
from maar.placement.locate import Placement
from maar.placement.rules import Rules, TenantLimits
from maar.ports.calls import Caller
from maar.ports.clock import Clock
from maar.ports.membership import RingView
from maar.ports.segment_writer import PushProfiles, SegmentWriter

log = logging.getLogger("maar.distributor")

Try = asyncio.Task[Retryable | None]
T = TypeVar("T")

RETRY_AFTER_S = 1.0
CLOSE_S = 2.0
PLACEMENT_NS_MAX = 30 * SECOND_NS  # then limits of tenants that have changed are looked at again


class Router:
    """Places a push's profiles, hands each shard's batch over, and answers for all together."""

    def __init__(
        self,
        settings: RouterSettings,
        rings: FollowedRings,
        rules: Callable[[], Rules],
        limits: Callable[[TenantId], TenantLimits],
        connect: Connect,
        clock: Clock,
        random: Random,
        registry: CollectorRegistry,
        *,
        local: tuple[NodeId, Caller[SegmentWriter]] | None = None,
    ) -> None:
        self._settings = settings
        self._deadline_ns = settings.deadline_ms * 1_000_000
        self._rings = rings
        self._rules = rules
        self._limits = limits
        self._random = random
        self._clock = clock
        self._links = Links(connect, rings.zone, local)
        self._here = local[0] if local is not None else None
        self._routes: dict[Zone, Route] = {}
        self._budget = budget.full(self._settings, now_ns=clock.monotonic_ns())
        self._under_way: set[asyncio.Task[Any]] = set()
        self._metrics = RouterMetrics(registry)
        for state in BreakerState:
            self._metrics.breakers.labels(state).set_function(partial(self._breakers, state))
        self._metrics.writers.set_function(self._home_writers)

    async def push(self, profiles: Sequence[RawProfile]) -> None:
        """Return when all are stored; else Overloaded, Unavailable, or what a writer rejected."""
        deadline_ns = self._clock.monotonic_ns() + self._deadline_ns
        await self._hand_over(self._route(), profiles, deadline_ns)

    def ready(self) -> str:
        """'' when there is somebody to push to, else why not."""
        try:
            self._route()
        except Unavailable as error:
            return str(error)
        return ""

    async def close(self) -> None:
        """What is still under way was given up by its clients; it gets a moment to end."""
        if self._under_way:
            _, late = await asyncio.wait(self._under_way, timeout=CLOSE_S)
            for task in late:
                task.cancel()
            await asyncio.gather(*late, return_exceptions=True)
        await self._links.close()

    async def _hand_over(
        self, route: Route, profiles: Sequence[RawProfile], deadline_ns: int
    ) -> None:
        parts = batches(profiles, route.placement)
        now_ns = self._clock.monotonic_ns()
        self._budget = budget.earned(
            self._budget, self._settings, now_ns=now_ns, batches=len(parts)
        )
        if len(parts) == 1:
            await self._deliver(route, parts[0], deadline_ns)
            return
        # All are awaited, also after a failure, so that the answer speaks for every shard; and
        # they go on when nobody awaits them any more.
        tasks = [self._begun(self._deliver(route, part, deadline_ns)) for part in parts]
        await asyncio.wait(tasks)
        failures = [error for task in tasks if (error := task.exception()) is not None]
        if failures:
            raise worst(failures)

    def _begun(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        task = asyncio.create_task(work)
        self._under_way.add(task)
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: asyncio.Task[Any]) -> None:
        self._under_way.discard(task)
        if not task.cancelled():
            task.exception()  # seen, also when the client has hung up

    async def _deliver(self, route: Route, batch: ShardBatch, deadline_ns: int) -> None:
        """Hand one batch to the first writer that takes it.

        A writer that is late is not called off when the next one is asked: it may only be slow, as
        all of them are when the store or the metastore is, and then its answer still counts.
        """
        failures: list[Retryable] = []
        tries: set[Try] = set()
        candidates = self._candidates(route, batch)
        link, tried = next(candidates, None), 0
        try:
            while link is not None and (left_ns := self._left_ns(deadline_ns)) > 0:
                tried += 1
                following = self._following(candidates, tried=tried)
                others = following is not None and self._may_retry()
                if not others and not tries:
                    newest = await self._try(link, batch, left_ns)
                    stored = _stored(newest, failures)
                else:
                    task = self._beside(link, batch, left_ns)
                    tries.add(task)
                    stored = await _heard(tries, task, failures, try_ns(left_ns, others=others))
                    newest = task.result() if task.done() else None
                    if newest is None and not stored:
                        link.silent(now_ns=self._clock.monotonic_ns(), late=True)
                if stored:
                    self._count_crossed(route, batch)
                    return
                if isinstance(newest, StoreFull):  # it is the same store for every writer
                    break
                link = self._next(following, candidates, newest)
            if await _heard(tries, None, failures, max(0, self._left_ns(deadline_ns))):
                self._count_crossed(route, batch)
                return
        finally:
            for late in tries:
                late.cancel()
        elsewhere = self._crossing(route)
        if elsewhere is not None:
            await self._hand_over(elsewhere, batch.profiles, deadline_ns)
            return
        raise refused(failures, zone=route.zone, waits_ns=self._waits_ns(route))

    def _left_ns(self, deadline_ns: int) -> int:
        return deadline_ns - self._clock.monotonic_ns()

    def _candidates(self, route: Route, batch: ShardBatch) -> Iterator[Link]:
        """Whom to ask, in order; breakers are looked at when it is their turn.

        When there is nobody else, those that were only late are asked all the same.
        """
        late: list[Link] = []
        nobody = True
        for writer in route.placement.writers(batch.place):
            link = self._links.to(route.zone, writer.node) if route.takes(writer) else None
            if link is None:
                continue
            if link.allows(now_ns=self._clock.monotonic_ns()):
                nobody = False
                yield link
            elif link.late:
                late.append(link)
        if nobody:
            yield from late

    def _following(self, candidates: Iterator[Link], *, tried: int) -> Link | None:
        return next(candidates, None) if tried < self._settings.attempts_max else None

    def _next(
        self, following: Link | None, candidates: Iterator[Link], failure: Retryable | None
    ) -> Link | None:
        """Who is asked after a failure; None also when too much is being retried already."""
        now_ns = self._clock.monotonic_ns()
        while following is not None and not (following.allows(now_ns=now_ns) or following.late):
            following = next(candidates, None)  # it fell silent while we waited for another
        if following is None:
            return None
        if not isinstance(failure, Draining):  # that one has done nothing yet: no load is repeated
            after = budget.spent(self._budget, self._settings, now_ns=now_ns)
            if after is None:
                self._metrics.budget_exhausted.inc()
                return None
            self._budget = after
        self._metrics.failovers.inc()
        return following

    def _may_retry(self) -> bool:
        now_ns = self._clock.monotonic_ns()
        return budget.spent(self._budget, self._settings, now_ns=now_ns) is not None

    async def _try(self, link: Link, batch: ShardBatch, time_ns: int) -> Retryable | None:
        """Ask one writer; None when it has stored the batch."""
        probe = link.begin()
        try:
            return await self._told(link, batch, time_ns)
        finally:
            self._links.end(link, probe=probe)

    def _beside(self, link: Link, batch: ShardBatch, time_ns: int) -> Try:
        """The same, beside what else goes on; a task may be called off before it has begun."""
        probe = link.begin()
        task = self._begun(self._told(link, batch, time_ns))
        task.add_done_callback(lambda _: self._links.end(link, probe=probe))
        return task

    async def _told(self, link: Link, batch: ShardBatch, time_ns: int) -> Retryable | None:
        """What a writer says that may be said otherwise later or elsewhere; the rest is raised."""
        outcome = "given_up"
        try:
            failure = await self._asked(link, batch, time_ns)
            outcome = _outcome(failure)
        finally:
            self._metrics.tries.labels(outcome).inc()
        if failure is not None:
            log.debug("writer did not take a batch node=%s cause=%s", link.node, failure)
        if failure is not None and not isinstance(failure, Retryable):
            raise failure
        return failure

    async def _asked(self, link: Link, batch: ShardBatch, time_ns: int) -> MaarError | None:
        try:
            async with asyncio.timeout(time_ns / SECOND_NS):
                await link.writer.call(PushProfiles(batch.place.shard, batch.profiles))
        except TimeoutError:
            link.silent(now_ns=self._clock.monotonic_ns(), late=True)
            return Unreachable(
                f"segment writer {link.node} did not answer within {time_ns / SECOND_NS:.1f} s"
            )
        except Unreachable as error:
            link.silent(now_ns=self._clock.monotonic_ns(), late=False)
            return error
        except Draining as error:
            link.rest(now_ns=self._clock.monotonic_ns())
            return error
        except MaarError as error:
            link.answered()
            return error
        link.answered()
        return None

    def _count_crossed(self, route: Route, batch: ShardBatch) -> None:
        if route.zone != self._rings.zone:
            size = sum(len(profile.payload) for profile in batch.profiles)
            self._metrics.crossed_bytes.labels(route.zone).inc(size)
            self._metrics.crossed_profiles.labels(route.zone).inc(len(batch.profiles))

    # ------------------------------------------------------------------ which ring

    def _route(self) -> Route:
        """The home ring, or when home is down and that is allowed, another zone's."""
        home = self._routed(self._rings.home())
        if home is not None and self._usable(home):
            return home
        other = self._other_route(home)
        if other is not None:
            return other
        if home is not None and self._only_late(home):
            return home
        if home is None:
            raise Unavailable(
                f"the ring of zone {self._rings.zone} is not known yet, so nothing can be stored: "
                "the metastore has not told it, or no segment writer has joined; send it again",
                retry_after_s=RETRY_AFTER_S,
            )
        if not home.somebody():
            raise Unavailable(
                f"none of the {len(home.view.ring.writers)} segment writers of zone {home.zone} "
                "is active and heard from, so nothing can be stored; send it again, and see "
                "`maar ring`",
                retry_after_s=RETRY_AFTER_S,
            )
        raise refused([], zone=home.zone, waits_ns=self._waits_ns(home))

    def _other_route(self, home: Route | None) -> Route | None:
        if self._settings.cross_zone == "never" or (home is None and self._rings.awaited()):
            return None
        for view in self._rings.others():
            route = self._routed(view)
            if route is not None and self._usable(route):
                return route
        return None

    def _crossing(self, route: Route) -> Route | None:
        """Another zone's ring, when all of home fell silent while we asked."""
        if route.zone != self._rings.zone or self._usable(route):
            return None
        return self._other_route(route)

    def _routed(self, view: RingView | None) -> Route | None:
        """The ring under the rules of now; made anew only when one of them changed."""
        if view is None:
            return None
        known = self._routes.get(view.ring.zone)
        rules, now_ns = self._rules(), self._clock.monotonic_ns()
        if known is not None and known.serves(view, rules, now_ns=now_ns):
            return known
        placement = Placement(view.ring, rules, self._limits, self._random.randrange)
        route = Route(view, rules, placement, here=self._here, made_ns=now_ns)
        self._routes[view.ring.zone] = route
        if known is None or known.view is not view:
            self._links.know(one.view.ring for one in self._routes.values())
        return route

    def _usable(self, route: Route) -> bool:
        """Whether somebody there is worth a try now."""
        now_ns = self._clock.monotonic_ns()
        for writer in route.writers:
            if route.takes(writer):
                link = self._links.made(route.zone, writer.node)
                if link is None or link.allows(now_ns=now_ns):
                    return True
        return False

    def _only_late(self, route: Route) -> bool:
        """Whether somebody there was late and not silent: slow is better than nobody."""
        links = (self._links.made(route.zone, one.node) for one in route.writers)
        return any(link is not None and link.late for link in links)

    def _waits_ns(self, route: Route) -> int:
        """Until the first breaker of those that take pushes lets one through."""
        now_ns = self._clock.monotonic_ns()
        takers = filter(route.takes, route.writers)
        links = [self._links.made(route.zone, writer.node) for writer in takers]
        waits = [breaker.opens_in_ns(link.breaker, now_ns=now_ns) for link in links if link]
        return min(waits, default=0)

    def _breakers(self, state: BreakerState) -> float:
        return float(self._links.states(now_ns=self._clock.monotonic_ns())[state])

    def _home_writers(self) -> float:
        home = self._routed(self._rings.home())
        return float(sum(map(home.takes, home.writers))) if home is not None else 0.0


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
        self._rules = rules
        self._made_ns = made_ns
        self.zone = view.ring.zone
        self.writers = view.ring.writers
        dead = set(view.dead) - {here}  # we know better than the metastore that we live
        self._takers = frozenset(
            writer.node
            for writer in self.writers
            if writer.state is WriterState.ACTIVE and writer.node not in dead and view.ring.owners
        )

    def serves(self, view: RingView, rules: Rules, *, now_ns: int) -> bool:
        young = now_ns - self._made_ns < PLACEMENT_NS_MAX
        return self.view is view and self._rules is rules and young

    def takes(self, writer: Writer) -> bool:
        return writer.node in self._takers

    def somebody(self) -> bool:
        return bool(self._takers)


async def _heard(
    tries: set[Try], newest: Try | None, failures: list[Retryable], time_ns: int
) -> bool:
    """Whether one of the tries has stored the batch; waits for the newest, or for all, so long."""
    loop = asyncio.get_running_loop()
    until_s = loop.time() + time_ns / SECOND_NS
    while tries:
        done, _ = await asyncio.wait(
            tries, timeout=until_s - loop.time(), return_when=asyncio.FIRST_COMPLETED
        )
        tries -= done
        if any([_stored(task.result(), failures) for task in done]):
            return True
        if not done or newest in done:
            break
    return False


def _stored(failure: Retryable | None, failures: list[Retryable]) -> bool:
    if failure is not None:
        failures.append(failure)
    return failure is None


def try_ns(left_ns: int, *, others: bool) -> int:
    """How long a writer may take: half of what is left, so that a hung one leaves time for others.

    That is 6.5 s, then 3.2 s of 13: the second still has time for the longest flush interval and an
    upload. Whoever is the last to be asked gets all that is left.
    """
    return left_ns // 2 if others else left_ns


def worst(failures: Sequence[BaseException]) -> BaseException:
    """The one to answer with: what can never succeed, before what may later."""
    return next((one for one in failures if not isinstance(one, Retryable)), failures[0])


def refused(failures: Sequence[Retryable], *, zone: Zone, waits_ns: int) -> Retryable:
    """What to tell the client when nobody took its profiles."""
    full = [failure for failure in failures if isinstance(failure, Overloaded)]
    if full:
        waits = [failure.retry_after_s or RETRY_AFTER_S for failure in full]
        return Overloaded(
            f"the segment writers of zone {zone} have no room ({full[-1]}); back off",
            retry_after_s=min(waits),
        )
    if failures and isinstance(failures[-1], StoreFull):
        return failures[-1]
    cause = failures[-1] if failures else "they did not answer lately, and rest for a moment"
    return Unavailable(
        f"no segment writer of zone {zone} took the profiles ({cause}); send it again",
        retry_after_s=max(RETRY_AFTER_S, waits_ns / SECOND_NS),
    )


def _outcome(failure: MaarError | None) -> str:
    match failure:
        case None:
            return "stored"
        case Overloaded():
            return "overloaded"
        case Unreachable():
            return "unreachable"
        case Draining():
            return "draining"
        case Retryable():
            return "unavailable"
        case _:
            return "rejected"
