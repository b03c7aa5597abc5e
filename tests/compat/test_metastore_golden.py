"""Today's code reads every log and snapshot ever written, and comes to the same state.

The files under golden/ are never written again. A new version gets new files beside the old ones:
run `python tests/compat/test_metastore_golden.py DIRECTORY` and keep what it leaves there.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import shutil
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent.parent))  # when it runs as a script

from maar.adapters.sqlite_log import DATABASE, SqliteLog
from maar.metastore import entries as e
from maar.metastore import snapshot
from maar.metastore.digest import digest
from maar.metastore.replica import Replica
from maar.metastore.state import MetaState
from maar.model.block import Kind
from maar.model.ids import FencingToken, PlanId, WorkerId
from maar.model.plan import Account, PlanResult, Service
from maar.model.time import SECOND_NS, LeaseTime, WallTime
from maar.ports.log import EMPTY
from support.memory_store import MemoryStore
from support.metastore import DAY_START_NS, INCARNATION, Fold, output, segment

GOLDEN = Path(__file__).parent / "golden"
STORED_KEY = "metastore/v1/0badcafe/entry-0000000000000022-golden.msgpack"


def history() -> list[tuple[LeaseTime, e.Entry]]:
    """A log in which every kind of entry occurs and does something."""
    fold = Fold()
    s, w = SECOND_NS, WorkerId("w1")
    segments = tuple(segment(n, profiles=10 + n) for n in range(7))
    key = fold.put(e.BlocksAdded(segments)) and fold.state.queue.places[segments[0].id].key
    assert key
    ids = [meta.id for meta in segments]

    def spec(*numbers: int) -> e.PlanSpec:
        return e.PlanSpec(Service.COMPACT, False, key, tuple(ids[n] for n in numbers), 2)

    def token() -> FencingToken:
        return FencingToken(INCARNATION, fold.state.index)

    fold.put(e.PlansScheduled((spec(0, 1), spec(2, 3), spec(4), spec(5))))
    plans = [PlanId(fold.state.index, n) for n in range(4)]
    fold.put(e.PinsTaken(("query-1", "query-2"), LeaseTime(50 * s)))
    fold.put(e.PlansLeased(tuple(e.Grant(plan, w, LeaseTime(15 * s)) for plan in plans)))
    held = token()
    fold.put(e.PlansStarted((e.Start(plans[0], held),)))
    fold.put(e.LeasesRenewed((e.Extension(plans[0], held, LeaseTime(30 * s)),)))
    inputs = segments[:2]
    good = output(plans[0], held, inputs, profiles=19)
    bad = output(plans[0], held, inputs, profiles=1, ordinal=1, kind=Kind.QUARANTINE)
    made = PlanResult((good, bad), Account(19, 1, 1), collisions=2, cpu_ms=7, wall_ms=9)
    fold.put(e.PlanCompleted(plans[0], held, made))
    fold.put(e.AttemptFenced(plans[3], held, "fenced by hand"))
    fold.put(e.PlanFailed(plans[2], held, "the disk was full", LeaseTime(20 * s)))
    fold.now = 31 * s
    fold.put(e.Tick())
    fold.put(e.PlanBisected(plans[1], held, 1))
    fold.put(e.PlanExcluded(plans[2], None, LeaseTime(90 * s)))
    fold.put(e.PlansArchived((plans[1],)))
    fold.put(e.BlocksForgotten((ids[1],)))
    fold.now = 60 * s
    fold.put(e.PinsDropped(("query-2",)))
    fold.put(e.Floor(LeaseTime(0)))
    fold.put(e.VersionActivated(1))
    fold.put(e.StateHashed(fold.state.index, digest(fold.state)))
    fold.put(e.TermStarted(2, "two"))
    return [(item.envelope.lease_time, item.envelope.entry) for item in fold.log]


def stored_entry() -> bytes:
    return e.encode_entry(e.BlocksAdded((segment(90, at=59 * SECOND_NS),)))


async def write(directory: Path) -> None:
    """Only ever for a new version."""
    log = SqliteLog.open(directory / "log-v1")
    term = await log.campaign("golden")
    body = stored_entry()
    apart = e.Stored(STORED_KEY, len(body), hashlib.sha256(body).digest())
    bodies = [
        e.encode(e.VERSION, at, WallTime(DAY_START_NS), e.encode_entry(entry))
        for at, entry in [*history(), (LeaseTime(61 * SECOND_NS), apart)]
    ]
    await log.append(bodies, term=term, head=EMPTY)
    (directory / "stored-entry-v1.msgpack").write_bytes(body)
    replica = await replayed(log, body)
    (directory / "snapshot-v1.maar").write_bytes(snapshot.encode(replica.state, replica.head))
    (directory / "state-v1.json").write_text(json.dumps(told(replica.state), indent=1) + "\n")
    await log.close()
    (directory / "log-v1" / "lock").unlink()


async def replayed(log: SqliteLog, body: bytes) -> Replica:
    store = MemoryStore()
    store.create(STORED_KEY, body)
    replica = Replica(store)
    await replica.catch_up(log)
    return replica


def told(state: MetaState) -> dict[str, object]:
    """The state in words that do not depend on how it is kept."""
    return {
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


@pytest.fixture
def golden() -> dict[str, object]:
    found: dict[str, object] = json.loads((GOLDEN / "state-v1.json").read_text())
    return found


def test_a_log_of_version_1_gives_the_state_that_it_gave(
    tmp_path: Path, golden: dict[str, object]
) -> None:
    shutil.copy(GOLDEN / "log-v1" / DATABASE, tmp_path / DATABASE)

    async def test() -> None:
        log = SqliteLog.open(tmp_path)
        replica = await replayed(log, (GOLDEN / "stored-entry-v1.msgpack").read_bytes())
        records = await log.read(after=0)
        await log.close()
        assert told(replica.state) == golden
        kinds = {type(e.decode(r.body, index=r.index).entry) for r in records}
        assert kinds == set(e.Entry.__args__)

    asyncio.run(test())


def test_a_snapshot_of_version_1_is_the_state_that_it_was(golden: dict[str, object]) -> None:
    state, head = snapshot.decode((GOLDEN / "snapshot-v1.maar").read_bytes())
    assert told(state) == golden
    assert head.index == state.index


def test_every_entry_is_written_as_version_1_wrote_it(tmp_path: Path) -> None:
    """A replica of version 1 must be able to read what we write."""
    shutil.copy(GOLDEN / "log-v1" / DATABASE, tmp_path / DATABASE)

    async def bodies() -> list[bytes]:
        log = SqliteLog.open(tmp_path)
        records = await log.read(after=0)
        await log.close()
        return [record.body for record in records]

    for index, body in enumerate(asyncio.run(bodies()), start=1):
        found = e.decode(body, index=index)
        again = e.encode(
            found.version, found.lease_time, found.wall_time, e.encode_entry(found.entry)
        )
        assert again == body, type(found.entry)


if __name__ == "__main__":
    asyncio.run(write(Path(sys.argv[1])))
