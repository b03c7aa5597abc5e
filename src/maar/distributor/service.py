"""A push through the distributor, from top to bottom: admit it, place it, send it to the writers.

`Distributor` admits a push whole or refuses it whole. `Router` sends each shard's profiles to the
segment writer of the shard, or to the next that can take them. The answer is for all together.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Iterable, Iterator, Sequence
from functools import partial
from random import Random
from typing import Any, NamedTuple, Protocol, TypeVar

import msgspec
from prometheus_client import CollectorRegistry

from maar.background import Threads, cancel
from maar.distributor import breaker
from maar.distributor.admit import PushedProfile, admit_all, push_size, refusal
from maar.distributor.breaker import BreakerState
from maar.distributor.links import Connect, Link, Links
from maar.distributor.metrics import PushMetrics, RouterMetrics
from maar.distributor.periods import RetentionPeriods
from maar.distributor.rings import FollowedRings
from maar.distributor.routes import RETRY_AFTER_S, Route, Routes, not_taken
from maar.distributor.settings import Limits, Rate, RouterSettings
from maar.distributor.shared_rates import OwnRates, PushRates
from maar.model.errors import (
    Draining,
    MaarError,
    Overloaded,
    Retryable,
    StoreFull,
    TooLarge,
    Unavailable,
    Unreachable,
)
from maar.model.ids import NodeId, ProfileId, TenantId, Zone
from maar.model.labels import fingerprint
from maar.model.profile import RawProfile
from maar.model.time import SECOND_NS
from maar.model.token_bucket import Refill, TokenBucket
from maar.placement.locate import Place
from maar.placement.rules import Rules, TenantLimits
from maar.ports.calls import Caller
from maar.ports.clock import Clock
from maar.ports.writer.segment_writer import PushProfiles, SegmentWriter
from maar.pprof import decode
from maar.pprof.gzip import promised_size

log = logging.getLogger("maar.distributor")

Try = asyncio.Task[Retryable | None]
T = TypeVar("T")

# Handing a profile to a thread costs about 0.1 ms; below this size checking it costs little more.
INLINE_BYTES_MAX = 512 << 10
INLINE_PROFILES_MAX = 16
INLINE_RAW_BYTES_MAX = 4 << 20  # what swells beyond this is given up and unpacked in a thread
ADMIT_THREADS = 2
CLOSE_S = 2.0
BATCH_BYTES_MAX = 24 << 20  # well below the 64 MiB that a message may have
PROFILE_OVERHEAD = 128  # bytes of a profile in a message, beside its texts and its payload
TELL_NS = SECOND_NS  # between two lines of the log about tenants over their rates


class Placer(Protocol):
    def place(self, tenant: TenantId, service: str, fingerprint: int) -> Place: ...


class ShardBatch(NamedTuple):
    """Profiles of one shard; where to go instead, the place of the first says."""

    place: Place
    profiles: tuple[RawProfile, ...]


class Handover(Protocol):
    """Takes admitted profiles to where they are stored."""

    async def push(self, profiles: Sequence[RawProfile]) -> None:
        """Return when all are durable and in the index; else raise for all."""
        ...


RateOf = Callable[[TenantId], Rate]


class Distributor:
    """The first stage behind the API. A push is admitted whole or refused whole."""

    def __init__(
        self,
        limits: Limits,
        router: Handover,
        clock: Clock,
        registry: CollectorRegistry,
        periods: RetentionPeriods | None = None,
        *,
        rate_of: RateOf | None = None,  # what tenants may push; else all the same
        rates: PushRates | None = None,  # who counts it; else this distributor for itself
        inline_bytes_max: int = INLINE_BYTES_MAX,
    ) -> None:
        self.limits = limits
        self.clock = clock
        self._periods = periods or RetentionPeriods()
        self._router = router
        self._rate_of = rate_of or (lambda _: limits.rate())
        self._rates = rates or OwnRates(clock)
        self._inline_bytes_max = inline_bytes_max
        self._told_ns = clock.monotonic_ns() - TELL_NS
        self._threads = Threads(ADMIT_THREADS, "admit")
        self._warm = False
        self._inline_limits = msgspec.structs.replace(
            limits,
            profile_bytes_max=min(limits.profile_bytes_max, INLINE_RAW_BYTES_MAX),
            push_raw_bytes_max=min(limits.push_raw_bytes_max, INLINE_RAW_BYTES_MAX),
        )
        self._metrics = PushMetrics(registry)
        self._compressed_bytes = self._metrics.bytes.labels("gzip")
        self._raw_bytes = self._metrics.bytes.labels("raw")

    async def start(self) -> None:
        """Compile what checks profiles, or load it compiled, before the first one comes."""
        await self._threads.do(decode.warm)
        self._warm = True

    async def push(self, tenant: TenantId, pushed: Sequence[PushedProfile]) -> list[ProfileId]:
        """Return the ids when every profile is durable and in the index; else raise for all."""
        began_ns = self.clock.monotonic_ns()
        try:
            profiles = await self._admit(tenant, pushed)
            del pushed  # as they came; from here on only what is stored of them is needed
            await self._router.push(profiles)
        except MaarError as error:
            self._metrics.refused.labels(refusal(error)).inc()
            raise
        self._metrics.profiles.inc(len(profiles))
        self._metrics.samples.inc(sum(profile.samples for profile in profiles))
        self._compressed_bytes.inc(sum(len(profile.payload) for profile in profiles))
        self._raw_bytes.inc(sum(profile.raw_size for profile in profiles))
        self._metrics.seconds.observe((self.clock.monotonic_ns() - began_ns) / 1e9)
        return [profile.id for profile in profiles]

    async def count_in(self, tenant: TenantId, size: int) -> None:
        """Count the bytes of a push that has to be unpacked before it is one, or Overloaded."""
        try:
            await self._check_rate(tenant, size)
        except MaarError as error:
            self._metrics.refused.labels(refusal(error)).inc()
            raise

    def close(self) -> None:
        self._threads.close()

    async def _admit(self, tenant: TenantId, pushed: Sequence[PushedProfile]) -> list[RawProfile]:
        size = push_size(pushed, self.limits)
        limit = self.limits.profile_bytes_max
        promised = sum(profile.counted_bytes for profile in pushed)
        if not promised:
            promised = sum(
                max(promised_size(profile.body, limit=limit), profile.read_bytes)
                for profile in pushed
            )
            await self._check_rate(tenant, promised)
        now_ns, kept_ns = self.clock.wall_ns(), self._periods.of(tenant)
        profiles: list[RawProfile] | None = None
        if self._warm and size <= self._inline_bytes_max and len(pushed) <= INLINE_PROFILES_MAX:
            try:
                profiles = admit_all(tenant, pushed, now_ns, self._inline_limits, kept_ns)
            except TooLarge:
                pass  # perhaps only for here
        if profiles is None:
            profiles = await self._threads.do(
                admit_all, tenant, pushed, now_ns, self.limits, kept_ns
            )
            self._warm = True  # the first one compiled what start() would have
        cost = sum(
            max(profile.raw_size, one.read_bytes)
            for profile, one in zip(profiles, pushed, strict=True)
        )
        await self._rates.owe(tenant, self._rate_of(tenant), cost - promised)
        return profiles

    async def _check_rate(self, tenant: TenantId, size: int) -> None:
        """Before anything is unpacked: a tenant over its rate must not cost the others CPU."""
        try:
            await self._rates.take(tenant, self._rate_of(tenant), size)
        except Overloaded as error:
            self._metrics.over_rate.inc()
            self._tell(error)
            raise

    def _tell(self, error: Overloaded) -> None:
        """Log at most once a second, for all tenants together."""
        now_ns = self.clock.monotonic_ns()
        if now_ns - self._told_ns >= TELL_NS:
            self._told_ns = now_ns
            log.warning("push refused cause=%s", error)


class Router:
    """Places a push's profiles, hands each shard's batch over, and answers for all together.

    A batch keeps its shard wherever it goes, so that locality survives a failover. What a writer
    rejects is rejected; what it has no room for, or does not answer, goes to the next writer in the
    dataset's own order, within the deadline and the budget of retries. The same batch stored twice
    shows once (S9).
    """

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
        self._home = rings.zone
        self._clock = clock
        self.links = Links(connect, rings.zone, local)
        self._routes = Routes(
            rings,
            rules,
            limits,
            self.links,
            clock,
            random,
            cross_zone=settings.cross_zone != "never",
            here=local[0] if local is not None else None,
        )

        # How often pushes may be tried again, all together: a sick fleet must not get n times the
        # load. Each batch that is handed over earns a share of a retry, and time earns a few a
        # second, so that a quiet distributor may retry too. What is saved up is for the moment in
        # which a writer dies and everything that waited there has to go elsewhere.
        self._retries = TokenBucket(clock.monotonic_ns())
        self._retry_refill = Refill(settings.retries_per_s, settings.retries_saved_max)
        self._under_way: set[asyncio.Task[Any]] = set()
        self._metrics = RouterMetrics(registry)
        for state in BreakerState:
            self._metrics.breakers.labels(state).set_function(partial(self._breakers, state))
        self._metrics.writers.set_function(self._routes.home_writers)

    async def push(self, profiles: Sequence[RawProfile]) -> None:
        """Return when all are stored; else Overloaded, Unavailable, or what a writer rejected."""
        deadline_ns = self._clock.monotonic_ns() + self._deadline_ns
        await self._push_by(self._routes.current(), profiles, deadline_ns)

    async def _push_by(
        self, route: Route, profiles: Sequence[RawProfile], deadline_ns: int
    ) -> None:
        """All shards at the same time."""
        parts = batches(profiles, route.placement)
        self._retries.give(len(parts) * self._settings.retry_share)
        if len(parts) == 1:
            await self._deliver(route, parts[0], deadline_ns)
            return
        # All are awaited, also after a failure, so that the answer speaks for every shard; and
        # they go on when nobody awaits them any more.
        tasks = [self._start_task(self._deliver(route, part, deadline_ns)) for part in parts]
        await asyncio.wait(tasks)
        failures = [error for task in tasks if (error := task.exception()) is not None]
        if failures:
            raise worst(failures)

    async def _deliver(self, route: Route, batch: ShardBatch, deadline_ns: int) -> None:
        """Hand one batch to the first writer that takes it.

        A writer that is late is not called off when the next one is asked: it may only be slow, as
        all of them are when the store or the metastore is, and then its answer still counts.
        """
        failures: list[Retryable] = []
        tries: set[Try] = set()
        candidates = self._candidates(route, batch)
        now_ns, attempts_max = self._clock.monotonic_ns, self._settings.attempts_max
        link, tried = next(candidates, None), 0
        try:
            while link is not None and (left_ns := deadline_ns - now_ns()) > 0:
                tried += 1
                following = next(candidates, None) if tried < attempts_max else None
                others = (
                    following is not None
                    and self._retries.wait_ns(1, self._retry_refill, now_ns=now_ns()) == 0
                )
                if not others and not tries:
                    probe = link.begin()
                    try:
                        newest = await self._send(link, batch, left_ns)
                    finally:
                        self.links.end(link, probe=probe)
                    stored = newest is None
                    if newest is not None:
                        failures.append(newest)
                else:
                    task = self.send_beside(link, batch, left_ns)
                    tries.add(task)
                    stored = await _wait_any(tries, task, failures, try_ns(left_ns, others=others))
                    newest = task.result() if task.done() else None
                    if newest is None and not stored:
                        link.silent(now_ns=now_ns(), late=True)
                if stored:
                    self._count_crossed(route, batch)
                    return
                if isinstance(newest, StoreFull):  # it is the same store for every writer
                    break
                link = self._next(following, candidates, newest)
            if await _wait_any(tries, None, failures, max(0, deadline_ns - now_ns())):
                self._count_crossed(route, batch)
                return
        finally:
            for late in tries:
                late.cancel()
        elsewhere = self._routes.crossing(route)
        if elsewhere is not None:
            await self._push_by(elsewhere, batch.profiles, deadline_ns)
            return
        raise undelivered_error(failures, zone=route.zone, waits_ns=self._routes.waits_ns(route))

    def send_beside(self, link: Link, batch: ShardBatch, time_ns: int) -> Try:
        """Send beside what else goes on; a task may be called off before it has begun."""
        probe = link.begin()
        task = self._start_task(self._send(link, batch, time_ns))
        task.add_done_callback(lambda _: self.links.end(link, probe=probe))
        return task

    async def _send(self, link: Link, batch: ShardBatch, time_ns: int) -> Retryable | None:
        """Send a batch to one writer; None when it has stored it.

        A failure that may pass later or elsewhere is returned, any other is raised.
        """
        failure: MaarError | None = None
        try:
            async with asyncio.timeout(time_ns / SECOND_NS):
                await link.writer.call(PushProfiles(batch.place.shard, batch.profiles))
        except TimeoutError:
            link.silent(now_ns=self._clock.monotonic_ns(), late=True)
            failure = Unreachable(
                f"segment writer {link.node} did not answer within {time_ns / SECOND_NS:.1f} s"
            )
        except Unreachable as error:
            link.silent(now_ns=self._clock.monotonic_ns(), late=False)
            failure = error
        except Draining as error:
            link.rest(now_ns=self._clock.monotonic_ns())
            failure = error
        except MaarError as error:
            link.on_answer()
            failure = error
        except BaseException:  # raised again: also a try that is cancelled counts as one
            self._metrics.tries.labels("given_up").inc()
            raise
        else:
            link.on_answer()
        self._metrics.tries.labels(_outcome(failure)).inc()
        if failure is not None:
            log.debug("writer did not take a batch node=%s cause=%s", link.node, failure)
        if failure is not None and not isinstance(failure, Retryable):
            raise failure
        return failure

    def _candidates(self, route: Route, batch: ShardBatch) -> Iterator[Link]:
        """Whom to ask, in order; breakers are looked at when it is their turn.

        When there is nobody else, those that were only late are asked all the same.
        """
        late: list[Link] = []
        nobody = True
        for writer in route.placement.writers(batch.place):
            link = self.links.to(route.zone, writer.node) if writer.node in route.takers else None
            if link is None:
                continue
            if breaker.allows(link.breaker, now_ns=self._clock.monotonic_ns()):
                nobody = False
                yield link
            elif link.late:
                late.append(link)
        if nobody:
            yield from late

    def _next(
        self, following: Link | None, candidates: Iterator[Link], failure: Retryable | None
    ) -> Link | None:
        """Who is asked after a failure; None also when too much is being retried already."""
        now_ns = self._clock.monotonic_ns()
        while following is not None and not (
            breaker.allows(following.breaker, now_ns=now_ns) or following.late
        ):
            following = next(candidates, None)  # it fell silent while we waited for another
        if following is None:
            return None
        # A writer that drains has done nothing yet: no load is repeated.
        if not isinstance(failure, Draining) and not self._retries.take(
            1, self._retry_refill, now_ns=now_ns
        ):
            self._metrics.budget_exhausted.inc()
            return None
        self._metrics.failovers.inc()
        return following

    def _count_crossed(self, route: Route, batch: ShardBatch) -> None:
        if route.zone != self._home:
            size = sum(len(profile.payload) for profile in batch.profiles)
            self._metrics.crossed_bytes.labels(route.zone).inc(size)
            self._metrics.crossed_profiles.labels(route.zone).inc(len(batch.profiles))

    def _start_task(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        task = asyncio.create_task(work)
        self._under_way.add(task)
        task.add_done_callback(self._on_task_end)
        return task

    def _on_task_end(self, task: asyncio.Task[Any]) -> None:
        self._under_way.discard(task)
        if not task.cancelled():
            task.exception()  # seen, also when the client has hung up

    def ready(self) -> str:
        """'' when there is somebody to push to, else why not."""
        try:
            self._routes.current()
        except Unavailable as error:
            return str(error)
        return ""

    async def close(self) -> None:
        """Pushes still in flight have lost their clients; they get a moment to end."""
        if self._under_way:
            _, late = await asyncio.wait(self._under_way, timeout=CLOSE_S)
            await cancel(*late)
        await self.links.close()

    def _breakers(self, state: BreakerState) -> float:
        return float(self.links.states(now_ns=self._clock.monotonic_ns())[state])


def batches(
    profiles: Sequence[RawProfile], places: Placer, *, bytes_max: int = BATCH_BYTES_MAX
) -> list[ShardBatch]:
    """A push's profiles by shard, in batches that fit in a message between processes."""
    placed = [
        (places.place(each.tenant, each.service, fingerprint(each.labels)), each)
        for each in profiles
    ]
    if len(placed) == 1:  # as most pushes are
        return [ShardBatch(placed[0][0], (placed[0][1],))]
    by_shard: dict[int, tuple[Place, list[RawProfile]]] = {}
    for place, profile in placed:
        by_shard.setdefault(place.shard, (place, []))[1].append(profile)
    return [
        ShardBatch(place, part)
        for place, shard_profiles in by_shard.values()
        for part in _parts(shard_profiles, bytes_max)
    ]


