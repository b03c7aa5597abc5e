"""The profiles of one shard that wait for its next segment, and when it must be cut."""

from __future__ import annotations

from maar.model.profile import RawProfile
from maar.segment.early import Looks
from maar.segment.memory import held_bytes
from maar.segment.pace import interval_ns
from maar.segment.settings import SegmentSettings


class Buffer:
    """What one segment has collected. It is used once."""

    def __init__(self, settings: SegmentSettings, *, opened_ns: int, pays: bool) -> None:
        self._settings = settings
        self._pays = pays
        self._listed: set[tuple[str, str, str]] = set()
        self._size = 0
        self._index_size = 0
        self.opened_ns = opened_ns
        self.looks = None if settings.saves_puts else Looks(settings, opened_ns)
        self.profiles: list[RawProfile] = []

    @property
    def due_ns(self) -> int:
        """When the segment must be cut, or looked at, in the time that it was opened in."""
        if self.looks is not None:
            return self.looks.next_ns
        return self.opened_ns + interval_ns(self._settings, held=self._size, pays=self._pays)

    def add(self, profile: RawProfile) -> None:
        self.profiles.append(profile)
        self._size += held_bytes(profile)
        # A tenant with many services must not make an entry that the log refuses (S12).
        for kind in profile.types:
            listed = (profile.tenant, profile.service, kind)
            if listed not in self._listed:
                self._listed.add(listed)
                self._index_size += (
                    sum(len(text.encode(errors="surrogatepass")) for text in listed) + 64
                )

    def full(self) -> bool:
        return (
            self._size >= self._settings.segment_bytes_max
            or self._index_size >= self._settings.index_bytes_max
        )
