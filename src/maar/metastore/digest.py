"""A hash of the state that every version computes alike, from named fields in a fixed order (S13).

Blocks and places are the bulk: their hashes are kept up to date by the fold. Index and times of
the last entry are left out, so that a leader can state the hash in the next one.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator

import msgspec

from maar.metastore.state import MetaState
from maar.model.plan import Plan

_encode = msgspec.msgpack.Encoder().encode


def digest(state: MetaState) -> bytes:
    hashed = hashlib.sha256()
    for part in _parts(state):
        hashed.update(_encode(part))
    return hashed.digest()


def _parts(state: MetaState) -> Iterator[object]:
    yield "head", state.version, state.incarnation, state.term, state.floor
    tally = state.tally
    yield "tally", tally.profiles_added, tally.duplicates_removed, tally.profiles_quarantined
    yield "completed", tally.plans_completed
    yield "policy", _policy(state)
    yield "blocks", len(state.blocks), state.blocks.hash.to_bytes(16, "big")
    yield "places", len(state.queue.places), state.queue.hash.to_bytes(16, "big")
    yield "plans"
    for _, plan in sorted(state.plans.items()):
        yield _plan(plan)
    yield "finished"
    for plan in state.finished.values():
        yield _plan(plan)
    yield "retired"
    for block, retired in state.retired.items():
        yield block, retired.entry, retired.at, retired.outputs
    yield "remembered"
    yield from state.remembered
    yield "pins"
    yield sorted(state.pins.items())


def _policy(state: MetaState) -> object:
    """What the fold itself goes by."""
    p = state.policy
    return (
        [(level.count, level.bytes, level.age_ns) for level in p.levels],
        (p.target_block_bytes, p.lease_ns, p.floor_lag_ns),
        (p.blocks_max, p.plans_max, p.finished_max, p.attempts_max, p.pins_max),
    )


def _plan(plan: Plan) -> object:
    lease = plan.lease
    return (
        (plan.id, plan.state, plan.inputs, plan.failures, plan.eligible_at, plan.parent),
        None if lease is None else (lease.token, lease.worker, lease.expires_at),
        [(attempt.token, attempt.end, attempt.ended_at) for attempt in plan.attempts],
    )