def message_bytes(profile: RawProfile) -> int:
    """About what a profile weighs in a message."""
    texts = sum(len(name) + len(value) for name, value in profile.labels)
    return len(profile.payload) + texts + sum(map(len, profile.types)) + PROFILE_OVERHEAD


def _parts(profiles: Iterable[RawProfile], bytes_max: int) -> Iterator[tuple[RawProfile, ...]]:
    part: list[RawProfile] = []
    size = 0
    for profile in profiles:
        weight = message_bytes(profile)
        if part and size + weight > bytes_max:
            yield tuple(part)
            part, size = [], 0
        part.append(profile)
        size += weight
    if part:
        yield tuple(part)


async def _wait_any(
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
        outcomes = [task.result() for task in done]
        failures += [failure for failure in outcomes if failure is not None]
        if None in outcomes:
            return True
        if not done or newest in done:
            break
    return False


def try_ns(left_ns: int, *, others: bool) -> int:
    """How long a writer may take: half of what is left, so that a hung one leaves time for others.

    That is 6.5 s, then 3.2 s of 13: the second still has time for the longest flush interval and an
    upload. Whoever is the last to be asked gets all that is left.
    """
    return left_ns // 2 if others else left_ns


def worst(failures: Sequence[BaseException]) -> BaseException:
    """The one to answer with: what can never succeed, before what may later."""
    return next((one for one in failures if not isinstance(one, Retryable)), failures[0])


def undelivered_error(failures: Sequence[Retryable], *, zone: Zone, waits_ns: int) -> Retryable:
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
    cause = failures[-1] if failures else "they did not answer lately and are skipped for a moment"
    return not_taken(cause, zone=zone, waits_ns=waits_ns)


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
