"""The hash of the state covers every field of every record in it; the rest is compared (S13).

The walk goes by the types: a field that is added to any of them is changed here, and must show.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from enum import Enum
from functools import partial
from typing import Any, get_args, get_type_hints

import msgspec
import pytest
from test_metastore_snapshot import change_chunk, everything, first_chunk

from maar.metastore.records.packs import Pack, Packed, outline, pack, unpack
from maar.metastore.replica import snapshot
from maar.metastore.state import audit
from maar.metastore.state.digest import digest
from maar.metastore.state.index import Index, blocks_in
from maar.metastore.state.marks import mark_of_bytes
from maar.metastore.state.repairs import HistoryKey
from maar.metastore.state.retired import Retired
from maar.metastore.state.state import MetaState, SetbackScope
from maar.metastore.state.tombstones import CopyKey
from maar.metastore.state.windows import Window, WindowSum
from maar.model.block import BlockMeta
from maar.model.errors import Corrupt
from maar.model.ids import MAIN_STORE, NO_TENANT, BlockId, PlanId, Shard, WorkerId
from maar.model.lane import Item
from maar.model.plan import JobId, PlanKind, QueueKey
from maar.model.policy import Policy
from maar.ports.metastore.log import Head
from support.metastore.fold import segment

# ── what the hash leaves out, why, and a lie about it that is found all the same ────────────────

Lie = Callable[[MetaState], object]


def first(found: Any) -> Any:
    return next(iter(found.values()))


HASHED_BEFORE = "382236502bd937c57d2ef9e9a30ec521ef4a63c770c9da4b07cfbf6f206380c8"
KEY = QueueKey(MAIN_STORE, NO_TENANT, Shard(0), 0, day=7)
LEFT_OUT: dict[str, tuple[str, Lie]] = {
    "index": ("stated in the next entry", lambda s: setattr(s, "index", s.index + 1)),
    "lease_time": ("stated in the next entry", lambda s: setattr(s, "lease_time", 7)),
    "wall_time": ("stated in the next entry", lambda s: setattr(s, "wall_time", 7)),
    "owners": (
        "follows from the plans; counted",
        lambda s: s.owners.__setitem__(next(iter(s.owners)), PlanId(7, 7)),
    ),
    "blocks.where": (
        "follows from the blocks; counted",
        lambda s: s.blocks.where.add(bytes(16), next(iter(first(s.blocks.tenants)))),
    ),
    "queue.lanes": (
        "follows from places and owners; `queued` counts it",
        lambda s: setattr(first(s.queue.lanes), "bytes", 7),
    ),
    "queue.fronts": (
        "follows from lanes",
        lambda s: first(s.queue.fronts).discard(first(s.queue.fronts)[0]),
    ),
    "queue.full": ("follows from lanes and policy", lambda s: s.queue.full.clear()),
    "queue.waiting": (
        "follows from lanes",
        lambda s: setattr(first(s.queue.waiting), "bytes", 7),
    ),
    "plans.lines": (
        "follows from the plans",
        lambda s: first(s.plans.lines).discard(first(s.plans.lines)[0]),
    ),
    "plans.held": (
        "follows from the plans",
        lambda s: s.plans.held.__setitem__(WorkerId("w9"), set()),
    ),
    "plans.leases": ("follows from the plans", lambda s: setattr(s.plans, "leases", 9)),
    "blocks.windows.by_key": (
        "follows from the blocks; audited",
        lambda s: s.blocks.windows.by_key.__setitem__(KEY, Window(WindowSum(1), WindowSum())),
    ),
    "blocks.windows.mixed": (
        "follows from the windows",
        lambda s: s.blocks.windows.mixed.setdefault(7, {}).__setitem__(KEY, None),
    ),
    "blocks.windows.of_tenant": (
        "follows from the windows",
        lambda s: s.blocks.windows.of_tenant.setdefault(NO_TENANT, {}).__setitem__(KEY, None),
    ),
    "blocks.copies.sums": (
        "follows from the blocks; audited",
        lambda s: setattr(first(s.blocks.copies.sums), "bytes", 7),
    ),
    "blocks.copies.lacking": (
        "follows from the blocks and the stores; audited",
        lambda s: first(first(s.blocks.copies.lacking)).add(BlockId("e" * 32)),
    ),
    "queue.placed": (
        "follows from places",
        lambda s: s.queue.placed.__setitem__(KEY, WindowSum(1)),
    ),
    "plans.removable": (
        "follows from the plans",
        lambda s: s.plans.removable.__setitem__(PlanId(7, 7), None),
    ),
    "plans.urgent": (
        "follows from the plans",
        lambda s: s.plans.urgent.__setitem__(PlanId(7, 7), None),
    ),
    "plans.rollbacks": (
        "follows from the plans",
        lambda s: s.plans.rollbacks.__setitem__(PlanId(7, 7), PlanId(7, 8)),
    ),
    "blocks.copies.of_tenant": (
        "follows from the sums of copies",
        lambda s: s.blocks.copies.of_tenant.clear(),
    ),
    "blocks.copies.of_store": (
        "follows from the sums of copies",
        lambda s: s.blocks.copies.of_store.clear(),
    ),
}
LEFT_OUT |= {
    "plans.occupied": (
        "follows from the plans",
        lambda s: s.plans.occupied.setdefault("store:x", {}).__setitem__(PlanId(7, 7), None),
    ),
    "plans.of_job": (
        "follows from the plans",
        lambda s: s.plans.of_job.setdefault(JobId(NO_TENANT, PlanKind("x")), {}).__setitem__(
            PlanId(7, 7), None
        ),
    ),
}
SAYS_NOTHING = {
    "known_marks": "marks of plans that are hashed already; it saves work",
    "kinds": "the program's, not the log's",
    "plans.kinds": "the program's, not the log's",
    "queue.rules": "the program's, not the log's",
}


@pytest.mark.parametrize("name", LEFT_OUT)
def test_what_the_hash_leaves_out_is_compared_when_a_snapshot_is_made(name: str) -> None:
    state = everything(12).state
    again, _ = snapshot.decode(snapshot.encode(state, Head(state.index, b"h" * 32)))
    audit.check_derived(state, again)
    _, lie = LEFT_OUT[name]
    lie(state)
    with pytest.raises(Corrupt, match="bug in maar"):
        audit.check_derived(state, again)


# ── every way in which a state can be another one ──────────────────────────────────────────────


def hints(kind: Any, prefix: str = "") -> Iterator[tuple[str, Any]]:
    for name, hint in get_type_hints(kind).items():
        if dataclasses.is_dataclass(hint):
            yield from hints(hint, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", hint


FIELDS = [name for name, _ in hints(MetaState) if name not in {*LEFT_OUT, *SAYS_NOTHING}]


def others(value: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """Values that differ from this one in one place, and the name of the place."""
    if isinstance(value, bool):
        yield path, not value
    elif isinstance(value, Enum):
        yield path, next(member for member in type(value) if member is not value)
    elif isinstance(value, int):
        yield path, value + 1
    elif isinstance(value, str):
        yield path, f"{value}x"
    elif isinstance(value, bytes):
        yield path, value + b"x"
    elif value is None:
        yield path, 0
    elif isinstance(value, Retired):  # the block in it as a block
        bare = msgspec.structs.replace(value, packed=b"")
        yield from (
            (at, msgspec.structs.replace(other, packed=value.packed))
            for at, other in others_of_fields(bare)
            if at != "Retired.packed"
        )
        for _, other in others(unpack(value.packed)):
            yield "Retired.packed", msgspec.structs.replace(value, packed=pack(other))
    elif isinstance(value, msgspec.Struct) or hasattr(value, "_asdict"):
        yield from others_of_fields(value)
    elif isinstance(value, tuple):
        yield path, (*value, value[-1] if value else 0)
        if value:
            for inner, other in others(value[0], path):
                yield inner, (other, *value[1:])
    else:
        raise AssertionError(f"{path}: no other {type(value)} is known")


def others_of_fields(value: Any) -> Iterator[tuple[str, Any]]:
    struct = isinstance(value, msgspec.Struct)
    names = value.__struct_fields__ if struct else value._fields
    for name in names:
        for inner, other in others(getattr(value, name), f"{type(value).__name__}.{name}"):
            change = {name: other}
            yield (
                inner,
                msgspec.structs.replace(value, **change) if struct else value._replace(**change),
            )


Change = tuple[str, Callable[[], object]]


def changes(state: MetaState, name: str) -> Iterator[Change]:
    """Every way in which a field of the state can be different: as another fold would make it."""
    *owners, last = name.split(".")
    owner: Any = state
    for part in owners:
        owner = getattr(owner, part)
    value = getattr(owner, last)
    if name == "blocks.tenants":
        yield from changed_blocks(state)
    elif name == "queue.places":
        yield from changed_places(state)
    elif name == "remembered":
        yield name, partial(state.remembered.add, BlockId("e" * 32))
        yield name, partial(setattr, state, "remembered", type(value)())
    elif isinstance(value, dict):
        for key, item in list(value.items()):
            yield name, partial(value.__delitem__, key)
            if isinstance(key, SetbackScope | CopyKey | HistoryKey | JobId):
                for path, other in others(key):
                    yield path, partial(rename_key, value, key, other)
            if dataclasses.is_dataclass(item):
                for field in dataclasses.fields(item):
                    at = f"{type(item).__name__}.{field.name}"
                    yield at, partial(setattr, item, field.name, -1)
                continue
            for path, other in others(item, name):
                yield path, partial(value.__setitem__, key, other)
    else:
        for path, other in others(value, name):
            yield path, partial(setattr, owner, last, other)


def rename_key(value: dict[Any, Any], key: object, other: object) -> None:
    value[other] = value[key]
    del value[key]


def changed_blocks(state: MetaState) -> Iterator[Change]:
    """One of each kind, every field of it, as if another one had been registered."""

    def instead(meta: BlockMeta, other: BlockMeta) -> None:
        state.blocks.remove(meta.id)
        state.blocks.add(other)

    metas = [meta for part in state.blocks.partitions() for meta in blocks_in(part.chunks)]
    for meta in {meta.kind: meta for meta in metas}.values():
        yield "blocks.tenants", partial(state.blocks.remove, meta.id)
        for path, other in others(meta):
            if path == "BlockMeta.id":
                other = msgspec.structs.replace(meta, id=BlockId("e" * 32))
            yield path, partial(instead, meta, other)


def changed_places(state: MetaState) -> Iterator[Change]:
    """Of a block that waits, and of one that a plan owns."""

    def instead(item: Item, other: Item) -> None:
        state.queue.leave(item.block, state.policy)
        state.queue.enter(other, state.policy)
        if item.block in state.owners:
            state.queue.take(other.block, state.policy)

    items = list(state.queue.places.all())
    for item in {item.block in state.owners: item for item in items}.values():
        for path, other in others(item):
            if path == "Item.block":
                other = item._replace(block=BlockId("e" * 32))
            yield path, partial(instead, item, other)


@pytest.mark.parametrize("name", FIELDS)
def test_every_field_of_the_state_is_in_its_hash(name: str) -> None:
    state = everything(3).state
    body = snapshot.encode(state, Head(state.index, b"h" * 32))
    before, count = digest(state), len(list(changes(state, name)))
    assert count, "nothing to change: this test tests nothing"
    for number in range(count):
        state, _ = snapshot.decode(body)
        path, change = list(changes(state, name))[number]
        change()
        assert digest(state) != before, path


INSTEAD = {"blocks.tenants": BlockMeta, "queue.places": Item}  # what a packed collection holds
HOW_IT_IS_KEPT = {Packed, Pack}  # the block in a `Retired` is changed as a block


def records(kind: Any, seen: set[Any]) -> Iterator[str]:
    """Every plain field of every record that a type can hold, as `Record.field`."""
    if kind in seen:
        return
    seen.add(kind)
    for part in (*get_args(kind), *getattr(kind, "__orig_bases__", ())):
        yield from records(part, seen)
    if is_record(kind):
        for name, hint in get_type_hints(kind).items():
            yield from records(hint, seen)
            if not holds_records(hint):
                yield f"{kind.__name__}.{name}"


def holds_records(hint: Any) -> bool:
    return is_record(hint) or any(map(holds_records, get_args(hint)))


def is_record(kind: Any) -> bool:
    if not isinstance(kind, type):
        return False
    named = issubclass(kind, tuple) and hasattr(kind, "_fields")
    return issubclass(kind, msgspec.Struct) or named or dataclasses.is_dataclass(kind)


def test_every_field_of_every_record_in_the_state_was_changed_by_that_test() -> None:
    """Or the state of these tests lacks a record, and says nothing of its fields."""
    seen: set[Any] = set(HOW_IT_IS_KEPT)
    kinds = [INSTEAD.get(name, hint) for name, hint in hints(MetaState) if name in FIELDS]
    reachable = {path for kind in kinds for path in records(kind, seen)}
    assert {"Location.key", "Dataset.types", "QueueKey.day", "Retired.cause"} <= reachable
    state = everything(3).state
    changed = {path for name in FIELDS for path, _ in changes(state, name)}
    assert reachable - changed == set()


def test_a_block_that_changed_where_it_is_kept_fails_the_audit() -> None:
    """Hashes are kept as blocks come and go, so that only reading all of them again can tell."""
    for name in ("store", "created_by", "zone"):
        state = everything(12).state
        chunk = first_chunk(state)
        at = next(n for n, packed in enumerate(chunk.loose) if packed)
        meta = unpack(chunk.loose[at])
        other = pack(msgspec.structs.replace(meta, **{name: "other"}))
        change_chunk(state, loose=(*chunk.loose[:at], other, *chunk.loose[at + 1 :]))
        before = digest(state)
        with pytest.raises(Corrupt):
            audit.check_sums(state)
        assert digest(state) == before


def test_ids_are_hashed_alike_in_whatever_order_they_came() -> None:
    ids = [segment(n).id for n in range(500)]
    states = [MetaState() for _ in range(3)]
    for state, order in zip(states, (ids, ids[::-1], [*ids[1:], segment(501).id]), strict=True):
        for block in order:
            state.remembered.add(block)
    one, two, other = map(digest, states)
    assert one == two != other


def test_a_block_is_hashed_as_the_log_has_it() -> None:
    """Not as a program would write it that knows more fields: replicas of two programs agree."""
    index, meta = Index(), segment(500)
    longer = msgspec.msgpack.encode([*msgspec.msgpack.decode(pack(meta)), "of a later program"])
    index.put(outline(longer), longer)
    assert index.hash == mark_of_bytes(longer) != mark_of_bytes(pack(meta))
    assert index.remove(meta.id) == meta
    assert index.hash == 0


def test_a_log_that_does_not_know_of_plans_for_a_backlog_states_the_hash_that_it_stated() -> None:
    """The last field of the policy came when logs were there: in those it is what it is by default,
    and a replica of the program before agrees.
    """
    before = MetaState(policy=msgspec.convert(msgspec.structs.astuple(Policy())[:-1], Policy))
    assert digest(before).hex() == HASHED_BEFORE
    assert digest(MetaState(policy=Policy(backlog_count=7))) != digest(before)
