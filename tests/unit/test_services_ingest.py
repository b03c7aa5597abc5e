"""What becomes of the files of a bulk write, one share at a time."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from maar.adapters.stores.local import LocalStore
from maar.distributor.admit import admit_file
from maar.distributor.settings import Limits
from maar.model.block import INGESTED, BlockMeta, Kind
from maar.model.errors import NotFound
from maar.model.ids import MAIN_STORE, FencingToken, Incarnation, PlanId, TenantId, block_time_ns
from maar.model.keys import is_ingested
from maar.model.plan import LeasedPlan, PlanResult
from maar.model.time import DAY_NS, LeaseTime
from maar.ports.stores.object_store import StoreSettings
from maar.services.ingest import run
from maar.services.ingest.known import known_blocks
from maar.services.ingest.rules import INGEST, INGESTION, key_of
from maar.services.ingest.run import Told
from maar.services.ingest.source import (
    FILE_BYTES_MAX,
    FileState,
    ReadFile,
    SourceFile,
    Whose,
    listing_id,
    place,
    read_files,
)
from maar.services.rules import PlanScope
from support.load.crowd import profile

TENANT = TenantId("acme")
WHOSE = Whose(TENANT, "archive", (("region", "eu"),))
NOW_NS = 20_000 * DAY_NS + DAY_NS // 2
OPENED_AT = LeaseTime(77)


def dated(name: str, day: int) -> tuple[str, bytes]:
    """A file with a profile of some days ago."""
    return name, profile(function=name, time_ns=NOW_NS - day * DAY_NS)


def read(*files: tuple[str, bytes], kept_ns: int = 90 * DAY_NS) -> list[ReadFile]:
    bodies = dict(files)

    def body_of(name: str) -> bytes:
        if name not in bodies:
            raise NotFound("it cannot be read: it is gone")
        return bodies[name]

    admit = partial(admit_file, tenant=TENANT, now_ns=NOW_NS, limits=Limits(), kept_ns=kept_ns)
    rows = [(name, len(body), None) for name, body in files]
    return list(read_files(rows, whose=WHOSE, admit=admit, read=body_of, wall_ns=NOW_NS))


@pytest.fixture
def store(tmp_path: Path) -> LocalStore:
    directory = tmp_path / "store"
    return LocalStore(directory, StoreSettings(MAIN_STORE, directory.as_uri()))


def write(
    store: LocalStore,
    tmp_path: Path,
    files: list[ReadFile],
    *,
    number: int = 1,
    share: int = 0,
    known: tuple[BlockMeta, ...] = (),
) -> tuple[PlanResult, Told]:
    plan = LeasedPlan(
        id=PlanId(number, 0),
        kind=INGEST,
        token=FencingToken(Incarnation("aa"), number),
        key=key_of(PlanScope(TENANT)),
        inputs=(),
        target_block_bytes=1 << 20,
        lease_ns=1,
        scheduled_at=OPENED_AT,
    )
    return run.run(
        plan,
        store=store,
        attempt="0-1-abc",
        scratch=tmp_path / "scratch",
        wall_ns=NOW_NS,
        files=files,
        share=share,
        whose=WHOSE,
        known=known_blocks(known, WHOSE),
    )


def test_a_file_is_good_bad_or_refused() -> None:
    files = [
        dated("good", 3),
        ("bad", b"not a profile at all"),
        dated("old", 91),
        dated("future", -2),
        ("undated", profile(function="undated", time_ns=1)),
    ]
    found = read(*files)
    assert [each.state for each in found] == [
        FileState.GOOD, FileState.BAD, FileState.REFUSED, FileState.REFUSED, FileState.REFUSED,
    ]  # fmt: skip
    good = found[0].profile
    assert good is not None
    assert good.time_ns == NOW_NS - 3 * DAY_NS
    assert dict(good.labels)["region"] == "eu"
    assert "91 days old" in found[2].cause
    assert "no time of its own" in found[4].cause
    assert read(dated("old", 91), kept_ns=0)[0].state is FileState.GOOD


def test_a_file_that_is_too_large_or_gone_is_refused_and_named() -> None:
    def gone(_name: str) -> bytes:
        raise NotFound("it cannot be read")

    admit = partial(admit_file, tenant=TENANT, now_ns=NOW_NS, limits=Limits(), kept_ns=0)
    rows = [("large", FILE_BYTES_MAX + 1, None), ("gone", 5, None)]
    found = list(read_files(rows, whose=WHOSE, admit=admit, read=gone, wall_ns=NOW_NS))
    assert [(each.name, each.state) for each in found] == [
        ("large", FileState.REFUSED),
        ("gone", FileState.REFUSED),
    ]


def test_a_share_becomes_blocks_of_its_days_and_accounts_for_every_file(
    store: LocalStore, tmp_path: Path
) -> None:
    files = read(
        dated("a", 3), dated("b", 3), dated("c", 5), ("bad", b"nothing"), dated("old", 99),
        dated("a", 3),
    )  # fmt: skip
    result, told = write(store, tmp_path, files)
    by_kind = {kind: [m for m in result.outputs if m.kind is kind] for kind in Kind}
    assert [(m.day, m.profiles) for m in by_kind[Kind.BLOCK]] == [(19_995, 1), (19_997, 2)]
    assert [m.profiles for m in by_kind[Kind.QUARANTINE]] == [1]
    account = result.account
    assert (account.kept, account.duplicates, account.quarantined) == (3, 1, 1)
    assert (told.files, told.kept, told.duplicates) == (6, 3, 1)
    assert [each.file for each in told.quarantined] == ["bad"]
    assert [each.file for each in told.refused] == ["old"]
    for meta in result.outputs:
        assert (meta.level, meta.tenant) == (INGESTED, TENANT)
        assert block_time_ns(meta.id) == OPENED_AT
        assert all(is_ingested(at.key) for file in meta.files for at in file.locations)
    written: set[bytes] = set()
    for meta in by_kind[Kind.BLOCK]:
        path = store.local_path(meta.file("profiles").locations[0].key)
        written |= set(pq.read_table(path)["profile_id"].to_pylist())
    good = [each.profile for each in files if each.state is FileState.GOOD]
    assert written == {each.id for each in good if each is not None}
    assert not list((tmp_path / "scratch").iterdir())


def test_what_is_in_the_index_is_not_written_again(store: LocalStore, tmp_path: Path) -> None:
    files = read(dated("a", 3), dated("b", 5), ("bad", b"nothing"))
    first, before = write(store, tmp_path, files)
    objects = {info.key for info in store.list("lake/")}
    again, told = write(store, tmp_path, files, number=2, known=first.outputs)
    assert again.outputs == ()
    assert (told.kept, told.duplicates, told.quarantined) == (0, 2, before.quarantined)
    assert {info.key for info in store.list("lake/")} == objects
    more = read(dated("a", 3), dated("new", 4))
    third, told = write(store, tmp_path, more, number=3, known=first.outputs)
    assert (told.kept, told.duplicates) == (1, 1)
    assert [meta.profiles for meta in third.outputs] == [1]


def test_a_known_block_that_is_gone_stops_nothing(store: LocalStore, tmp_path: Path) -> None:
    files = read(dated("a", 3))
    first, _ = write(store, tmp_path, files)
    for file in first.outputs[0].files:
        store.delete(file.locations[0].key)
    _, told = write(store, tmp_path, files, number=2, known=first.outputs)
    assert told.kept == 1


def test_shares_of_one_plan_are_one_result_with_blocks_of_their_own(
    store: LocalStore, tmp_path: Path
) -> None:
    one, _ = write(store, tmp_path, read(dated("a", 3), dated("b", 4)), share=0)
    two, _ = write(store, tmp_path, read(dated("c", 3)), share=1)
    leased = LeasedPlan(
        PlanId(1, 0),
        INGEST,
        FencingToken(Incarnation("aa"), 1),
        key_of(PlanScope(TENANT)),
        (),
        1,
        1,
    )
    whole = INGESTION.join(leased, [one, two])
    assert len({meta.id for meta in whole.outputs}) == 3
    assert whole.account.kept == 3


def test_files_of_a_day_meet_and_so_do_copies_wherever_they_are() -> None:
    found = read(dated("a", 3), dated("b", 3), dated("a", 3), dated("c", 4))
    a, b, copy, other = (place(each, spread=1) for each in found)
    assert a == b == copy != other
    for spread in (2, 7):
        a, _, copy, _ = (place(each, spread=spread) for each in found)
        assert a == copy


def test_the_same_files_for_the_same_owner_are_the_same_wish() -> None:
    files = [SourceFile("a", 1), SourceFile("b", 2)]
    wish = listing_id(WHOSE, files)
    assert listing_id(WHOSE, files[::-1]) == wish
    assert listing_id(WHOSE, [files[0]]) != wish
    assert listing_id(WHOSE, [SourceFile("a", 2), files[1]]) != wish
    assert listing_id(Whose(TENANT, "other"), files) != wish
