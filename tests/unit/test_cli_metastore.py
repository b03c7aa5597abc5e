"""`maar metastore`: whom it asks, what it says, and how it ends."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec
import pytest

from maar.adapters.sqlite.log import SqliteLog
from maar.adapters.stores.open import open_store
from maar.app import operations
from maar.app.settings.config import Settings, load
from maar.app.settings.layers import Key
from maar.cli.main import run
from maar.metastore.recovery.verify import Findings
from maar.model import keys
from maar.model.errors import NotLeading, Unavailable
from maar.model.ids import BlockId, Incarnation, Shard
from maar.ports.calls import LocalPort
from maar.ports.metastore.log import Candidate
from maar.ports.metastore.replica import ReplicaStatus
from support.clock.virtual_time import run_virtually
from support.metastore.logged import Logged

LEADER = ReplicaStatus(
    "one", "a:1", "leader", term=2, index=7, head=7, knows=4, log="etcd://e/maar"
)
FOLLOWER = ReplicaStatus("two", "b:1", "follower", term=2, index=7, head=7, knows=4)
STOPPED = ReplicaStatus("three", "c:1", "stopped", index=5, fault="the log has a gap", knows=4)

Say = Callable[..., tuple[int, str, str]]


class Fake(LocalPort):
    """A replica, as its address answers."""

    def __init__(self, status: ReplicaStatus | None) -> None:
        self.status = status
        self.rebuilt = 0

    async def replica(self) -> ReplicaStatus:
        if self.status is None:
            raise Unavailable("nobody is there")
        return self.status

    async def snapshot(self) -> int:
        status = await self.replica()
        if status.standing != "leader":
            raise NotLeading("it does not lead", leader=status.leader)
        return 42

    async def rebuild(self) -> ReplicaStatus:
        self.rebuilt += 1
        return msgspec.structs.replace(await self.replica(), standing="follower", fault="")


@pytest.fixture
def fakes(monkeypatch: pytest.MonkeyPatch) -> dict[str, Fake]:
    found: dict[str, Fake] = {}

    @asynccontextmanager
    async def replica(address: str) -> AsyncIterator[Fake]:
        yield found[address]

    monkeypatch.setattr(operations, "open_replica", replica)
    return found


@pytest.fixture
def say(capsys: pytest.CaptureFixture[str]) -> Say:
    def carry_out(*arguments: str) -> tuple[int, str, str]:
        code = run(["metastore", *arguments])
        return code, *capsys.readouterr()

    return carry_out


def settings(**given: str) -> Settings:
    flags = {name: (Key(*name.split("__")), value) for name, value in given.items()}
    return load(file=None, environ={}, flags=flags, roles_here=False)


def test_replicas_are_where_the_settings_say_or_the_data_directory_or_by_default(
    tmp_path: Path,
) -> None:
    assert operations.addresses(settings(roles__metastore="a:1,b:2")) == ("a:1", "b:2")
    here = settings(server__data_dir=str(tmp_path))
    assert operations.addresses(here) == ("127.0.0.1:4041",)
    run_dir = tmp_path / "elsewhere"
    run_dir.mkdir()
    (tmp_path / "run").symlink_to(run_dir)
    assert operations.addresses(here) == ("127.0.0.1:4041",)  # that server has ended
    (run_dir / "metastore.sock").touch()
    assert operations.addresses(here) == (f"unix:{run_dir}/metastore.sock",)


def test_status_shows_everyone_and_ends_well_when_all_is_well(
    fakes: dict[str, Fake], say: Say
) -> None:
    fakes |= {"a:1": Fake(LEADER), "b:1": Fake(FOLLOWER)}
    code, out, _ = say("status", "--metastore", "a:1,b:1")
    assert code == 0
    assert "leader" in out
    assert "follower" in out
    assert "etcd://e/maar" in out


@pytest.mark.parametrize(
    ("others", "sentence"),
    [
        ({"b:1": STOPPED}, "replica three has stopped: the log has a gap"),
        ({"b:1": None}, "b:1 does not answer"),
        ({"a:1": FOLLOWER}, "no replica leads"),
    ],
)
def test_status_says_what_wants_a_person(
    fakes: dict[str, Fake], say: Say, others: dict[str, ReplicaStatus | None], sentence: str
) -> None:
    known: dict[str, ReplicaStatus | None] = {"a:1": LEADER, "b:1": FOLLOWER, **others}
    fakes |= {address: Fake(status) for address, status in known.items()}
    code, out, _ = say("status", "--metastore", "a:1,b:1")
    assert code == 1
    assert sentence in out
    code, out, _ = say("status", "--metastore", "a:1,b:1", "--json")
    assert code == 1
    found = json.loads(out)
    assert any(sentence in trouble for trouble in found["troubles"])
    assert len(found["replicas"]) == 2


def test_status_ends_with_3_when_nobody_answers(fakes: dict[str, Fake], say: Say) -> None:
    fakes["a:1"] = Fake(None)
    code, _, err = say("status", "--metastore", "a:1")
    assert code == 3
    assert "no replica answers" in err


def test_a_snapshot_is_asked_of_the_leader_whoever_is_named(
    fakes: dict[str, Fake], say: Say
) -> None:
    follower = msgspec.structs.replace(FOLLOWER, leader="a:1")
    fakes |= {"x:1": Fake(None), "b:1": Fake(follower), "a:1": Fake(LEADER)}
    code, out, _ = say("snapshot", "--metastore", "x:1,b:1")
    assert (code, "at entry 42" in out) == (0, True)
    fakes["a:1"].status = None
    assert say("snapshot", "--metastore", "x:1,b:1")[0] == 3


def test_without_names_the_stopped_replicas_are_rebuilt_and_no_others(
    fakes: dict[str, Fake], say: Say
) -> None:
    fakes |= {"a:1": Fake(LEADER), "b:1": Fake(FOLLOWER), "c:1": Fake(STOPPED)}
    where = ("--metastore", "a:1,b:1,c:1")
    code, out, _ = say("rebuild", *where)
    assert (code, "three at c:1: follower" in out) == (0, True)
    assert [fake.rebuilt for fake in fakes.values()] == [0, 0, 1]
    assert say("rebuild", "two", "a:1", *where)[0] == 0
    assert [fake.rebuilt for fake in fakes.values()] == [1, 1, 1]
    code, _, err = say("rebuild", "nine", *where)
    assert (code, "there is no replica 'nine'" in err) == (1, True)
    fakes["c:1"].status = FOLLOWER
    code, out, _ = say("rebuild", *where)
    assert (code, "no replica has stopped" in out) == (0, True)


def test_who_does_not_answer_may_have_stopped(fakes: dict[str, Fake], say: Say) -> None:
    fakes |= {"a:1": Fake(LEADER), "c:1": Fake(STOPPED), "x:1": Fake(None)}
    for named in ((), ("nine",)):
        code, out, err = say("rebuild", *named, "--metastore", "a:1,x:1")
        assert (code, out, "no answer from x:1" in err) == (3, "", True)
    assert say("rebuild", "--metastore", "c:1,x:1")[0] == 0, "what can be done is done"


def test_a_replica_that_stops_again_is_told(
    fakes: dict[str, Fake], say: Say, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def again(self: Fake) -> ReplicaStatus:
        return STOPPED

    fakes["c:1"] = Fake(STOPPED)
    monkeypatch.setattr(Fake, "rebuild", again)
    code, _, err = say("rebuild", "--metastore", "c:1")
    assert (code, "has stopped again" in err) == (1, True)


def test_verify_ends_with_1_when_something_is_wrong(
    say: Say, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = Findings(incarnation=Incarnation("0badcafe"), first=3, head=9, digest=b"\1" * 32)
    found.snapshots = {"metastore/v1/0badcafe/snapshot-9.maar": ""}

    async def verified(_: Settings, *, objects: bool) -> Findings:
        found.objects = 5 if objects else -1
        return found

    monkeypatch.setattr(operations, "verify_log", verified)
    code, out, _ = say("verify")
    assert code == 0
    assert "entries 3 to 9" in out
    assert "1 good, 0 damaged" in out
    assert "not looked for" in out
    assert json.loads(say("verify", "--objects", "--json")[1])["objects"] == 5
    found.wrong.append("entry 7 is not what was written")
    code, out, err = say("verify")
    assert code == 1
    assert "wrong: entry 7" in out
    assert "1 thing is wrong" in err
    found.wrong.append("entry 8 is not either")
    assert "2 things are wrong" in say("verify")[2]
    found.wrong.clear()
    found.elsewhere.append("the snapshot of another is damaged")
    code, out, _ = say("verify")
    assert code == 0
    assert "of another log: the snapshot of another is damaged" in out
    assert json.loads(say("verify", "--json")[1])["elsewhere"] == found.elsewhere


# ── with a log of its own ──────────────────────────────────────────────────────────────────────


@pytest.fixture
def where(tmp_path: Path) -> tuple[str, ...]:
    """A data directory whose log a server has begun, with a snapshot and something behind it."""

    async def begin() -> None:
        ours = Logged()
        await ours.begin()
        await ours.add(3)
        await ours.snapshot()
        await ours.add(2)
        log = SqliteLog.open(tmp_path / "data" / "log")
        term = await log.campaign(Candidate("one"))
        assert term == ours.term
        await log.append(
            [record.body for record in ours.shared.records], term=term, head=await log.head()
        )
        await log.close()
        store = open_store(settings(server__data_dir=str(tmp_path / "data")).store_settings())
        for info in ours.store.list(""):
            store.create(info.key, ours.store.read(info.key))

    run_virtually(begin())
    return ("--data", str(tmp_path / "data"))


def test_a_log_is_verified_saved_and_restored_by_commands(
    say: Say, where: tuple[str, ...], tmp_path: Path
) -> None:
    file = str(tmp_path / "meta.backup")
    found = json.loads(say("verify", "--objects", "--json", *where)[1])
    assert (found["wrong"], found["blocks"], found["objects"]) == ([], 5, 5)
    code, out, _ = say("backup", file, *where)
    assert (code, "2 entries after it, 5 live blocks" in out) == (0, True)
    code, _, err = say("backup", file, *where)
    assert (code, "never replaces" in err) == (1, True)
    code, _, err = say("restore", "--yes", file, *where)
    assert (code, "not empty" in err) == (1, True)
    to = f"sqlite://{tmp_path}/new"
    code, out, _ = say("restore", "--yes", "--json", file, *where, "--log", to)
    assert code == 0
    done = json.loads(out)
    assert (done["adopts"], done["others"]) == (["0badcafe"], [])
    found = json.loads(say("verify", "--json", *where, "--log", to)[1])
    assert (found["adopting"], found["blocks"]) == (True, 5)
    code, _, err = say("restore", "--snapshot", "x", "--yes", file, *where)
    assert (code, "not both" in err) == (2, True)


def test_a_log_whose_replicas_still_answer_is_not_restored(
    fakes: dict[str, Fake], say: Say, where: tuple[str, ...], tmp_path: Path
) -> None:
    """Two logs over one store would delete each other's objects."""
    ours = (*where, "--log", f"sqlite://{tmp_path}/new", "--metastore", "a:1,b:1")
    serving = msgspec.structs.replace(FOLLOWER, incarnation="0badcafe", standing="stopped")
    fakes |= {"a:1": Fake(None), "b:1": Fake(serving)}
    code, _, err = say("restore", "--yes", *ours)
    assert (code, "the replica two at b:1 still serves the log" in err) == (1, True)
    assert not (tmp_path / "new").exists()
    fakes["b:1"].status = msgspec.structs.replace(serving, incarnation="feedbeef")  # another log's
    assert say("restore", "--yes", *ours)[0] == 0


