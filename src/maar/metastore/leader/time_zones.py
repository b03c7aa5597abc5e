"""The clocks of time zones, as this host knows them: read when a decision is prepared (S2)."""

from __future__ import annotations

from datetime import UTC, datetime
from functools import lru_cache
from zoneinfo import ZoneInfo

from maar.model.time import SECOND_NS, WallTime

ZONES_KNOWN = 256


@lru_cache(ZONES_KNOWN)
def _zone(name: str) -> ZoneInfo | None:
    try:
        return ZoneInfo(name)
    except (KeyError, ValueError, OSError):  # not known, not a name, not readable
        return None


def offset_of(zone: str, wall: WallTime) -> int | None:
    """How far the clock of a zone is ahead of UTC at a time, in nanoseconds; None when the zone is
    not known here.
    """
    found = _zone(zone)
    if found is None:
        return 0 if zone.upper() in ("UTC", "Z") else None
    offset = datetime.fromtimestamp(wall / SECOND_NS, UTC).astimezone(found).utcoffset()
    return None if offset is None else int(offset.total_seconds()) * SECOND_NS
