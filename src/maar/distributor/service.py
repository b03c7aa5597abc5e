"""Admit a push, hand each shard its profiles, and answer only for all of them together."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Protocol

import msgspec
from prometheus_client import CollectorRegistry, Counter, Histogram

from maar.distributor.admit import Limits, PushedProfile, admit, refusal
from maar.distributor.periods import Periods
from maar.model.errors import InvalidInput, MaarError, Retryable, TooLarge
from maar.model.ids import ProfileId, Shard, TenantId
from maar.model.labels import fingerprint
from maar.model.profile import RawProfile
from maar.ports.clock import Clock
from maar.ports.segment_writer import SegmentWriter
from maar.pprof import decode

log = logging.getLogger("maar.distributor")

# Handing a profile to a thread costs about 0.1 ms; below this size checking it costs little more.
INLINE_BYTES_MAX = 512 << 10
INLINE_PROFILES_MAX = 16
INLINE_RAW_BYTES_MAX = 4 << 20  # what swells beyond this is given up and unpacked in a thread
ADMIT_THREADS = 2


class Placement(Protocol):
    """Where a profile goes; the ring behind it may change."""

    def place(self, tenant: TenantId, service: str, fingerprint: int) -> Shard: ...


class Distributor:
    """The first stage behind the API. A push is admitted whole or refused whole."""

    def __init__(
        self,
        limits: Limits,
        writer: SegmentWriter,
        shards: Placement,
        clock: Clock,
        registry: CollectorRegistry,
        periods: Periods | None = None,
    ) -> None:
        self.limits = limits
        self.clock = clock
        self._periods = periods or Periods()
        self._writer = writer
        self._shards = shards
        self._threads = ThreadPoolExecutor(ADMIT_THREADS, thread_name_prefix="admit")
        self._warm = False
        self._inline_limits = msgspec.structs.replace(
            limits,
            profile_bytes_max=min(limits.profile_bytes_max, INLINE_RAW_BYTES_MAX),
            push_raw_bytes_max=min(limits.push_raw_bytes_max, INLINE_RAW_BYTES_MAX),
        )
        self._profiles = Counter(
            "maar_distributor_profiles", "Profiles acknowledged", registry=registry
        )
        self._bytes = Counter(
            "maar_distributor_bytes",
            "Bytes of acknowledged profiles, compressed and raw",
            ["form"],
            registry=registry,
        )
        self._compressed_bytes = self._bytes.labels("gzip")
        self._raw_bytes = self._bytes.labels("raw")
        self._samples = Counter(
            "maar_distributor_samples", "Samples acknowledged", registry=registry
        )
        self._refused = Counter(
            "maar_distributor_refused",
            "Pushes refused by admission, or failed behind it",
            ["reason"],
            registry=registry,
        )
        self._seconds = Histogram(
            "maar_distributor_push_seconds",
            "From the parsed push to its acknowledgement",
            buckets=(0.05, 0.1, 0.25, 0.5, 0.75, 1, 2, 5, 10),
            registry=registry,
        )

    async def start(self) -> None:
        """Compile what checks profiles, or load it compiled, before the first one comes."""
        await asyncio.get_running_loop().run_in_executor(self._threads, decode.warm)
        self._warm = True

    async def push(self, tenant: TenantId, pushed: Sequence[PushedProfile]) -> list[ProfileId]:
        """Return the ids when every profile is durable and in the index; else raise for all."""
        began_ns = self.clock.monotonic_ns()
        try:
            profiles = await self._admit(tenant, pushed)
            await self._hand_over(profiles)
        except MaarError as error:
            self._refused.labels(refusal(error)).inc()
            raise
        self._profiles.inc(len(profiles))
        self._samples.inc(sum(profile.samples for profile in profiles))
        self._compressed_bytes.inc(sum(len(profile.payload) for profile in profiles))
        self._raw_bytes.inc(sum(profile.raw_size for profile in profiles))
        self._seconds.observe((self.clock.monotonic_ns() - began_ns) / 1e9)
        return [profile.id for profile in profiles]

    def close(self) -> None:
        self._threads.shutdown(wait=False, cancel_futures=True)

    async def _admit(self, tenant: TenantId, pushed: Sequence[PushedProfile]) -> list[RawProfile]:
        size = self._check_size(pushed)
        now_ns, kept_ns = self.clock.wall_ns(), self._periods.of(tenant)
        if self._warm and size <= INLINE_BYTES_MAX and len(pushed) <= INLINE_PROFILES_MAX:
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

    async def _hand_over(self, profiles: Sequence[RawProfile]) -> None:
        by_shard: dict[Shard, list[RawProfile]] = {}
        for profile in profiles:
            shard = self._shards.place(profile.tenant, profile.service, fingerprint(profile.labels))
            by_shard.setdefault(shard, []).append(profile)
        if len(by_shard) == 1:
            ((shard, batch),) = by_shard.items()
            await self._writer.push(shard, tuple(batch))
            return
        # All are awaited, also after a failure, so that the answer speaks for every shard.
        results = await asyncio.gather(
            *(self._writer.push(shard, tuple(batch)) for shard, batch in by_shard.items()),
            return_exceptions=True,
        )
        failures = [result for result in results if isinstance(result, BaseException)]
        if failures:
            raise next((one for one in failures if not isinstance(one, Retryable)), failures[0])


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
