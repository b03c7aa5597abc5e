"""Checks that a plan's result accounts for its inputs: no tenant's data vanishes (S7).

A copy of a profile is dropped only when an earlier one is among the inputs. So of each tenant's
profiles at least one is kept or in quarantine, and from level 1 on, where blocks are of one day, of
each day's; and no tenant, and no day, has more afterwards than it had before.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import TypeAlias

import msgspec

from maar.model.block import NO_DAY, BlockOutline, Kind
from maar.model.ids import BlockId, TenantId
from maar.model.plan import PlanResult

Share: TypeAlias = tuple[TenantId, int]  # a tenant's day; of segments, which have none, NO_DAY


def adds_up(inputs: Mapping[BlockId, BlockOutline], result: PlanResult) -> bool:
    """Every input profile was kept, was a duplicate, is in quarantine, or was deleted, by the
    numbers.
    """
    account = result.account
    came = sum(each.profiles for each in inputs.values())
    kept = sum(m.profiles for m in result.outputs if m.kind is not Kind.QUARANTINE)
    quarantined = sum(m.profiles for m in result.outputs if m.kind is Kind.QUARANTINE)
    return (
        min(account.kept, account.duplicates, account.quarantined, account.deleted) >= 0
        and account.total() == came
        and account.kept == kept
        and account.quarantined == quarantined
    )


def possible(
    inputs: Mapping[BlockId, BlockOutline],
    result: PlanResult,
    deletable: Mapping[TenantId, int],
    *,
    level: int,
) -> bool:
    """Of every share something is left, unless all of it may be deleted; of none more than came."""
    came = _from_segments(inputs.values()) if level == 0 else _from_blocks(inputs.values())
    left = Counter[Share]()
    for meta in result.outputs:
        left[_share(meta, by_day=level > 0)] += meta.profiles
    return left.keys() <= came.keys() and all(
        _least(share, profiles, deletable) <= left[share] <= profiles
        for share, profiles in came.items()
    )


def _least(share: Share, profiles: int, deletable: Mapping[TenantId, int]) -> int:
    return min(1, max(0, profiles - deletable.get(share[0], 0)))


class _Owner(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The first field of a Dataset; the others stay unread, since this is asked of every block."""

    tenant: TenantId


class _Part(_Owner, frozen=True, array_like=True, gc=False):
    """As far as the count of its profiles."""

    service: msgspec.Raw
    types: msgspec.Raw
    min_time_ns: int
    max_time_ns: int
    profiles: int


_owners = msgspec.msgpack.Decoder(tuple[_Owner, ...]).decode
_parts = msgspec.msgpack.Decoder(tuple[_Part, ...]).decode


def _from_segments(inputs: Iterable[BlockOutline]) -> Counter[Share]:
    profiles: dict[TenantId, int] = {}
    for each in inputs:
        tenants = {part.tenant for part in _owners(each.datasets)}
        if len(tenants) == 1:  # mostly
            tenant = tenants.pop()
            profiles[tenant] = profiles.get(tenant, 0) + each.profiles
            continue
        for part in _parts(each.datasets):
            profiles[part.tenant] = profiles.get(part.tenant, 0) + part.profiles
    return Counter({(tenant, NO_DAY): count for tenant, count in profiles.items()})


def _from_blocks(inputs: Iterable[BlockOutline]) -> Counter[Share]:
    came = Counter[Share]()
    for each in inputs:
        came[_share(each, by_day=True)] += each.profiles
    return came


def _share(meta: BlockOutline, *, by_day: bool) -> Share:
    return meta.tenant, meta.day if by_day else NO_DAY
