"""Where a profile goes: a tenant's subring, a dataset's within it, one shard, and who stands in.

The cost of a placement is a dictionary look-up; subrings are computed once per dataset. The order
of shards is the published one. Who takes a shard while its owner is away is not: neighbours of four
shards are few writers, and one of them would get most of what a dead one had. So every dataset has
orders of its own, one for each quarter of its series: large ones do not fall on one heir whole.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from itertools import chain
from math import gcd
from typing import NamedTuple

import xxhash

from maar.model.errors import Unavailable
from maar.model.ids import Shard, TenantId
from maar.model.ring import Ring, Writer
from maar.placement.rules import Balancing, Rules, Share, TenantLimits

PARTS = 4  # of a dataset's series in a shard, each with an order of writers of its own
REMEMBERED = 1 << 19  # places; some 120 MB at most. Services are named by clients (S21)
_MULTIPLIER = 2_862_933_555_777_941_757
_MASK = (1 << 64) - 1


class Spot(NamedTuple):
    """A dataset's place in the ring: computed once, shared by all its profiles."""

    tenant_start: int
    tenant_shards: int
    dataset_start: int  # within the tenant's subring
    dataset_shards: int


class Place(NamedTuple):
    """The shard that a profile goes to, and what the order of the next ones follows from."""

    shard: Shard
    spot: Spot
    offset: int  # within the dataset's subring
    mark: int = 0  # of the part of the dataset: 64 bits that scatter those who stand in


class Placement:
    """One ring under one set of rules; another ring or other rules make another placement.

    Limits count for a dataset that no rule names, as they are when it is first placed.
    """

    def __init__(
        self,
        ring: Ring,
        rules: Rules,
        limits: Callable[[TenantId], TenantLimits],
        draw: Callable[[int], int],  # draw(n): one of 0 … n - 1 by chance
        *,
        remembered_max: int = REMEMBERED,
    ) -> None:
        self._ring = ring
        self._rules = rules
        self._limits = limits
        self._draw = draw
        self._known: dict[tuple[TenantId, str], tuple[tuple[Place, ...], bool]] = {}
        self._remembered = 0
        self._remembered_max = remembered_max

    @property
    def remembered(self) -> int:
        """Places that need not be computed again."""
        return self._remembered

    def place(self, tenant: TenantId, service: str, fingerprint: int) -> Place:
        known = self._known.get((tenant, service))
        places, by_chance = known or self._learn(tenant, service)
        if by_chance:
            return places[self._draw(len(places))]
        return places[fingerprint % len(places)]

    def order(self, place: Place) -> Iterator[Shard]:
        """Every shard of the ring once, the chosen one first: dataset, then tenant, then rest."""
        spot, shards = place.spot, len(self._ring.owners)
        for step in range(spot.dataset_shards):
            yield shard_at(spot, (place.offset + step) % spot.dataset_shards, shards)
        for step in range(spot.dataset_shards, spot.tenant_shards):
            yield shard_at(spot, step, shards)
        for step in range(spot.tenant_shards, shards):
            yield Shard((spot.tenant_start + step) % shards + 1)

    def stand_ins(self, place: Place) -> Iterator[Shard]:
        """Every shard once, scattered: its owner stands in for the owner of the place's shard.

        Those of the tenant come first, so that a tenant which is bound to a few stays with their
        owners. A writer comes as early as it has shards: its share is fair by their number.
        """
        spot, shards = place.spot, len(self._ring.owners)
        seed = xxhash.xxh64_intdigest(struct.pack("<QQ", place.mark, place.shard))
        for step in scatter(spot.tenant_shards, seed):
            yield Shard((spot.tenant_start + step) % shards + 1)
        for step in scatter(shards - spot.tenant_shards, seed):
            yield Shard((spot.tenant_start + spot.tenant_shards + step) % shards + 1)

    def writers(self, place: Place) -> Iterator[Writer]:
        """The shard's owner, then who stands in; each writer once, whatever its state."""
        owners, seen = self._ring.owners, set[int]()
        for shard in chain((place.shard,), self.stand_ins(place)):
            owner = owners[shard - 1]
            if owner not in seen:
                seen.add(owner)
                yield self._ring.writers[owner]

    def _learn(self, tenant: TenantId, service: str) -> tuple[tuple[Place, ...], bool]:
        shards = len(self._ring.owners)
        if not shards:
            raise Unavailable(
                f"the ring of zone {self._ring.zone} has no shards, so that nothing can be stored: "
                "no segment writer has joined it; start one (`maar serve --roles segment-writer`, "
                "with the zone as ring.zone), or see `maar ring`"
            )
        share = self._share(tenant, service)
        tenant_hash = xxhash.xxh64_intdigest(tenant.encode())
        dataset_hash = xxhash.xxh64_intdigest(service.encode("utf-8", "surrogateescape"))
        spot = spot_of(tenant_hash, dataset_hash, share, shards)
        mark = both_hashed(tenant_hash, dataset_hash)
        places = tuple(
            Place(shard_at(spot, offset, shards), spot, offset, mark ^ part)
            for part in range(PARTS)
            for offset in range(spot.dataset_shards)  # so that the shard is the same for any PARTS
        )
        if self._remembered + len(places) > self._remembered_max:
            self._known.clear()
            self._remembered = 0
        self._remembered += len(places)
        known = places, share.balancing is Balancing.ROUND_ROBIN
        self._known[tenant, service] = known
        return known

    def _share(self, tenant: TenantId, service: str) -> Share:
        share = self._rules.datasets.get((tenant, service))
        if share is not None and share.balancing is not Balancing.UNSPECIFIED:
            return share
        limits = self._limits(tenant)
        balancing = (
            Balancing.ROUND_ROBIN if limits.balancing == "round-robin" else Balancing.FINGERPRINT
        )
        if share is not None:
            return share._replace(balancing=balancing)
        return Share(limits.tenant_shards, limits.dataset_shards, balancing)


