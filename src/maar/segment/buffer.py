"""When to cut a segment, and how many bytes may wait for one."""

from __future__ import annotations

import msgspec

from maar.model.errors import Overloaded
from maar.model.profile import RawProfile

PROFILE_OVERHEAD = 1024  # bytes that one waiting profile costs beside its payload and labels


class Bounds(msgspec.Struct, frozen=True):
    """A segment is cut at the first of these."""

    flush_interval_ns: int
    segment_bytes_max: int
    index_bytes_max: int  # what it may weigh in a log entry, where every dataset is listed


class Buffer:
    """The profiles of one shard that wait for its next segment."""

    def __init__(self, bounds: Bounds) -> None:
        self._bounds = bounds
        self._clear()

    def __len__(self) -> int:
        return len(self._profiles)

    @property
    def due_ns(self) -> int:
        """When the segment must be cut, in the time that `add` was told."""
        return self._due_ns

    def add(self, profile: RawProfile, *, now_ns: int) -> None:
        if not self._profiles:
            self._due_ns = now_ns + self._bounds.flush_interval_ns
        self._profiles.append(profile)
        self._size += held_bytes(profile)
        self._list_types(profile)

    def full(self) -> bool:
        return (
            self._size >= self._bounds.segment_bytes_max
            or self._index_size >= self._bounds.index_bytes_max
        )

    def cut(self) -> tuple[RawProfile, ...]:
        """Everything that waits; the buffer is empty afterwards."""
        profiles = tuple(self._profiles)
        self._clear()
        return profiles

    def _clear(self) -> None:
        self._profiles: list[RawProfile] = []
        self._listed: set[tuple[str, str, str]] = set()
        self._size = 0
        self._index_size = 0
        self._due_ns = 0

    def _list_types(self, profile: RawProfile) -> None:
        """A tenant with many services must not make an entry that the log refuses (S12)."""
        for kind in profile.types:
            listed = (profile.tenant, profile.service, kind)
            if listed not in self._listed:
                self._listed.add(listed)
                self._index_size += sum(len(text.encode()) for text in listed) + 64


class Memory:
    """Bytes that are held until their segment is acknowledged or given up."""

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self.held = 0

    def take(self, size: int) -> None:
        """Count them in, or Overloaded: the agent backs off and nothing is buffered."""
        if self.held + size > self._bytes_max:
            raise Overloaded(
                f"{self.held} bytes of profiles wait to be written and {size} more would exceed "
                f"{self._bytes_max}; the store is slower than the pushes: send it again later"
            )
        self.held += size

    def give_back(self, size: int) -> None:
        self.held -= size


def held_bytes(profile: RawProfile) -> int:
    labels = sum(len(name) + len(value) for name, value in profile.labels)
    return len(profile.payload) + labels + PROFILE_OVERHEAD
