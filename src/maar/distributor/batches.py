"""A push's profiles by shard, in batches that fit in a message between processes. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple, Protocol

from maar.model.ids import TenantId
from maar.model.labels import fingerprint
from maar.model.profile import RawProfile
from maar.placement.locate import Place

BATCH_BYTES_MAX = 24 << 20  # well below the 64 MiB that a message may have
PROFILE_OVERHEAD = 128  # bytes of a profile in a message, beside its texts and its payload


class Placer(Protocol):
    def place(self, tenant: TenantId, service: str, fingerprint: int) -> Place: ...


class ShardBatch(NamedTuple):
    """Profiles of one shard; where to go instead, the place of the first says."""

    place: Place
    profiles: tuple[RawProfile, ...]


def batches(
    profiles: Sequence[RawProfile], places: Placer, *, bytes_max: int = BATCH_BYTES_MAX
) -> list[ShardBatch]:
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