def spot_of(tenant_hash: int, dataset_hash: int, share: Share, shards: int) -> Spot:
    """The subrings; both may run past the end of what they lie in, and then wrap around it."""
    if not 0 < share.tenant_shards < shards:
        # The tenant has all shards. A beginning of its own would only wrap half of its datasets
        # around the end of the ring, where every change of the ring's size moves them.
        start = jump(both_hashed(tenant_hash, dataset_hash), shards)
        return Spot(0, shards, start, min(shards, max(1, share.dataset_shards)))
    return Spot(
        tenant_start=jump(tenant_hash, shards),
        tenant_shards=share.tenant_shards,
        dataset_start=jump(dataset_hash, share.tenant_shards),
        dataset_shards=min(share.tenant_shards, max(1, share.dataset_shards)),
    )


def jump(key: int, buckets: int) -> int:
    """Jump consistent hashing: a key's bucket moves only when buckets are added, and then rarely.

    The bucket of an unsigned 64-bit key, from 0; `buckets` is at least 1.
    """
    bucket, candidate = -1, 0
    while candidate < buckets:
        bucket = candidate
        key = (key * _MULTIPLIER + 1) & _MASK
        candidate = int((bucket + 1) * ((1 << 31) / ((key >> 33) + 1)))
    return bucket


def both_hashed(tenant_hash: int, dataset_hash: int) -> int:
    return xxhash.xxh64_intdigest(struct.pack("<QQ", tenant_hash, dataset_hash))


def scatter(count: int, seed: int) -> Iterator[int]:
    """0 … count - 1, each once: from a place of the seed's, in strides of the seed's.

    Any place is as likely to be the first, and the second. To begin costs next to nothing, as it
    should, since every push asks who would be the next.
    """
    if count <= 0:
        return
    place, stride = seed % count, 1 + (seed >> 32) % max(1, count - 1)
    while gcd(stride, count) != 1:
        stride += 1
    for _ in range(count):
        yield place
        place = (place + stride) % count


def shard_at(spot: Spot, offset: int, shards: int) -> Shard:
    """The shard at an offset from the beginning of the dataset's subring; ids begin at 1."""
    within_tenant = (spot.dataset_start + offset) % spot.tenant_shards
    return Shard((spot.tenant_start + within_tenant) % shards + 1)
