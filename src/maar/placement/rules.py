"""How many shards a dataset gets and how its profiles are spread over them: data, not decisions."""

from __future__ import annotations

from collections.abc import Mapping
from enum import IntEnum
from typing import Annotated, Literal, NamedTuple

import msgspec
from msgspec import Meta

from maar.model.ids import TenantId

Count = Annotated[int, Meta(ge=1)]
# What one tenant is given must never make the rules of all unreadable.
Shards = Annotated[int, Meta(ge=1, le=1 << 20)]
Window = Annotated[float, Meta(ge=0, le=30 * 86_400)]


class Balancing(IntEnum):
    """By number on the wire."""

    UNSPECIFIED = 0
    FINGERPRINT = 1  # a series keeps its shard
    ROUND_ROBIN = 2  # any of the dataset's shards, by chance: the series are too uneven

    @property
    def spoken(self) -> str:
        """As settings and people spell it."""
        return self.name.lower().replace("_", "-")


class Share(NamedTuple):
    """What one dataset may use."""

    tenant_shards: int = 0  # of its tenant; 0: all
    dataset_shards: int = 1
    balancing: Balancing = Balancing.FINGERPRINT


class TenantLimits(msgspec.Struct, frozen=True, kw_only=True):
    """The bounds of a tenant's placement; `unit_bytes` a second is what one shard should take."""

    tenant_shards: Annotated[int, Meta(ge=0, le=1 << 20)] = 0
    """Shards that a tenant may use; 0: all."""
    dataset_shards: Shards = 1
    """Shards of a dataset of which nothing is known yet."""
    dataset_shards_min: Shards = 1
    """The least shards of a dataset."""
    dataset_shards_max: Shards = 1024
    """The most shards of a dataset."""
    unit_bytes: Count = 128 << 10
    """Bytes a second that one shard of a dataset should take."""
    burst_window_s: Window = 17 * 60
    """Growth that repeats within this long is answered with more shards than it needs."""
    decay_window_s: Window = 19 * 60
    """A dataset gives shards back only when it needed fewer for so long."""
    balancing: Literal["dynamic", "fingerprint", "round-robin"] = "dynamic"
    """`fingerprint`: a series keeps its shard. `round-robin`: any of the dataset's shards.
    `dynamic`: the first, until the series prove too uneven.
    """


class PlacementSettings(msgspec.Struct, frozen=True, kw_only=True):
    """How the placement manager works, and the limits of tenants that have none of their own."""

    interval_s: Annotated[float, Meta(ge=0.1, le=3600)] = 15.0
    """Between two sets of rules that the placement manager makes."""
    reload_s: Annotated[float, Meta(ge=0.1, le=3600)] = 15.0
    """How often a distributor checks for newer rules."""
    stats_window_s: Annotated[float, Meta(ge=1, le=86_400)] = 180.0
    """Half-life of the rates that rules are made from."""
    stats_kept_s: Annotated[float, Meta(ge=1, le=86_400)] = 900.0
    """How long a dataset without data stays in the statistics."""
    rules_kept_s: Annotated[float, Meta(ge=1, le=86_400)] = 900.0
    """How long a dataset without data keeps its rule."""
    datasets_max: Annotated[int, Meta(ge=1, le=1_000_000)] = 10_000
    """Datasets that statistics and rules are kept of. When there are more, the tenants with the
    most lose those that were silent longest.
    """
    tenant: TenantLimits = TenantLimits()


class Rules(msgspec.Struct, frozen=True):
    """All of them, as of one lease time; newer ones replace older ones whole."""

    created_at: int = 0  # 0: none were ever made
    datasets: Mapping[tuple[TenantId, str], Share] = {}
