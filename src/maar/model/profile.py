"""A profile as it travels from the push to its segment: admitted, named, still raw."""

from __future__ import annotations

import msgspec
import xxhash

from maar.model.ids import ProfileId, TenantId
from maar.model.labels import Labels


class RawProfile(msgspec.Struct, frozen=True, array_like=True):
    """One pushed pprof; `payload` is gzip and decodes to what was pushed, byte for byte."""

    id: ProfileId
    tenant: TenantId
    service: str
    labels: Labels  # service_name and __name__ included
    types: tuple[str, ...]  # profile type ids, in the order of the sample types
    time_ns: int
    duration_ns: int
    samples: int
    payload: bytes  # gzip pprof
    raw_size: int  # bytes after decompression
    dated: bool = True  # by the client or its profile; False: by the clock of this server


def profile_id(
    *, tenant: TenantId, labels: Labels, time_ns: int, client_id: str, body: bytes
) -> ProfileId:
    """Who a profile is (S9): retries are equal, twins with different client ids stay apart.

    `body` is the decompressed pprof, so that another compression of it is the same profile.
    """
    digest = xxhash.xxh3_128()
    for part in (
        tenant.encode(),
        *(text.encode() for pair in labels for text in pair),
        str(time_ns).encode(),
        client_id.encode(),
    ):
        digest.update(len(part).to_bytes(8, "little"))
        digest.update(part)
    digest.update(body)
    return ProfileId(digest.digest())


def profile_type(
    *, name: str, sample_type: str, sample_unit: str, period_type: str, period_unit: str
) -> str:
    """How queries name one kind of value: process_cpu:cpu:nanoseconds:cpu:nanoseconds."""
    return f"{name}:{sample_type}:{sample_unit}:{period_type}:{period_unit}"


def with_underscores(sample_types: tuple[str, ...]) -> tuple[str, ...]:
    """`alloc_samples` for the .NET agent's `alloc-samples`, as dashboards ask for it.

    As they are where two would become one: values must find back to their column.
    """
    spelled = tuple(kind.replace("-", "_") for kind in sample_types)
    return spelled if len(set(spelled)) == len(set(sample_types)) else sample_types
