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

    tenant_shards: Annotated[int, Meta(ge=0, le=1 << 20)] = 0  # 0: all
    dataset_shards: Shards = 1  # before anything is known of a dataset
    dataset_shards_min: Shards = 1
    dataset_shards_max: Shards = 1024
    unit_bytes: Count = 128 << 10
    burst_window_s: Window = 17 * 60
    decay_window_s: Window = 19 * 60
    balancing: Literal["dynamic", "fingerprint", "round-robin"] = "dynamic"


class PlacementSettings(msgspec.Struct, frozen=True, kw_only=True):
    """How the placement manager works, and the limits of tenants that have none of their own."""

    interval_s: Annotated[float, Meta(ge=0.1, le=3600)] = 15.0  # between two sets of rules
    reload_s: Annotated[float, Meta(ge=0.1, le=3600)] = 15.0  # between two looks of a distributor
    stats_window_s: Annotated[float, Meta(ge=1, le=86_400)] = 180.0  # half-life of the rates
    stats_kept_s: Annotated[float, Meta(ge=1, le=86_400)] = 900.0
    rules_kept_s: Annotated[float, Meta(ge=1, le=86_400)] = 900.0  # of datasets that went silent
    datasets_max: Annotated[int, Meta(ge=1, le=1_000_000)] = (
        10_000  # that rates and rules are kept of
    )
    tenant: TenantLimits = TenantLimits()


class Rules(msgspec.Struct, frozen=True):
    """All of them, as of one lease time; newer ones replace older ones whole."""

    created_at: int = 0  # 0: none were ever made
    datasets: Mapping[tuple[TenantId, str], Share] = {}
