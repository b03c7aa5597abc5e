"""The records of a snapshot: the state in parts of bounded size, and back.

What follows from the rest (owners, lanes, totals, partitions) is not written but rebuilt.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import islice
from typing import TypeAlias, TypeVar

import msgspec

from maar.metastore.index import unpack
from maar.metastore.policy import Policy
from maar.metastore.queue import Item, key_of
from maar.metastore.state import MetaState, Pin, Retired, Tally
from maar.model.block import BlockMeta
from maar.model.errors import Corrupt
from maar.model.ids import BlockId, Incarnation
from maar.model.plan import Plan
from maar.model.time import LeaseTime, WallTime

PART_ITEMS = 1_000

T = TypeVar("T")


class Core(msgspec.Struct, frozen=True, array_like=True, tag=1):
    """What there is one of."""

    index: int
    version: int
    incarnation: Incarnation
    term: int
    leader: str
    lease_time: LeaseTime
    wall_time: WallTime
    floor: LeaseTime
    policy: Policy
    profiles_added: int
    duplicates_removed: int
    profiles_quarantined: int
    plans_completed: int


class Blocks(msgspec.Struct, frozen=True, array_like=True, tag=2):
    packed: tuple[bytes, ...]


class Place(msgspec.Struct, frozen=True, array_like=True):
    block: BlockId
    entry: int
    ordinal: int
    added_at: LeaseTime


class Places(msgspec.Struct, frozen=True, array_like=True, tag=3):
    places: tuple[Place, ...]


class Plans(msgspec.Struct, frozen=True, array_like=True, tag=4):
    """On the schedule; they own their inputs."""

    plans: tuple[Plan, ...]


class Finished(msgspec.Struct, frozen=True, array_like=True, tag=5):
    """In the order in which they ended."""

    plans: tuple[Plan, ...]


class RetiredBlock(msgspec.Struct, frozen=True, array_like=True):
    entry: int
    at: LeaseTime
    outputs: tuple[BlockId, ...]
    packed: bytes


class RetiredBlocks(msgspec.Struct, frozen=True, array_like=True, tag=6):
    """In the order in which they were replaced."""

    blocks: tuple[RetiredBlock, ...]


class Remembered(msgspec.Struct, frozen=True, array_like=True, tag=7):
    blocks: tuple[BlockId, ...]


class PinRecord(msgspec.Struct, frozen=True, array_like=True):
    reader: str
    entry: int
    expires_at: LeaseTime


class Pins(msgspec.Struct, frozen=True, array_like=True, tag=8):
    pins: tuple[PinRecord, ...]


Part: TypeAlias = Core | Blocks | Places | Plans | Finished | RetiredBlocks | Remembered | Pins


def parts_of(state: MetaState) -> Iterator[Part]:
    tally = state.tally
    yield Core(
        state.index,
        state.version,
        state.incarnation,
        state.term,
        state.leader,
        state.lease_time,
        state.wall_time,
        state.floor,
        state.policy,
        tally.profiles_added,
        tally.duplicates_removed,
        tally.profiles_quarantined,
        tally.plans_completed,
    )
    packed = (
        packed
        for partition in state.blocks.partitions()
        for chunk in partition.chunks
        for packed in chunk.packed
    )
    yield from (Blocks(some) for some in _some(packed))
    places = (Place(i.block, i.entry, i.ordinal, i.added_at) for i in _in_order(state))
    yield from (Places(some) for some in _some(places))
    plans = (plan for _, plan in sorted(state.plans.items()))
    yield from (Plans(some) for some in _some(plans))
    yield from (Finished(some) for some in _some(state.finished.values()))
    retired = (RetiredBlock(r.entry, r.at, r.outputs, r.packed) for r in state.retired.values())
    yield from (RetiredBlocks(some) for some in _some(retired))
    yield from (Remembered(some) for some in _some(state.remembered))
    pins = (PinRecord(name, pin.entry, pin.expires_at) for name, pin in sorted(state.pins.items()))
    yield from (Pins(some) for some in _some(pins))


def state_of(parts: Iterable[Part]) -> MetaState:
    state = MetaState()
    for part in parts:
        match part:
            case Core():
                _load_core(state, part)
            case Blocks():
                for packed in part.packed:
                    state.blocks.add(unpack(packed))
            case Places():
                _load_places(state, part)
            case Plans():
                for plan in part.plans:
                    _load_plan(state, plan)
            case Finished():
                state.finished.update((plan.id, plan) for plan in part.plans)
            case RetiredBlocks():
                for r in part.blocks:
                    block = unpack(r.packed).id
                    state.retired[block] = Retired(r.entry, r.at, r.outputs, r.packed)
            case Remembered():
                for block in part.blocks:
                    state.remembered.add(block)
            case Pins():
                state.pins.update((p.reader, Pin(p.entry, p.expires_at)) for p in part.pins)
    return state


def _load_core(state: MetaState, core: Core) -> None:
    state.index, state.version, state.incarnation = core.index, core.version, core.incarnation
    state.term, state.leader = core.term, core.leader
    state.lease_time, state.wall_time = core.lease_time, core.wall_time
    state.floor, state.policy = core.floor, core.policy
    state.tally = Tally(
        core.profiles_added,
        core.duplicates_removed,
        core.profiles_quarantined,
        core.plans_completed,
    )


def _load_places(state: MetaState, part: Places) -> None:
    for place in part.places:
        meta = _live(state, place.block)
        item = Item(
            place.entry, place.ordinal, place.added_at, place.block, meta.size, key_of(meta)
        )
        state.queue.enter(item, state.policy)


def _load_plan(state: MetaState, plan: Plan) -> None:
    state.plans[plan.id] = plan
    for block in plan.inputs:
        _live(state, block)
        state.owners[block] = plan.id
        state.queue.take(block, state.policy)


def _live(state: MetaState, block: BlockId) -> BlockMeta:
    if block not in state.blocks:
        raise Corrupt(f"it names the block {block} and does not hold it")
    return state.blocks.get(block)


def _in_order(state: MetaState) -> list[Item]:
    return sorted(state.queue.places.values())


def _some(items: Iterable[T]) -> Iterator[tuple[T, ...]]:
    """The items, a bounded number at a time."""
    rest = iter(items)
    while some := tuple(islice(rest, PART_ITEMS)):
        yield some
