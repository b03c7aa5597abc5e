"""Jump consistent hashing: a key's bucket moves only when buckets are added, and then rarely."""

from __future__ import annotations

_MULTIPLIER = 2_862_933_555_777_941_757
_MASK = (1 << 64) - 1


def jump(key: int, buckets: int) -> int:
    """The bucket of an unsigned 64-bit key, from 0; `buckets` is at least 1."""
    bucket, candidate = -1, 0
    while candidate < buckets:
        bucket = candidate
        key = (key * _MULTIPLIER + 1) & _MASK
        candidate = int((bucket + 1) * ((1 << 31) / ((key >> 33) + 1)))
    return bucket
