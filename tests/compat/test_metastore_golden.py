"""Today's code reads every log and snapshot ever written, and comes to the same state.

The files under golden/ are never written again. A new version gets new files beside the old ones:
raise NEWEST, extend the history, and run `python tests/compat/test_metastore_golden.py`.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import shutil
import sys
from pathlib import Path

import msgspec
import pytest

sys.path.insert(0, str(Path(__file__).parent.parent))  # when it runs as a script

from maar.adapters.sqlite.log import DATABASE, SqliteLog
from maar.metastore.records import entries as e
from maar.metastore.replica import snapshot
from maar.metastore.replica.log_fold import LogFold
from maar.metastore.state import snapshot_parts
from maar.metastore.state.digest import digest
from maar.metastore.state.state import MetaState
from maar.model.time import SECOND_NS, LeaseTime, WallTime
from maar.ports.log import EMPTY, Candidate, Record
from support.metastore.every_entry import every_kind_of_entry
from support.metastore.fold import DAY_START_NS, segment
from support.stores.memory_store import MemoryStore

GOLDEN = Path(__file__).parent / "golden"
NEWEST = 5
LAST_KIND = {1: 22, 2: 29, 3: 30, 4: 34, 5: 37}  # of the entries of a version
STORED_KEY = "metastore/v1/0badcafe/entry-0000000000000022-golden.msgpack"

versions = pytest.mark.parametrize("version", LAST_KIND)


def history() -> list[e.Envelope]:
    """Every kind of entry, each doing something; the last is kept apart from the log."""
    fold = every_kind_of_entry()
    body = stored_entry()
    apart = e.Stored(STORED_KEY, len(body), hashlib.sha256(body).digest())
    at, wall = LeaseTime(61 * SECOND_NS), WallTime(DAY_START_NS + 61 * SECOND_NS)
    return [*(item.envelope for item in fold.log), e.Envelope(NEWEST, at, wall, apart)]


def encoded(envelope: e.Envelope) -> bytes:
    assert not isinstance(envelope.entry, e.BlocksOutlined)
    entry = e.encode_entry(envelope.entry)
    return e.encode(envelope.version, envelope.lease_time, envelope.wall_time, entry)


def stored_entry() -> bytes:
    return e.encode_entry(e.BlocksAdded((segment(90, at=59 * SECOND_NS),)))


async def write(directory: Path) -> None:
    """Only ever for a new version: what is there is never written over."""
    names = [f"{name}-v{NEWEST}" for name in ("log", "state", "snapshot", "stored-entry")]
    there = [path.name for path in directory.iterdir() if path.stem in names]
    if there:
        raise SystemExit(f"{', '.join(there)} exist in {directory} and are never written again")
    log = SqliteLog.open(directory / f"log-v{NEWEST}")
    term = await log.campaign(Candidate("golden"))
    await log.append(list(map(encoded, history())), term=term, head=EMPTY)
    body = stored_entry()
    (directory / f"stored-entry-v{NEWEST}.msgpack").write_bytes(body)
    replica = await replayed(log, body)
    made = snapshot.encode(replica.state, replica.head)
    (directory / f"snapshot-v{NEWEST}.maar").write_bytes(made)
    state = json.dumps(told(replica.state), indent=1) + "\n"
    (directory / f"state-v{NEWEST}.json").write_text(state)
    await log.close()
    (directory / f"log-v{NEWEST}" / "lock").unlink()


async def replayed(log: SqliteLog, body: bytes) -> LogFold:
    store = MemoryStore()
    store.create(STORED_KEY, body)
    replica = LogFold(store)
    await replica.catch_up(log)
    return replica


def told(state: MetaState) -> dict[str, object]:
    """The state in words that do not depend on how it is kept."""
    found: dict[str, object] = {
        "index": state.index,
        "digest": digest(state).hex(),
        "lease_time": state.lease_time,
        "term": [state.term, state.leader],
        "blocks": sorted(state.blocks.where),
        "queued": [block for block in sorted(state.queue.places) if block in state.queue],
        "owners": {block: str(plan) for block, plan in sorted(state.owners.items())},
        "plans": {str(p.id): [p.state.name, p.failures] for p in state.plans.values()},
        "finished": {str(p.id): p.state.name for p in state.finished.values()},
        "retired": sorted(state.retired),
        "remembered": list(state.remembered),
        "pins": {reader: list(pin) for reader, pin in sorted(state.pins.items())},
        "floor": state.floor,
        "added": state.tally.profiles_added,
        "duplicates": state.tally.duplicates_removed,
        "quarantined": state.tally.profiles_quarantined,
    }
    if state.version >= 2:
        found |= {
            "expired": state.tally.profiles_expired,
            "parked": {str(p.id): [p.failures, p.spared, p.note] for p in state.parked.values()},
            "litter": [f"{at.plan} {at.token} {n.ended_at}" for at, n in state.litter.items()],
            "retention": dict(sorted(state.retention.items())),
            "raised": list(state.raised),
            "anchor": list(state.anchor),
        }
    if state.version >= 3:
        found["rings"] = {
            zone: [
                ring.changed_at,
                [[w.node, w.address, w.session, w.shards, w.state.value] for w in ring.writers],
                list(ring.owners),
            ]
            for zone, ring in sorted(state.rings.items())
        }
    if state.version >= 4:
        tally = state.tally
        found |= {
            "incarnation": state.incarnation,
            "adopting": list(state.adopting),
            "former": list(state.former),
            "adopted": tally.blocks_adopted,
            "missed": [tally.blocks_missed, tally.profiles_missed],
        }
    if state.version >= 5:
        tally = state.tally
        found |= {
            "lanes": {
                block: list(msgspec.structs.astuple(item.key))
                for block, item in sorted(state.queue.places.items())
            },
            "causes": {block: each.cause.name for block, each in sorted(state.retired.items())},
            "lost": [tally.blocks_lost, tally.profiles_lost],
            "clock": list(state.clock),
            "hold": list(state.hold),
            "confirmed": state.confirmed_ns,
            "spent": {
                tenant: [list(hour) for hour in each.hours]
                for tenant, each in sorted(state.spent.items())
            },
        }
    return found


def golden(version: int) -> dict[str, object]:
    found: dict[str, object] = json.loads((GOLDEN / f"state-v{version}.json").read_text())
    return found


def records(version: int, directory: Path) -> tuple[MetaState, list[Record]]:
    """The state that a golden log gives, and what is in it."""
    shutil.copy(GOLDEN / f"log-v{version}" / DATABASE, directory / DATABASE)

    async def read() -> tuple[MetaState, list[Record]]:
        log = SqliteLog.open(directory)
        body = (GOLDEN / f"stored-entry-v{version}.msgpack").read_bytes()
        replica = await replayed(log, body)
        found = await log.read(after=0)
        await log.close()
        return replica.state, found

    return asyncio.run(read())


@versions
def test_a_log_gives_the_state_that_it_gave(version: int, tmp_path: Path) -> None:
    state, found = records(version, tmp_path)
    assert told(state) == golden(version)
    kinds = {type(e.decode(record.body, index=record.index).entry) for record in found}
    assert kinds == {
        kind for kind in e.Entry.__args__ if kind.__struct_config__.tag <= LAST_KIND[version]
    }


@versions
def test_a_snapshot_is_the_state_that_it_was(version: int) -> None:
    state, head = snapshot.decode((GOLDEN / f"snapshot-v{version}.maar").read_bytes())
    assert told(state) == golden(version)
    assert head.index == state.index
    snapshot_parts.audit(state)


@versions
def test_a_snapshot_written_today_of_an_old_state_is_that_state(version: int) -> None:
    state, head = snapshot.decode((GOLDEN / f"snapshot-v{version}.maar").read_bytes())
    again, _ = snapshot.decode(snapshot.encode(state, head))
    assert told(again) == golden(version)
    snapshot_parts.audit(again)


@versions
def test_entries_are_written_as_they_were_with_new_fields_at_the_end(
    version: int, tmp_path: Path
) -> None:
    """So a replica of that version can read those that it knows."""
    _, found = records(version, tmp_path)
    for record in found:
        read = e.decode(record.body, index=record.index)
        again = encoded(read)
        old, new = msgspec.msgpack.decode(record.body), msgspec.msgpack.decode(again)
        assert begins_with(new, old), type(read.entry)
        assert version < NEWEST or again == record.body, type(read.entry)


def begins_with(new: object, old: object) -> bool:
    if not isinstance(old, list):
        return new == old
    return (
        isinstance(new, list)
        and len(new) >= len(old)
        and all(begins_with(one, other) for one, other in zip(new, old, strict=False))
    )


def test_golden_files_are_never_written_again(tmp_path: Path) -> None:
    there = tmp_path / f"state-v{NEWEST}.json"
    there.write_text("{}")
    with pytest.raises(SystemExit, match="never written again"):
        asyncio.run(write(tmp_path))
    assert [path.name for path in tmp_path.iterdir()] == [there.name]
    assert there.read_text() == "{}"


if __name__ == "__main__":
    asyncio.run(write(GOLDEN))