def test_only_a_life_that_marked_the_store_can_be_adopted_from(
    say: Say, where: tuple[str, ...], tmp_path: Path
) -> None:
    store = open_store(settings(server__data_dir=where[1]).store_settings())
    store.create(keys.marker(Incarnation("feedbeef")), b"")
    to = ("--log", f"sqlite://{tmp_path}/new")
    code, _, err = say("restore", "--yes", "--adopt", "feedbeer", *where, *to)
    assert (code, "--adopt feedbeer: no other log" in err) == (2, True)
    assert not (tmp_path / "new").exists()
    code, out, err = say("restore", "--yes", "--json", "--adopt", "feedbeef", *where, *to)
    assert code == 0
    assert json.loads(out)["adopts"] == ["0badcafe", "feedbeef"]
    assert "3 live blocks" in err  # what is restored is said with --yes, too


def test_restore_shows_what_it_would_do_and_asks(
    say: Say, where: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = open_store(settings(server__data_dir=where[1]).store_settings())
    store.create(keys.marker(Incarnation("feedbeef")), b"")
    to = f"sqlite://{tmp_path}/new"
    monkeypatch.setattr("click.confirm", lambda _text, **_: False)
    code, _, err = say("restore", *where, "--log", to)
    assert (code, "nothing was restored" in err) == (1, True)
    monkeypatch.setattr("click.confirm", lambda _text, **_: True)
    code, out, err = say("restore", *where, "--log", to)
    assert code == 0
    assert "incarnation 0badcafe, 3 live blocks" in err
    assert "a log of incarnation feedbeef, from which nothing is adopted" in err
    assert "restored from metastore/v1/0badcafe/snapshot-" in out


def test_a_log_without_a_snapshot_is_restored_from_objects_and_that_is_said(
    say: Say, where: tuple[str, ...], tmp_path: Path
) -> None:
    store = open_store(settings(server__data_dir=where[1]).store_settings())
    to = ("--log", f"sqlite://{tmp_path}/new")
    code, _, err = say("restore", "--without-snapshot", "--snapshot", "x", "--yes", *where, *to)
    assert (code, "not both" in err) == (2, True)
    for info in list(store.list(keys.SNAPSHOTS)):
        store.delete(info.key)
    code, _, err = say("restore", "--snapshot", "x", "--yes", *where, *to)
    assert (code, "has no snapshot x" in err) == (1, True)
    code, out, err = say("restore", "--yes", "--json", *where, *to)
    assert code == 0, err
    assert "without a snapshot, from 5 objects in file://" in err
    assert "of incarnation 0badcafe" in err
    done = json.loads(out)
    assert (done["adopts"], done["others"]) == (["0badcafe"], [])
    found = json.loads(say("verify", "--json", *where, *to)[1])
    assert (found["adopting"], found["blocks"], found["wrong"]) == (True, 0, [])
    code, _, err = say("restore", "--yes", *where, *to)
    assert (code, "it was restored already" in err) == (1, True)


def test_several_logs_without_a_snapshot_are_told_apart_by_a_person(
    say: Say, where: tuple[str, ...], tmp_path: Path
) -> None:
    store = open_store(settings(server__data_dir=where[1]).store_settings())
    other = Incarnation("feedbeef")
    key = keys.segment(shard=Shard(1), block=BlockId("0" * 32), incarnation=other)
    store.create(key, b"")
    to = ("--log", f"sqlite://{tmp_path}/new")
    code, _, err = say("restore", "--yes", "--without-snapshot", *where, *to)
    assert (code, "--adopt 0badcafe --adopt feedbeef" in err) == (1, True)
    ours = ("--adopt", "0badcafe")
    code, out, err = say("restore", "--yes", "--json", "--without-snapshot", *ours, *where, *to)
    assert code == 0, err
    assert json.loads(out)["adopts"] == ["0badcafe"]


def test_a_log_is_moved_by_a_command_and_the_old_one_is_sealed(
    say: Say, where: tuple[str, ...], tmp_path: Path
) -> None:
    to = f"sqlite://{tmp_path}/new"
    code, _, err = say("migrate", "--to", f"sqlite://{tmp_path}/data/log", *where)
    assert (code, "is at" in err) == (1, True)
    code, out, _ = say("migrate", "--to", to, *where)
    assert (code, "the old log is sealed" in out) == (0, True)
    found = json.loads(say("verify", "--json", *where, "--log", to)[1])
    assert (found["wrong"], found["blocks"]) == ([], 5)
    code, out, _ = say("migrate", "--to", to, *where)
    assert (code, "was moved" in out) == (0, True)
    code, out, _ = say("migrate", "--json", "--to", to, *where)
    assert (code, json.loads(out)["already"]) == (0, True)
    code, _, err = say("migrate", "--to", f"sqlite://{tmp_path}/third", *where)
    assert (code, f"moved to {to}" in err) == (1, True)


def test_a_data_directory_without_a_log_is_refused_with_a_sentence(
    say: Say, tmp_path: Path
) -> None:
    for order in (("verify",), ("backup", str(tmp_path / "b"))):
        code, _, err = say(*order, "--data", str(tmp_path))
        assert (code, "there is no log" in err) == (1, True), order
