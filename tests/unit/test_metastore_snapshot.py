"""A snapshot is the whole state or is refused; the hash of the state covers all of it."""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Callable, Iterator
from typing import Any

import msgspec
import pytest

from maar.metastore.decide.schedule import Wish, assign
from maar.metastore.fold.apply import apply
from maar.metastore.leader.snapshots import snapshot_due
from maar.metastore.records.entries import (
    VERSION,
    BlocksAdded,
    Entry,
    LimitRaised,
    PinsTaken,
    PlansLeased,
    RetentionSet,
    Tick,
)
from maar.metastore.replica import snapshot
from maar.metastore.state import audit, snapshot_parts, snapshot_records
from maar.metastore.state.digest import digest
from maar.metastore.state.index import Chunk, Index, blocks_in
from maar.metastore.state.marks import KnownMarks
from maar.metastore.state.state import MetaState
from maar.model.errors import Corrupt, Rejected
from maar.model.ids import BlockId, Incarnation, TenantId, WorkerId
from maar.model.policy import Policy
from maar.model.time import SECOND_NS, LeaseTime
from maar.ports.metastore.log import Head
from support.metastore.every_entry import every_kind_of_entry
from support.metastore.fold import Fold, segment

HEAD_HASH = b"h" * 32


def everything(segments: int = 0) -> Fold:
    """A state in which nothing is empty."""
    fold = every_kind_of_entry()
    fold.put(BlocksAdded(tuple(segment(100 + n, at=n, shard=n % 3 + 1) for n in range(segments))))
    wishes = [Wish(WorkerId("w2"), 1)]
    for entry in assign(fold.state, wishes, now=LeaseTime(fold.now)):
        fold.put(entry)
    fold.state.adopting = (Incarnation("01dcafe0"),)  # by no entry: it would end every plan
    fold.state.adopted_at = LeaseTime(7)  # in that log an adoption ended when time began
    return fold


def encoded(state: MetaState) -> bytes:
    return snapshot.encode(state, Head(state.index, HEAD_HASH))


def plain(value: Any) -> Any:
    """What a state says, however it is kept; the order of dicts is part of it."""
    if isinstance(value, Index):
        metas = [meta for part in value.partitions() for meta in blocks_in(part.chunks)]
        return [metas, list(value.where), sorted(plain(value.totals)), value.hash]
    if dataclasses.is_dataclass(value):
        return {f.name: plain(getattr(value, f.name)) for f in dataclasses.fields(value)}
    if isinstance(value, dict):
        return [(key, plain(one)) for key, one in value.items()]
    if isinstance(value, KnownMarks):
        return None
    if hasattr(value, "__iter__") and not isinstance(value, str | bytes | tuple):
        return list(value)
    return value


def without_order(told: dict[str, Any]) -> dict[str, Any]:
    """Where order means nothing."""
    for name in ("lanes", "fronts", "full", "waiting"):
        told["queue"][name] = sorted(told["queue"][name], key=lambda item: item[0])
    for name in ("owners", "pins", "retention", "rings"):
        told[name] = sorted(told[name])
    told["plans"] = {
        name: sorted(map(str, of)) if isinstance(of, list) else of
        for name, of in told["plans"].items()
    }
    told["retired"] = [
        (block, kept.entry, kept.at, kept.outputs) for block, kept in told["retired"]
    ]
    return told


# ── there and back ─────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("segments", [0, 1, 500])
def test_a_state_with_everything_in_it_comes_back(segments: int) -> None:
    fold = everything(segments)
    state = fold.state
    for name, value in vars_of(state):
        assert value or name in ("registration_floor", "queue.full"), (
            f"{name} is empty: this test tests nothing"
        )
    again, head = snapshot.decode(encoded(state))
    assert head == Head(state.index, HEAD_HASH)
    assert without_order(plain(again)) == without_order(plain(state))
    assert digest(again) == digest(state)
    audit.check_sums(again)


def vars_of(state: MetaState) -> Iterator[tuple[str, Any]]:
    for field in dataclasses.fields(state):
        value = getattr(state, field.name)
        if field.name == "known_marks":
            continue
        if field.name in ("queue", "blocks", "tally"):
            for inner in dataclasses.fields(value):
                yield f"{field.name}.{inner.name}", getattr(value, inner.name)
        else:
            yield field.name, value


def test_what_follows_is_folded_alike() -> None:
    fold = everything(200)
    again, _ = snapshot.decode(encoded(fold.state))
    entries: list[Entry] = [
        Tick(),
        BlocksAdded(tuple(segment(900 + n, at=30 * SECOND_NS) for n in range(90))),
        LimitRaised(1, LeaseTime(5)),
        RetentionSet(TenantId("umbrella"), 7),
        PinsTaken(("r",), LeaseTime(9)),
        *assign(fold.state, [Wish(WorkerId("w9"), 5)], now=LeaseTime(fold.now)),
    ]
    assert isinstance(entries[-1], PlansLeased)
    for entry in entries:
        effects = fold.put(entry)
        assert apply(again, fold.log[-1]) == effects
    assert digest(again) == digest(fold.state)
    assert without_order(plain(again)) == without_order(plain(fold.state))


def test_a_snapshot_of_what_was_restored_is_the_same_bytes() -> None:
    body = encoded(everything(300).state)
    again, head = snapshot.decode(body)
    assert snapshot.encode(again, head) == body


