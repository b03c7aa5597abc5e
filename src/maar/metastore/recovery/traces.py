"""Rebuilds the start of a lost log from the store's keys alone, without any snapshot (S5).

The key of a segment contains its incarnation and a lease time; the key of a block's object contains
its plan and token, and so the incarnation that granted it. That is enough for a state that is empty
and reuses no name: lease time and index continue above all that was seen. Adoption finds the rest.
For threads.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from itertools import chain

from maar.metastore.fold.reincarnation import INCARNATIONS_MAX
from maar.metastore.recovery.restoring import Origin
from maar.metastore.state.state import GENESIS_TIME, MetaState
from maar.model import keys
from maar.model.errors import InvalidInput, NotFound, Rejected
from maar.model.ids import BlockId, Incarnation, block_time_ns
from maar.model.time import LeaseTime
from maar.ports.metastore.log import GENESIS_HASH, Head
from maar.ports.stores.object_store import ObjectStore

TIME_MAX = 1 << 62  # ns; what is named by a later time, or a higher index, none of our logs named
INDEX_MAX = 10**17


@dataclass(slots=True)
class Traces:
    """What was seen of all incarnations."""

    objects: Counter[Incarnation] = field(default_factory=Counter)  # segments, blocks, letters
    lease_time: LeaseTime = GENESIS_TIME
    index: int = 0

    def see(self, key: str) -> None:
        if segment := keys.segment_name(key):
            self.objects[segment.incarnation] += 1
            self._block(segment.block)
        elif output := keys.output_name(key):
            if key.startswith((keys.SEGMENTS, keys.MANIFESTS, keys.QUARANTINES)):
                self.objects[output.token.incarnation] += 1
            self._block(output.block)
            for index in (output.plan.index, output.token.index):
                self.index = max(self.index, index if index <= INDEX_MAX else 0)
        elif key.startswith(keys.DEAD_LETTERS):
            incarnation, _, name = keys.letter_place(key)
            self.objects[incarnation] += 1
            if block := keys.letter_block(name):
                self._block(block)

    def _block(self, block: BlockId) -> None:
        time_ns = block_time_ns(block)
        self.lease_time = LeaseTime(max(self.lease_time, time_ns if time_ns < TIME_MAX else 0))


def survey(store: ObjectStore) -> Traces:
    """All keys that logs wrote and index; walks over the whole store."""
    found = Traces()
    parts = (keys.SEGMENTS, keys.LAKE, keys.QUARANTINES, keys.DEAD_LETTERS)
    for info in chain.from_iterable(map(store.list, parts)):
        found.see(info.key)
    return found


def origin(store: ObjectStore, adopts: tuple[Incarnation, ...] = ()) -> Origin:
    """An empty log that adopts the objects of `adopts`, or of all incarnations if they are of one
    log. NotFound when there is nothing to adopt.
    """
    found = survey(store)
    url = store.settings().url
    if not found.objects:
        raise NotFound(
            f"{url} holds neither a snapshot nor a segment nor a block: there is nothing to "
            "restore. Start the server; should it say that another log has claimed the store, set "
            "`metastore.begin_anew = true`"
        )
    if unknown := [incarnation for incarnation in adopts if incarnation not in found.objects]:
        raise InvalidInput(f"--adopt {unknown[0]}: {url} holds nothing of such a log")
    incarnations = adopts or _of_one_log(store, sorted(found.objects))
    if len(incarnations) > INCARNATIONS_MAX:
        raise Rejected(
            f"{url} holds objects of {len(incarnations)} logs; name at most {INCARNATIONS_MAX}"
        )
    state = MetaState(incarnation=incarnations[0], lease_time=found.lease_time)
    head = Head(found.index, GENESIS_HASH)
    name = f"{sum(found.objects[incarnation] for incarnation in incarnations):,} objects in {url}"
    return Origin(state, head, name, incarnations)


def _of_one_log(store: ObjectStore, incarnations: list[Incarnation]) -> tuple[Incarnation, ...]:
    """The incarnations of one log, the last one first; Rejected when there are several logs."""
    after = {incarnation: _successor(store, incarnation) for incarnation in incarnations}
    ends = {_last(incarnation, after) for incarnation in incarnations}
    if len(ends) > 1:
        named = " ".join(f"--adopt {incarnation}" for incarnation in incarnations)
        raise Rejected(
            f"{store.settings().url} holds objects of several logs, and no snapshot says which of "
            f"them was lost: {', '.join(incarnations)}. A log that is still in use must not be "
            f"adopted. Name those that are lost; for all of them: {named}"
        )
    return tuple(
        sorted(incarnations, key=lambda incarnation: (incarnation not in ends, incarnation))
    )


def _last(incarnation: Incarnation, after: dict[Incarnation, Incarnation | None]) -> Incarnation:
    seen = [incarnation]
    while (following := after.get(seen[-1])) is not None and following not in seen:
        seen.append(following)
    return seen[-1]


def _successor(store: ObjectStore, incarnation: Incarnation) -> Incarnation | None:
    try:
        return Incarnation(store.read(keys.successor(incarnation)).decode(errors="replace"))
    except NotFound:
        return None
