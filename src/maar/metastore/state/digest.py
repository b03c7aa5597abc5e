"""A hash of the state that every program computes alike for a version of the log (S13).

Blocks, places, retired blocks and litter are the bulk: their hashes are kept up to date by the
fold. Index and times of the last entry are left out, so that a leader can state the hash in the
next one. What follows from the rest (owners, lanes, totals) is covered by counts, and compared with
what a snapshot rebuilds whenever one is made.

Version 1 hashed chosen fields; version 2 hashes whole records save for blocks and their places,
version 3 the rings too, version 4 what a restored log adopts, version 5 everything: every byte of
every block as it is kept. A record that gets a field later must be hashed without it below the
version that brought it: the golden files tell.
"""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Iterator

import msgspec

from maar.metastore.records.packs import pack
from maar.metastore.state.marks import WHOLE_SINCE
from maar.metastore.state.rows import Ids
from maar.metastore.state.state import MetaState
from maar.model.plan import Plan
from maar.model.policy import Policy

_encode = msgspec.msgpack.Encoder().encode


def digest(state: MetaState) -> bytes:
    hashed = hashlib.sha256()
    for part in _parts_of_version_1(state) if state.version < 2 else _parts(state):
        hashed.update(_encode(part))
    return hashed.digest()


def _parts(state: MetaState) -> Iterator[object]:
    blocks, queue, tally = state.blocks, state.queue, state.tally
    yield "head", state.version, state.incarnation, state.term, state.leader, state.floor
    yield "tally", tally.profiles_added, tally.duplicates_removed, tally.profiles_quarantined
    yield "tally", tally.plans_completed, tally.profiles_expired
    yield "policy", _policy(state)
    yield "blocks", len(blocks), _bytes(blocks.hash)
    yield [(k, t.blocks, t.bytes, t.profiles) for k, t in sorted(blocks.totals.items())]
    yield "places", len(queue.places), _bytes(queue.hash), queue.queued, len(state.owners)
    yield "plans", _plans(state)
    yield "retired", len(state.retired), _bytes(state.retired.hash)
    yield "remembered", len(state.remembered), _ids(state.remembered)
    yield "pins", sorted(state.pins.items())
    yield "litter", len(state.litter), _bytes(state.litter.hash)
    yield "retention", len(state.retention), _bytes(state.retention.hash)
    yield "raised", state.raised, "anchor", state.anchor
    if state.version > 2:
        yield "rings", len(state.rings), _bytes(state.rings.hash)
    if state.version > 3:
        yield "adopting", state.adopting, tally.blocks_adopted
        yield "former", state.former
        yield "missed", tally.blocks_missed, tally.profiles_missed
    if state.version >= WHOLE_SINCE:
        yield "tally", dataclasses.astuple(tally)
        yield "clock", state.clock, state.confirmed_ns, state.hold
        yield "spent", len(state.spent), _bytes(state.spent.hash)


def _plans(state: MetaState) -> bytes:
    """Three lists, each in its own order; a plan says by its state in which it is."""
    scheduled = sorted(state.plans.items())
    every = (*scheduled, *state.parked.items(), *state.finished.items())
    if state.version < WHOLE_SINCE:
        return state.known_marks.of(every, _plan_of_version_4)
    return state.known_marks.of(every)


def _ids(ids: Ids) -> bytes:
    hashed = hashlib.sha256()
    for raw in ids.raw():
        hashed.update(raw)
    return hashed.digest()


def _bytes(hash_: int) -> bytes:
    return hash_.to_bytes(16, "big")


def _policy(state: MetaState) -> object:
    """Without the fields that came later."""
    if state.version >= WHOLE_SINCE:
        return state.policy
    names = Policy.__struct_fields__
    last = "tenants_max" if state.version < 3 else "shards_max"
    return [getattr(state.policy, name) for name in names[: names.index(last) + 1]]


def _plan_of_version_4(plan: Plan) -> object:
    """Without what a key and the outputs have since: zones and days."""
    fields = msgspec.structs.asdict(plan)
    fields["key"] = msgspec.structs.astuple(plan.key)[:4]
    if plan.result is not None:
        outputs = [msgspec.Raw(pack(meta, version=4)) for meta in plan.result.outputs]
        fields["result"] = (outputs, *msgspec.structs.astuple(plan.result)[1:])
    return tuple(fields.values())


def _parts_of_version_1(state: MetaState) -> Iterator[object]:
    yield "head", state.version, state.incarnation, state.term, state.floor
    tally = state.tally
    yield "tally", tally.profiles_added, tally.duplicates_removed, tally.profiles_quarantined
    yield "completed", tally.plans_completed
    yield "policy", _policy_of_version_1(state)
    yield "blocks", len(state.blocks), _bytes(state.blocks.hash)
    yield "places", len(state.queue.places), _bytes(state.queue.hash)
    yield "plans"
    for _, plan in sorted(state.plans.items()):
        yield _plan_of_version_1(plan)
    yield "finished"
    for plan in state.finished.values():
        yield _plan_of_version_1(plan)
    yield "retired"
    for block, retired in state.retired.items():
        yield block, retired.entry, retired.at, retired.outputs
    yield "remembered"
    yield from state.remembered
    yield "pins"
    yield sorted(state.pins.items())


def _policy_of_version_1(state: MetaState) -> object:
    """What the fold itself goes by."""
    p = state.policy
    return (
        [(level.count, level.bytes, level.age_ns) for level in p.levels],
        (p.target_block_bytes, p.lease_ns, p.floor_lag_ns),
        (p.blocks_max, p.plans_max, p.finished_max, p.attempts_max, p.pins_max),
    )


def _plan_of_version_1(plan: Plan) -> object:
    lease = plan.lease
    return (
        (plan.id, plan.state, plan.inputs, plan.failures, plan.eligible_at, plan.parent),
        None if lease is None else (lease.token, lease.worker, lease.expires_at),
        [(attempt.token, attempt.end, attempt.ended_at) for attempt in plan.attempts],
    )