def test_a_snapshot_is_due_after_enough_entries_or_bytes_and_a_large_one_later() -> None:
    policy = Policy(snapshot_entries=10, snapshot_bytes=1_000)

    def due(entries: int, appended: int, size: int = 0) -> bool:
        return snapshot_due(policy, entries=entries, appended=appended, size=size)

    assert (due(9, 999), due(10, 0), due(0, 1_000)) == (False, True, True)
    assert (due(10, 99, 1_600), due(10, 100, 1_600)) == (False, True)
    assert (due(0, 1_000, 16_001), due(0, 1_001, 16_001)) == (False, True)


# ── damage ─────────────────────────────────────────────────────────────────────────────────────


def test_a_snapshot_cut_anywhere_or_with_any_byte_changed_is_refused() -> None:
    body = encoded(everything(3).state)
    for at in range(0, len(body), 5):
        with pytest.raises(Corrupt):
            snapshot.decode(body[:at])
        with pytest.raises(Corrupt):
            snapshot.decode(body[:at] + bytes((body[at] ^ 1,)) + body[at + 1 :])
    with pytest.raises(Corrupt):
        snapshot.decode(body + b"\0")


def frames(body: bytes) -> list[bytes]:
    found, at = [], 8
    while at < len(body) - 32:
        end = at + 8 + int.from_bytes(body[at : at + 4], "big")
        found.append(body[at:end])
        at = end
    return found


def signed(parts: list[bytes]) -> bytes:
    body = b"MAARSNAP" + b"".join(parts)
    return body + hashlib.sha256(body).digest()


def test_a_snapshot_that_lacks_a_part_is_refused_though_its_checksum_is_right() -> None:
    parts = frames(encoded(everything(200).state))
    assert len(parts) > 15
    snapshot.decode(signed(parts))
    for at in range(len(parts)):
        with pytest.raises(Corrupt):
            snapshot.decode(signed(parts[:at] + parts[at + 1 :]))


def test_a_snapshot_of_a_newer_program_is_refused_with_a_sentence() -> None:
    parts = frames(encoded(everything().state))
    header = snapshot.Header(VERSION + 1, "0badcafe", 7, b"", b"")  # type: ignore[arg-type]
    newer = snapshot.frame(msgspec.msgpack.encode(header))
    with pytest.raises(Rejected, match=rf"version {VERSION + 1}.*Start the newer program"):
        snapshot.decode(signed([newer, *parts[1:]]))


def change_chunk(state: MetaState, **changes: Any) -> None:
    shelf = next(iter(next(iter(state.blocks.tenants.values())).values()))
    shelf.chunks[0] = msgspec.structs.replace(shelf.chunks[0], **changes)


def change_place(state: MetaState, **changes: Any) -> None:
    item = next(iter(state.queue.places.values()))
    state.queue.places.pop(item.block)
    state.queue.places.add(item._replace(**changes))


def first_chunk(state: MetaState) -> Chunk:
    return next(iter(next(iter(state.blocks.tenants.values())).values())).chunks[0]


LIES: list[Callable[[MetaState], object]] = [
    lambda s: change_chunk(s, levels=bytes(len(first_chunk(s)))[:-1] + b"\x09"),
    lambda s: change_chunk(s, raw_ids=bytes(len(first_chunk(s).raw_ids))),
    lambda s: change_chunk(
        s, bounds=msgspec.structs.replace(first_chunk(s).bounds, min_time_ns=1 << 62)
    ),
    lambda s: change_chunk(s, bounds=msgspec.structs.replace(first_chunk(s).bounds, max_time_ns=0)),
    lambda s: change_chunk(s, bounds=msgspec.structs.replace(first_chunk(s).bounds, largest=0)),
    lambda s: setattr(s.blocks, "hash", s.blocks.hash + 1),
    lambda s: setattr(next(iter(s.blocks.totals.values())), "bytes", 7),
    lambda s: setattr(s.queue, "hash", s.queue.hash + 1),
    lambda s: s.queue.places.pop(next(iter(s.queue.places))),
    lambda s: change_place(s, size=7),
    lambda s: s.queue.places.add(
        next(iter(s.queue.places.values()))._replace(block=BlockId("e" * 32))
    ),
]


@pytest.mark.parametrize("lie", LIES)
def test_what_is_kept_beside_the_blocks_is_audited(lie: Callable[[MetaState], object]) -> None:
    state = everything(100).state
    audit.check_sums(state)
    lie(state)
    with pytest.raises(Corrupt):
        audit.check_sums(state)


def test_blocks_out_of_order_and_halves_of_places_are_refused() -> None:
    state = everything(200).state
    parts = list(snapshot_parts.parts_of(state))
    swapped = sorted(parts, key=lambda part: type(part).__name__, reverse=True)
    assert digest(snapshot_parts.state_of(swapped)) == digest(state)  # kinds come in any order
    with pytest.raises(Corrupt, match="not in order"):
        snapshot_parts.state_of(reversed(parts))
    places = next(p for p in parts if isinstance(p, snapshot_records.PackedPlaces))
    half = msgspec.structs.replace(places, places=places.places[:-1])
    with pytest.raises(Corrupt, match="whole number of places"):
        snapshot_parts.state_of([half])
    with pytest.raises(Corrupt, match="two places"):
        snapshot_parts.state_of([*parts, places])
    plans = next(p for p in parts if isinstance(p, snapshot_records.Plans))
    with pytest.raises(Corrupt, match="does not hold it"):
        snapshot_parts.state_of([plans])
