"""Where the distributor hands profiles over."""

from typing import Protocol

from maar.model.ids import Shard
from maar.model.profile import RawProfile


class SegmentWriter(Protocol):
    async def push(self, shard: Shard, profiles: tuple[RawProfile, ...]) -> None:
        """Return when the profiles are durable and in the index; else Overloaded or Unavailable.

        After an error the profiles may or may not be stored; the same push again shows once (S9).
        """
        ...
