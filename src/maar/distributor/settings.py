"""What one push may hold, what a tenant may push, and how hard a distributor tries."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta, Struct

from maar.distributor.budget import BudgetRule
from maar.model.time import SECOND_NS
from maar.pprof.limits import ProfileLimits


class Rate(Struct, frozen=True):
    """Bytes when decompressed, by each distributor; 0: no limit."""

    rate_bytes: Annotated[int, Meta(ge=0)] = 0  # a second
    burst_bytes: Annotated[int, Meta(ge=0)] = 0  # at once; 0: what a second allows

    @property
    def room_bytes(self) -> int:
        return self.burst_bytes or self.rate_bytes


class Limits(Struct, frozen=True):
    """What one push may ask of us."""

    profiles_max: int = 1000  # in one push
    profile_bytes_max: int = 64 << 20  # of one profile, decompressed
    push_bytes_max: int = 128 << 20  # of all profiles of a push, as they came
    push_raw_bytes_max: int = 512 << 20  # of all profiles of a push, decompressed
    service_bytes_max: int = 512  # services and types are kept in the index
    type_length_max: int = 512  # of one profile type id
    retention_ns: int = 0  # older profiles are refused; 0: as old as their tenant keeps them
    future_ns: int = 600 * SECOND_NS
    rate_bytes: int = 0  # a second and tenant, by each distributor; 0: no limit
    burst_bytes: int = 0  # of a tenant at once; 0: what a second allows
    profile: ProfileLimits = ProfileLimits()

    def rate(self) -> Rate:
        return Rate(self.rate_bytes, self.burst_bytes)


class RouterSettings(Struct, frozen=True):
    """How hard the distributor tries, and whether it leaves its zone."""

    # Of one push, all its tries together: longer than a flush (2 s) and the deadline of a segment
    # (10 s), so that a lone writer can say itself what went wrong.
    deadline_ms: Annotated[int, Meta(ge=100, le=600_000)] = 13_000
    attempts_max: Annotated[int, Meta(ge=1, le=100)] = 6  # writers asked for one batch
    retry_share: Annotated[float, Meta(ge=0, le=10)] = 0.1  # retries that each batch earns
    retries_per_s: Annotated[float, Meta(ge=0, le=100_000)] = 10.0  # … and each second
    retries_saved_max: Annotated[int, Meta(ge=1, le=1_000_000)] = 500
    cross_zone: Literal["never", "when-home-is-down"] = "never"

    def budget(self) -> BudgetRule:
        return BudgetRule(self.retry_share, self.retries_per_s, self.retries_saved_max)
