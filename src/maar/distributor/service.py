"""Admit a push, hand its profiles on, and answer only for all of them together."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Protocol

import msgspec
from prometheus_client import CollectorRegistry

from maar.distributor.admit import PushedProfile, admit, refusal
from maar.distributor.metrics import PushMetrics
from maar.distributor.periods import RetentionPeriods
from maar.distributor.rates import Rates
from maar.distributor.settings import Limits, Rate
from maar.model.errors import InvalidInput, MaarError, Overloaded, TooLarge
from maar.model.ids import ProfileId, TenantId
from maar.model.profile import RawProfile
from maar.model.time import SECOND_NS
from maar.ports.clock import Clock
from maar.pprof import decode
from maar.pprof.gzip import promised_size

log = logging.getLogger("maar.distributor")

# Handing a profile to a thread costs about 0.1 ms; below this size checking it costs little more.
INLINE_BYTES_MAX = 512 << 10
INLINE_PROFILES_MAX = 16
INLINE_RAW_BYTES_MAX = 4 << 20  # what swells beyond this is given up and unpacked in a thread
ADMIT_THREADS = 2
TELL_NS = SECOND_NS  # between two lines of the log about tenants over their rates


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
        inline_bytes_max: int = INLINE_BYTES_MAX,
    ) -> None:
        self.limits = limits
        self.clock = clock
        self._periods = periods or RetentionPeriods()
        self._router = router
        self._rate_of = rate_of or (lambda _: limits.rate())
        self._rates = Rates()
        self._inline_bytes_max = inline_bytes_max
        self._told_ns = clock.monotonic_ns() - TELL_NS
        self._threads = ThreadPoolExecutor(ADMIT_THREADS, thread_name_prefix="admit")
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
        await asyncio.get_running_loop().run_in_executor(self._threads, decode.warm)
        self._warm = True

    async def push(self, tenant: TenantId, pushed: Sequence[PushedProfile]) -> list[ProfileId]:
        """Return the ids when every profile is durable and in the index; else raise for all."""
        began_ns = self.clock.monotonic_ns()
        try:
            profiles = await self._admit(tenant, pushed)
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

    def close(self) -> None:
        self._threads.shutdown(wait=False, cancel_futures=True)

    async def _admit(self, tenant: TenantId, pushed: Sequence[PushedProfile]) -> list[RawProfile]:
        size = self._check_size(pushed)
        limit = self.limits.profile_bytes_max
        promised = sum(
            max(promised_size(profile.body, limit=limit), profile.read_bytes) for profile in pushed
        )
        self._check_rate(tenant, promised)
        profiles = await self._checked(tenant, pushed, size)
        surprise = sum(profile.raw_size for profile in profiles) - promised
        self._rates.owe(tenant, self._rate_of(tenant), surprise, now_ns=self.clock.monotonic_ns())
        return profiles

    async def _checked(
        self, tenant: TenantId, pushed: Sequence[PushedProfile], size: int
    ) -> list[RawProfile]:
        now_ns, kept_ns = self.clock.wall_ns(), self._periods.of(tenant)
        if self._warm and size <= self._inline_bytes_max and len(pushed) <= INLINE_PROFILES_MAX:
            try:
                return _admitted(tenant, pushed, now_ns, self._inline_limits, kept_ns)
            except TooLarge:
                pass  # perhaps only for here
        loop = asyncio.get_running_loop()
        admitted = await loop.run_in_executor(
            self._threads, _admitted, tenant, pushed, now_ns, self.limits, kept_ns
        )
        self._warm = True  # the first one compiled what start() would have
        return admitted

    def _check_size(self, pushed: Sequence[PushedProfile]) -> int:
        if not pushed:
            raise InvalidInput("the push holds no profile", reason="empty")
        if len(pushed) > self.limits.profiles_max:
            raise TooLarge(
                f"{len(pushed)} profiles in one push are over {self.limits.profiles_max}; "
                "send them in several"
            )
        size = sum(len(profile.body) for profile in pushed)
        if size > self.limits.push_bytes_max:
            raise TooLarge(
                f"{size} bytes of profiles in one push are over {self.limits.push_bytes_max}; "
                "send them in several"
            )
        return size

    def _check_rate(self, tenant: TenantId, size: int) -> None:
        """Before anything is unpacked: a tenant over its rate must not cost the others CPU."""
        try:
            self._rates.take(tenant, self._rate_of(tenant), size, now_ns=self.clock.monotonic_ns())
        except Overloaded as error:
            self._metrics.over_rate.inc()
            self._tell(error)
            raise

    def _tell(self, error: Overloaded) -> None:
        """One a second, for all tenants together: who is over its rate is so again and again."""
        now_ns = self.clock.monotonic_ns()
        if now_ns - self._told_ns >= TELL_NS:
            self._told_ns = now_ns
            log.warning("push refused: %s", error)


def _admitted(
    tenant: TenantId,
    pushed: Sequence[PushedProfile],
    now_ns: int,
    limits: Limits,
    kept_ns: int,
) -> list[RawProfile]:
    profiles: list[RawProfile] = []
    left = limits.push_raw_bytes_max
    for one in pushed:
        profile = admit(one, tenant=tenant, now_ns=now_ns, limits=limits, kept_ns=kept_ns)
        left -= profile.raw_size
        if left < 0:
            raise TooLarge(
                f"the profiles of one push have over {limits.push_raw_bytes_max} bytes, "
                "decompressed; send them in several"
            )
        profiles.append(profile)
    return profiles
