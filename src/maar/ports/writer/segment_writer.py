"""Where the distributor hands profiles over."""

from __future__ import annotations

from collections.abc import Awaitable
from typing import Any, ClassVar, Protocol

from maar.model.ids import Shard
from maar.model.profile import RawProfile
from maar.ports.calls import Call


class SegmentWriter(Protocol):
    async def push(self, shard: Shard, profiles: tuple[RawProfile, ...]) -> None:
        """Return when the profiles are durable and in the index; else Overloaded or Unavailable.

        After an error the profiles may or may not be stored; the same push again shows once (S9).
        """
        ...


class PushProfiles(Call[SegmentWriter, None], frozen=True):
    """Profiles of one shard."""

    wire_service: ClassVar[str] = "maar.SegmentWriter"

    shard: Shard
    profiles: tuple[RawProfile, ...]

    def answer(self, port: SegmentWriter) -> Awaitable[None]:
        return port.push(self.shard, self.profiles)


CALLS: tuple[type[Call[SegmentWriter, Any]], ...] = (PushProfiles,)
