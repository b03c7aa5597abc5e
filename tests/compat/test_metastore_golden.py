"""Today's code reads the log and the snapshot that are kept here, and comes to the same state.

`make golden` writes them anew. That is allowed until the first release, and whoever does so has
changed the format: it belongs in CHANGELOG.md. From then on they stay, and a new version of the log
gets files of its own beside them.
"""

from __future__ import annotations

import asyncio
import dataclasses
import hashlib
import json
import shutil
import sys
from pathlib import Path

import msgspec

sys.path.insert(0, str(Path(__file__).parent.parent))  # when it runs as a script

from maar.adapters.sqlite.log import DATABASE, SqliteLog
from maar.metastore.records import entries as e
from maar.metastore.replica import snapshot
from maar.metastore.replica.log_fold import LogFold
from maar.metastore.state import audit
from maar.metastore.state.digest import digest
from maar.metastore.state.state import MetaState
from maar.model.time import SECOND_NS, LeaseTime, WallTime
from maar.ports.metastore.log import EMPTY, Candidate, Record
from support.metastore.every_entry import every_kind_of_entry
from support.metastore.fold import DAY_START_NS, encode_envelope, segment
from support.stores.memory_store import MemoryStore

GOLDEN = Path(__file__).parent / "golden"
LOG, STATE, SNAPSHOT = "log-v1", "state-v1.json", "snapshot-v1.maar"
STORED = "stored-entry-v1.msgpack"
STORED_KEY = "metastore/v1/0badcafe/entry-0000000000000022-golden.msgpack"


def history() -> list[e.Envelope]:
    """Every kind of entry, each doing something; the last is kept apart from the log."""
    fold = every_kind_of_entry()
    body = stored_entry()
    apart = e.Stored(STORED_KEY, len(body), hashlib.sha256(body).digest())
    at, wall = LeaseTime(61 * SECOND_NS), WallTime(DAY_START_NS + 61 * SECOND_NS)
    return [*(item.envelope for item in fold.log), e.Envelope(e.VERSION, at, wall, apart)]


def stored_entry() -> bytes:
    return e.encode_entry(e.BlocksAdded((segment(90, at=59 * SECOND_NS),)))


async def write(directory: Path) -> None:
    shutil.rmtree(directory / LOG, ignore_errors=True)
    log = SqliteLog.open(directory / LOG)
    term = await log.campaign(Candidate("golden"))
    await log.append(list(map(encode_envelope, history())), term=term, head=EMPTY)
    body = stored_entry()
    (directory / STORED).write_bytes(body)
    replica = await replayed(log, body)
    (directory / SNAPSHOT).write_bytes(snapshot.encode(replica.state, replica.head))
    (directory / STATE).write_text(json.dumps(told(replica.state), indent=1) + "\n")
    await log.close()
    (directory / LOG / "lock").unlink()


async def replayed(log: SqliteLog, body: bytes) -> LogFold:
    store = MemoryStore()
    store.create(STORED_KEY, body)
    replica = LogFold(store)
    await replica.catch_up(log)
    return replica


def told(state: MetaState) -> dict[str, object]:
    """The state in words that do not depend on how it is kept."""
    tally = state.tally
    return {
        "index": state.index,
        "digest": digest(state).hex(),
        "lease_time": state.lease_time,
        "term": [state.term, state.leader],
        "incarnation": state.incarnation,
        "blocks": sorted(state.blocks.where),
        "queued": [block for block in sorted(state.queue.places) if block in state.queue],
        "lanes": {
            block: list(msgspec.structs.astuple(item.key))
            for block, item in sorted(state.queue.places.items())
        },
        "owners": {block: str(plan) for block, plan in sorted(state.owners.items())},
        "plans": {str(p.id): [p.state.name, p.failures] for p in state.plans.values()},
        "parked": {str(p.id): [p.failures, p.excused, p.note] for p in state.parked.values()},
        "finished": {str(p.id): p.state.name for p in state.finished.values()},
        "retired": {block: each.cause.name for block, each in sorted(state.retired.items())},
        "remembered": list(state.remembered),
        "pins": {reader: list(pin) for reader, pin in sorted(state.pins.items())},
        "leftovers": [f"{at.plan} {at.token} {n.ended_at}" for at, n in state.leftovers.items()],
        "registration_floor": state.registration_floor,
        "tally": dataclasses.asdict(tally),
        "retention": dict(sorted(state.retention.items())),
        "raised": list(state.raised),
        "anchor": list(state.anchor),
        "clock": list(state.clock),
        "hold": list(state.hold),
        "confirmed": state.confirmed_ns,
        "spent": {
            tenant: [list(hour) for hour in each.hours]
            for tenant, each in sorted(state.spent.items())
        },
        "rings": {
            zone: [
                ring.changed_at,
                [[w.node, w.address, w.session, w.shards, w.state.value] for w in ring.writers],
                list(ring.owners),
            ]
            for zone, ring in sorted(state.rings.items())
        },
        "adopting": list(state.adopting),
        "former": list(state.former),
    }


def golden() -> dict[str, object]:
    found: dict[str, object] = json.loads((GOLDEN / STATE).read_text())
    return found


def records(directory: Path) -> tuple[MetaState, list[Record]]:
    """The state that the golden log gives, and what is in it."""
    shutil.copy(GOLDEN / LOG / DATABASE, directory / DATABASE)

    async def read() -> tuple[MetaState, list[Record]]:
        log = SqliteLog.open(directory)
        replica = await replayed(log, (GOLDEN / STORED).read_bytes())
        found = await log.read(after=0)
        await log.close()
        return replica.state, found

    return asyncio.run(read())


def test_the_log_gives_the_state_that_it_gave(tmp_path: Path) -> None:
    state, found = records(tmp_path)
    assert told(state) == golden()
    kinds = {type(e.decode(record.body, index=record.index).entry) for record in found}
    assert kinds == set(e.Entry.__args__)


def test_the_snapshot_is_the_state_that_it_was() -> None:
    state, head = snapshot.decode((GOLDEN / SNAPSHOT).read_bytes())
    assert told(state) == golden()
    assert head.index == state.index
    audit.check_sums(state)


def test_a_snapshot_written_today_of_that_state_is_that_state() -> None:
    again, _ = snapshot.decode(snapshot.encode(*snapshot.decode((GOLDEN / SNAPSHOT).read_bytes())))
    assert told(again) == golden()
    audit.check_sums(again)


def test_entries_are_written_as_they_were(tmp_path: Path) -> None:
    _, found = records(tmp_path)
    for record in found:
        read = e.decode(record.body, index=record.index)
        assert encode_envelope(read) == record.body, type(read.entry)


def test_written_anew_they_are_as_they_were(tmp_path: Path) -> None:
    asyncio.run(write(tmp_path))
    for name in (STATE, STORED):
        assert (tmp_path / name).read_bytes() == (GOLDEN / name).read_bytes(), (
            f"{name}: the format has changed. Was that meant? Then run `make golden`"
        )


if __name__ == "__main__":
    asyncio.run(write(GOLDEN))
