"""Limits of pushes and tenants, and how a distributor retries."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta, Struct

from maar.model.bounds import Natural
from maar.model.time import SECOND_NS
from maar.pprof.limits import ProfileLimits


class Rate(Struct, frozen=True):
    """Bytes when decompressed, by each distributor; 0: no limit."""

    rate_bytes: Natural = 0
    """What a tenant may push, in bytes a second; 0: no limit. Profiles count as they are when
    decompressed, since that is what they cost: 12 kB of gzip can hold a million samples. A gzip
    pprof of an agent is a third to a fifth of that, so a limit that was meant for compressed bytes
    should be raised by as much. (The bounds of memory count what is held, which is the gzip.) Each
    distributor counts for itself: with three of them a tenant may push three times as much; fronts
    of one `maar serve` (`server.fronts`) count together. Beyond it 429, and `Retry-After` says
    when.
    """
    burst_bytes: Natural = 0
    """What a tenant may push at once after a pause; 0: what a second allows. A push that is larger
    passes when the tenant owes nothing, and is paid off before the next.
    """

    @property
    def room_bytes(self) -> int:
        return self.burst_bytes or self.rate_bytes


class Limits(Rate, frozen=True):
    """What one push may ask of us."""

    profiles_max: Natural = 1000
    """Profiles in one push."""
    profile_bytes_max: Natural = 64 << 20
    """One profile, decompressed."""
    push_bytes_max: Natural = 128 << 20
    """All profiles of one push, as they came."""
    push_raw_bytes_max: Natural = 512 << 20
    """All profiles of one push, decompressed."""
    service_bytes_max: Natural = 512
    """Length of a service's name, in bytes."""
    type_length_max: Natural = 512
    """Length of one profile type id."""
    retention_ns: Natural = 0
    """Profiles older than this are refused (nanoseconds); 0: only those older than their tenant's
    retention, which are refused in any case.
    """
    future_ns: Natural = 600 * SECOND_NS
    """Profiles dated further ahead than this are refused (nanoseconds; 10 minutes)."""
    profile: ProfileLimits = ProfileLimits()

    def rate(self) -> Rate:
        return Rate(self.rate_bytes, self.burst_bytes)


class RouterSettings(Struct, frozen=True):
    """How the distributor retries, and whether it may use another zone."""

    deadline_ms: Annotated[int, Meta(ge=100, le=600_000)] = 13_000
    """How long a push may take, all its tries together. A writer gets half of what is left (6.5 s,
    then 3.2 s), the last one to be asked all of it. Longer than a flush and
    `segment.ack_deadline_ms`, so that a lone writer can say itself what went wrong.
    """
    attempts_max: Annotated[int, Meta(ge=1, le=100)] = 6
    """Writers that are asked for the profiles of one shard, one after the other."""
    retry_share: Annotated[float, Meta(ge=0, le=10)] = 0.1
    """Retries that each batch of a shard adds to the budget: a failing fleet gets a tenth more
    load, not six times as much.
    """
    retries_per_s: Annotated[float, Meta(ge=0, le=100_000)] = 10.0
    """Retries that each second adds to the budget, for quiet times."""
    retries_saved_max: Annotated[int, Meta(ge=1, le=1_000_000)] = 500
    """Retries that can be saved up, for the moment in which a writer dies and all that waited there
    goes elsewhere.
    """
    cross_zone: Literal["never", "when-home-is-down"] = "never"
    """`never`: a distributor stores in its own zone or not at all. `when-home-is-down`: when no
    writer of its zone is active and answers, in the next zone by name; that is counted.
    """
