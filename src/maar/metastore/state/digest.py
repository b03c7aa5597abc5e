"""A hash of the state that every program computes alike for a version of the log (S13).

Blocks, places, retired blocks and ended attempts are the bulk: their hashes are kept up to date by
the fold. Index and times of the last entry are left out, so that a leader can state the hash in the
next one. What follows from the rest (owners, lanes, totals) is covered by counts, and compared with
what a snapshot rebuilds whenever one is made.

Everything else counts, every byte of every block as it is kept. A record that gets a field in a
later version must be hashed without it until that version is active: the golden files tell.
"""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Iterator

import msgspec

from maar.metastore.state.rows import Ids
from maar.metastore.state.state import MetaState
from maar.model.policy import BACKLOG_COUNT, Policy

_encode = msgspec.msgpack.Encoder().encode


def digest(state: MetaState) -> bytes:
    hashed = hashlib.sha256()
    for part in _parts(state):
        hashed.update(_encode(part))
    return hashed.digest()


def _parts(state: MetaState) -> Iterator[object]:
    blocks, queue = state.blocks, state.queue
    yield (
        "head",
        state.version,
        state.incarnation,
        state.term,
        state.leader,
        state.registration_floor,
    )
    yield "tally", dataclasses.astuple(state.tally)
    yield "policy", _policy(state.policy)
    yield "blocks", len(blocks), _bytes(blocks.hash)
    yield [(k, t.blocks, t.bytes, t.profiles) for k, t in sorted(blocks.totals.items())]
    yield "places", len(queue.places), _bytes(queue.hash), queue.queued, len(state.owners)
    yield "plans", _plans(state)
    yield "retired", len(state.retired), _bytes(state.retired.hash)
    yield "remembered", len(state.remembered), _ids(state.remembered)
    yield "pins", sorted(state.pins.items())
    yield "leftovers", len(state.leftovers), _bytes(state.leftovers.hash)
    yield "retention", len(state.retention), _bytes(state.retention.hash)
    yield "raised", state.raised, "anchor", state.anchor
    yield "rings", len(state.rings), _bytes(state.rings.hash)
    yield "adopting", state.adopting, "former", state.former, state.adopted_at
    yield "clock", state.clock, state.confirmed_ns, state.hold
    yield "spent", len(state.spent), _bytes(state.spent.hash)
    yield "repairs", [_bytes(each) for each in state.repairs.hashes()]
    yield "setbacks", len(state.setbacks), _bytes(state.setbacks.hash)
    yield "predicates", len(state.predicates), _bytes(state.predicates.hash)
    yield "schedules", len(state.schedules), _bytes(state.schedules.hash)
    yield "run policies", len(state.run_policies), _bytes(state.run_policies.hash)
    yield "jobs", len(state.jobs), _bytes(state.jobs.hash)
    yield "alarms", len(state.alarms), _bytes(state.alarms.hash), state.offsets
    yield "asked_deletions", len(state.asked_deletions), _bytes(state.asked_deletions.hash)
    yield "successes", len(state.successes), _bytes(state.successes.hash)
    yield "stores", state.stores, "tombstones", len(state.tombstones), _bytes(state.tombstones.hash)


def _policy(policy: Policy) -> tuple[object, ...]:
    """As logs have it that were written before its last field was there, while that one is what it
    is in a log that does not say: those state hashes, too.
    """
    fields = msgspec.structs.astuple(policy)
    return fields if policy.backlog_count != BACKLOG_COUNT else fields[:-1]


def _plans(state: MetaState) -> bytes:
    """Scheduled, parked and finished plans, each in its own order."""
    scheduled = sorted(state.plans.items())
    return state.known_marks.of((*scheduled, *state.parked.items(), *state.finished.items()))


def _ids(ids: Ids) -> bytes:
    hashed = hashlib.sha256()
    for raw in ids.raw():
        hashed.update(raw)
    return hashed.digest()


def _bytes(hash_: int) -> bytes:
    return hash_.to_bytes(16, "big")
