"""The rings as JSON: who is in them, who is dead, who takes which shard."""

from __future__ import annotations

from collections import Counter
from typing import Any

from maar.model.ring import DEAD
from maar.ports.writer.membership import RingView


def zone_of(view: RingView) -> dict[str, Any]:
    ring, dead = view.ring, frozenset(view.dead)
    silent = view.silent_ms or (-1,) * len(ring.writers)
    held = Counter(ring.owners)
    return {
        "zone": ring.zone,
        "changed_at": ring.changed_at,
        "complete": view.complete,
        "shards": len(ring.owners),
        "writers": [
            {
                "node": writer.node,
                "state": DEAD if writer.node in dead else writer.state.value,
                "said": writer.state.value,
                "address": writer.address,
                "shards": held[place],
                "wants": writer.shards,
                "session": writer.session,
                "silent_s": None if silent_ms < 0 else silent_ms / 1000,
            }
            for place, (writer, silent_ms) in enumerate(zip(ring.writers, silent, strict=True))
        ],
        "owners": list(ring.nodes()),
    }
