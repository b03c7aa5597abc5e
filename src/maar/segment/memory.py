"""What may wait in memory, and whose pushes are refused first when it gets scarce."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import NamedTuple

import msgspec

from maar.model.errors import Overloaded, TooLarge
from maar.model.ids import TenantId
from maar.model.profile import RawProfile
from maar.segment.settings import SegmentSettings

LATELY_NS = 60_000_000_000  # a tenant that has pushed within this has a part of the room
TENANTS_SEEN_MAX = 10_000
PROFILE_OVERHEAD = 1024  # bytes that one waiting profile costs beside its payload and labels


class MemoryUse(msgspec.Struct, frozen=True):
    """Bytes and profiles by tenant: of one push, or of one segment."""

    sizes: dict[TenantId, int]
    counts: dict[TenantId, int]
    size: int  # of all tenants
    profiles: int


class NoRoom(NamedTuple):
    """Why there is no room for a push: a short word for the metric, and the answer."""

    reason: str
    error: Overloaded | TooLarge


class Memory:
    """What is held until its segment is acknowledged or given up, by tenant."""

    def __init__(self, settings: SegmentSettings) -> None:
        self._settings = settings
        self._sizes: Counter[TenantId] = Counter()
        self._counts: Counter[TenantId] = Counter()
        self._seen: dict[TenantId, int] = {}  # when each last pushed, the oldest first
        self.size = 0
        self.profiles = 0

    @property
    def tenants(self) -> int:
        return len(self._counts)

    def take(self, load: MemoryUse, *, now_ns: int) -> NoRoom | None:
        """Count it in; or why not: the agent backs off and nothing is buffered."""
        # Also one who is refused has come for its part: the others shall leave it.
        for tenant in load.counts:
            self._seen.pop(tenant, None)
            self._seen[tenant] = now_ns
        while self._seen:
            tenant, seen_ns = next(iter(self._seen.items()))
            if len(self._seen) <= TENANTS_SEEN_MAX and seen_ns >= now_ns - LATELY_NS:
                break
            del self._seen[tenant]
        refusal = self._refusal(load)
        if refusal is None:
            self._sizes.update(load.sizes)
            self._counts.update(load.counts)
            self.size += load.size
            self.profiles += load.profiles
        return refusal

    def give_back(self, load: MemoryUse) -> None:
        self.size -= load.size
        self.profiles -= load.profiles
        self._sizes.subtract(load.sizes)
        self._counts.subtract(load.counts)
        for tenant in load.counts:
            if not self._counts[tenant]:
                del self._counts[tenant], self._sizes[tenant]

    def _refusal(self, load: MemoryUse) -> NoRoom | None:
        bytes_max = self._settings.buffered_bytes_max
        profiles_max = self._settings.buffered_profiles_max
        if self._part(load.size, load.profiles) > 1:
            return NoRoom(
                "too_large",
                TooLarge(
                    f"a push of {load.size} bytes in {load.profiles} profiles is more than a "
                    f"segment writer holds ({bytes_max} bytes, {profiles_max} profiles); "
                    "send less at once"
                ),
            )
        size, profiles = self.size + load.size, self.profiles + load.profiles
        if size > bytes_max:
            return _full(
                "bytes",
                f"{self.size} bytes of profiles wait to be written and {load.size} more would "
                f"exceed {bytes_max}",
            )
        if profiles > profiles_max:
            return _full(
                "profiles",
                f"{self.profiles} profiles wait to be written and {load.profiles} more would "
                f"exceed {profiles_max}",
            )
        return self._unfair(load) if 2 * self._part(size, profiles) > 1 else None

    def _part(self, size: int, profiles: int) -> float:
        """Which part of the memory this takes, by whichever of the two is scarcer."""
        by_size = size / self._settings.buffered_bytes_max
        return max(by_size, profiles / self._settings.buffered_profiles_max)

    def _unfair(self, load: MemoryUse) -> NoRoom | None:
        """Over half full, nobody gets more than an equal part: the rest is for the others.

        The others are those that pushed lately, not only those that wait now: who sends little is
        answered soon, and must find room the next time, too.
        """
        tenants = len(self._seen)
        for tenant in load.counts:
            size = self._sizes[tenant] + load.sizes[tenant]
            part = self._part(size, self._counts[tenant] + load.counts[tenant])
            if tenants * part > 1:
                return _full(
                    "fair_share",
                    f"{self._sizes[tenant]} bytes of profiles of tenant {tenant} wait to be "
                    f"written, and {tenants} tenants share what there is room for",
                )
        return None


def _full(reason: str, fact: str) -> NoRoom:
    later = "the store is slower than the pushes: send it again later"
    return NoRoom(reason, Overloaded(f"{fact}; {later}"))


def load_of(profiles: Iterable[RawProfile]) -> MemoryUse:
    sizes: dict[TenantId, int] = {}
    counts: dict[TenantId, int] = {}
    for profile in profiles:
        sizes[profile.tenant] = sizes.get(profile.tenant, 0) + held_bytes(profile)
        counts[profile.tenant] = counts.get(profile.tenant, 0) + 1
    return MemoryUse(sizes, counts, sum(sizes.values()), sum(counts.values()))


def held_bytes(profile: RawProfile) -> int:
    labels = sum(len(name) + len(value) for name, value in profile.labels)
    return len(profile.payload) + labels + PROFILE_OVERHEAD
