"""One suite for every store: what is created is there, whole, durable, and never changes."""

from __future__ import annotations

import errno
import io
import os
import shutil
import socket
import stat
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import obstore
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from maar.adapters.stores import local
from maar.adapters.stores.open import open_store
from maar.adapters.stores.s3 import S3Store
from maar.model.errors import (
    AlreadyExists,
    InvalidInput,
    NotFound,
    OutcomeUnknown,
    StoreFull,
    Unavailable,
)
from maar.model.time import SECOND_NS
from maar.ports.stores.object_store import ObjectInfo, ObjectStore, StoreSettings
from maar.ports.stores.probe import probe
from support.stores.memory_store import MemoryStore
from support.stores.s3_server import S3Server

pytestmark = pytest.mark.component


def directory(path: Path) -> StoreSettings:
    return StoreSettings("main", path.as_uri())


@pytest.fixture(params=["local", "s3", "memory"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> ObjectStore:
    match request.param:
        case "local":
            return open_store(directory(tmp_path / "store"))
        case "s3":
            server: S3Server = request.getfixturevalue("s3_server")
            return open_store(server.bucket())
        case _:
            return MemoryStore()


def test_what_is_created_is_read_back(store: ObjectStore) -> None:
    body = os.urandom(100_000)
    store.create("lake/v1/samples/tenant=a%2Fb/date=2026-01-01/x.parquet", body)
    store.create("empty", b"")
    assert store.read("lake/v1/samples/tenant=a%2Fb/date=2026-01-01/x.parquet") == body
    assert store.size("lake/v1/samples/tenant=a%2Fb/date=2026-01-01/x.parquet") == len(body)
    assert store.read("empty") == b""
    assert store.size("empty") == 0


def test_a_file_is_stored_as_it_is(store: ObjectStore, tmp_path: Path) -> None:
    source = tmp_path / "source"
    source.write_bytes(os.urandom(300_000))
    store.create_from_file("blocks/file", source)
    assert store.read("blocks/file") == source.read_bytes()
    with pytest.raises(AlreadyExists):
        store.create_from_file("blocks/file", source)


def test_a_second_create_is_refused_and_changes_nothing(store: ObjectStore) -> None:
    store.create("key", b"first")
    with pytest.raises(AlreadyExists):
        store.create("key", b"second")
    with pytest.raises(AlreadyExists):
        store.create("key", b"first")
    assert store.read("key") == b"first"


def test_of_64_racing_creators_one_wins(store: ObjectStore) -> None:
    barrier = threading.Barrier(64)

    def create(number: int) -> int | None:
        barrier.wait()
        try:
            store.create("race/key", f"body {number}".encode())
        except AlreadyExists:
            return None
        return number

    with ThreadPoolExecutor(64) as pool:
        winners = [number for number in pool.map(create, range(64)) if number is not None]
    assert len(winners) == 1
    assert store.read("race/key") == f"body {winners[0]}".encode()


def test_ranges_are_cut_at_the_end_of_the_object(store: ObjectStore) -> None:
    store.create("key", b"0123456789")
    assert store.read_range("key", start=2, length=3) == b"234"
    assert store.read_range("key", start=8, length=10) == b"89"
    assert store.read_range("key", start=10, length=1) == b""
    assert store.read_range("key", start=0, length=0) == b""


def test_what_is_absent_is_not_found(store: ObjectStore) -> None:
    store.create("folder/key", b"x")
    for key in ("nothing", "folder", "folder/key2"):
        with pytest.raises(NotFound):
            store.read(key)
        with pytest.raises(NotFound):
            store.size(key)
        with pytest.raises(NotFound):
            store.read_range(key, start=0, length=1)
        with pytest.raises(NotFound):
            store.open(key)


def test_a_deleted_object_is_gone_and_deleting_again_is_nothing(store: ObjectStore) -> None:
    store.create("a/b", b"x")
    store.delete("a/b")
    store.delete("a/b")
    store.delete("never/was")
    with pytest.raises(NotFound):
        store.read("a/b")
    assert list(store.list("")) == []
    store.create("a/b", b"again")


def test_objects_are_listed_in_key_order_by_any_prefix(store: ObjectStore) -> None:
    keys = ["a-b", "a/b/c", "a/b-c", "a/bc", "ab", "b/1", "b/10", "b/2", "z"]
    for key in keys:
        store.create(key, key.encode())
    assert [info.key for info in store.list("")] == sorted(keys)
    assert [info.key for info in store.list("a")] == ["a-b", "a/b-c", "a/b/c", "a/bc", "ab"]
    assert list(store.list("a/b/")) == [ObjectInfo("a/b/c", 5)]
    assert [info.key for info in store.list("b/1")] == ["b/1", "b/10"]
    assert list(store.list("nothing/here")) == []


def test_an_object_opens_as_a_seekable_file_for_parquet(store: ObjectStore) -> None:
    table = pa.table({"n": list(range(50_000)), "s": [f"text {n}" for n in range(50_000)]})
    sink = io.BytesIO()
    pq.write_table(table, sink, row_group_size=10_000)
    store.create("t.parquet", sink.getvalue())
    with store.open("t.parquet") as file:
        assert file.seek(-4, io.SEEK_END) == sink.tell() - 4
        assert file.read() == b"PAR1"
        file.seek(0)
        assert file.read(4) == b"PAR1"
        parquet = pq.ParquetFile(file)
        assert parquet.read_row_group(3).equals(table.slice(30_000, 10_000))
        assert parquet.read().equals(table)


@pytest.mark.parametrize(
    "key",
    ["", "/etc/passwd", "../up", "a/../b", "a//b", "a/", "./a", "a\0b", "a\\b", ".maar-tmp/x"],
)
@pytest.mark.parametrize("store", ["local", "s3"], indirect=True)
def test_a_key_that_could_leave_the_store_is_refused(store: ObjectStore, key: str) -> None:
    with pytest.raises(InvalidInput):
        store.create(key, b"x")
    with pytest.raises(InvalidInput):
        store.read(key)
    with pytest.raises(InvalidInput):
        store.delete(key)


def test_a_store_that_honours_conditional_writes_passes_the_probe(store: ObjectStore) -> None:
    probe(store)
    assert list(store.list("")) == []


class OverwritingStore:
    """A store as some S3 look-alikes are: it takes every put."""

    def __init__(self, inner: ObjectStore) -> None:
        self._inner = inner

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def create(self, key: str, body: bytes) -> None:
        self._inner.delete(key)
        self._inner.create(key, body)


def test_a_store_that_ignores_conditional_writes_is_refused(store: ObjectStore) -> None:
    with pytest.raises(InvalidInput, match="ignores conditional writes"):
        probe(OverwritingStore(store))
    assert list(store.list("")) == []


def test_a_store_of_this_host_is_no_witness_of_its_clock(store: ObjectStore) -> None:
    assert store.clock_ns() is None


def test_an_s3_server_tells_its_time_and_keeps_nothing_of_the_question(
    s3_server: S3Server,
) -> None:
    asked = S3Store(s3_server.bucket())
    before_ns = time.time_ns()
    shown_ns = asked.server_time_ns()
    assert before_ns - SECOND_NS <= shown_ns <= time.time_ns()
    assert list(asked.list("")) == []


def test_settings_open_the_same_store_elsewhere(tmp_path: Path, s3_server: S3Server) -> None:
    for settings in (directory(tmp_path / "with space"), s3_server.bucket()):
        first = open_store(settings)
        first.create("key", b"x")
        assert open_store(first.settings()).read("key") == b"x"


@pytest.mark.parametrize(
    ("url", "options"),
    [
        ("ftp://host/dir", ()),
        ("file://otherhost/dir", ()),
        ("relative/dir", ()),
        ("file:///tmp/x", (("endpoint", "http://127.0.0.1:1"),)),
        ("s3:///no-bucket", ()),
        ("s3://bucket", (("colour", "red"),)),
        ("s3://bucket", (("endpoint", "http://10.0.0.1:9000"),)),
    ],
)
def test_settings_that_make_no_sense_are_refused(
    url: str, options: tuple[tuple[str, str], ...]
) -> None:
    with pytest.raises(InvalidInput):
        open_store(StoreSettings("main", url, options))


# The local directory


def test_a_full_disk_is_reported_and_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = open_store(directory(tmp_path))

    def no_room(handle: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", no_room)
        with pytest.raises(StoreFull):
            store.create("a/key", b"x" * 1000)
    assert list(store.list("")) == []
    assert list((tmp_path / local.TEMPORARY).iterdir()) == []
    store.create("a/key", b"room again")


def test_a_name_that_may_not_be_durable_is_neither_success_nor_failure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = open_store(directory(tmp_path))
    store.create("a/first", b"x")
    link = os.link

    def link_then_break(source: Path, target: Path) -> None:
        link(source, target)
        monkeypatch.setattr(os, "fsync", fail)

    def fail(handle: int) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    fsync = os.fsync
    monkeypatch.setattr(os, "link", link_then_break)
    with pytest.raises(OutcomeUnknown):
        store.create("a/second", b"x")

    def fail_for_directories(handle: int) -> None:
        if stat.S_ISDIR(os.fstat(handle).st_mode):
            fail(handle)
        fsync(handle)

    monkeypatch.setattr(os, "link", link)
    monkeypatch.setattr(os, "fsync", fail_for_directories)
    with pytest.raises(OutcomeUnknown):  # nor may it be taken for one that is stored
        store.create("a/second", b"x")
    monkeypatch.setattr(os, "fsync", fsync)
    with pytest.raises(AlreadyExists):
        store.create("a/second", b"x")


def test_every_new_directory_is_synced_before_the_name_is_given(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = open_store(directory(tmp_path))
    synced: list[str] = []
    fsync = os.fsync

    def remember(handle: int) -> None:
        synced.append(os.readlink(f"/proc/self/fd/{handle}"))
        fsync(handle)

    monkeypatch.setattr(os, "fsync", remember)
    store.create("a/b/key", b"x")
    assert synced[1:] == [str(tmp_path), str(tmp_path / "a"), str(tmp_path / "a/b")]
    synced.clear()
    store.create("a/b/key2", b"x")
    assert synced[1:] == [str(tmp_path / "a/b")]


@pytest.mark.parametrize("size", [0, 1, local.PIECE, 2 * local.PIECE + 1])
def test_a_large_object_reaches_the_disk_in_pieces(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, size: int
) -> None:
    """Whoever syncs a small file meanwhile, the metastore's log, waits for a piece at most."""
    store = open_store(directory(tmp_path / "store"))
    source, body = tmp_path / "source", os.urandom(size)
    source.write_bytes(body)
    grown: list[int] = []
    fsync = os.fsync

    def remember(handle: int) -> None:
        if not stat.S_ISDIR(os.fstat(handle).st_mode):
            grown.append(os.fstat(handle).st_size)
        fsync(handle)

    monkeypatch.setattr(os, "fsync", remember)
    store.create("a/body", body)
    store.create_from_file("a/file", source)
    assert store.read("a/body") == store.read("a/file") == body
    ends = [*range(local.PIECE, size, local.PIECE), size]
    assert grown == ends * 2


def test_directories_go_with_their_last_object_and_come_back(tmp_path: Path) -> None:
    ours, theirs = (open_store(directory(tmp_path / "store")) for _ in range(2))
    ours.create("attempts/v1/7.0/0-1", b"x")
    ours.create("attempts/v2", b"x")
    theirs.delete("attempts/v1/7.0/0-1")
    assert [path.name for path in (tmp_path / "store" / "attempts").iterdir()] == ["v2"]
    ours.create("attempts/v1/7.0/0-2", b"y")
    assert theirs.read("attempts/v1/7.0/0-2") == b"y"


def test_creating_and_emptying_one_directory_at_once_loses_nothing(tmp_path: Path) -> None:
    stores = [open_store(directory(tmp_path / "store")) for _ in range(4)]

    def churn(number: int) -> None:
        for turn in range(200):
            key = f"a/b/{number}-{turn}"
            stores[number].create(key, b"x")
            assert stores[number].read(key) == b"x"
            stores[number].delete(key)

    with ThreadPoolExecutor(len(stores)) as threads:
        for done in [threads.submit(churn, number) for number in range(len(stores))]:
            done.result()
    assert list(stores[0].list("")) == []


def test_only_old_leftovers_of_dead_writers_are_removed(tmp_path: Path) -> None:
    open_store(directory(tmp_path))
    temporary = tmp_path / local.TEMPORARY
    (temporary / "old").write_bytes(b"x")
    (temporary / "young").write_bytes(b"x")
    long_ago = time.time() - local.LEFTOVER_AGE_S - 10
    os.utime(temporary / "old", (long_ago, long_ago))
    store = open_store(directory(tmp_path))
    assert [path.name for path in temporary.iterdir()] == ["young"]
    assert list(store.list("")) == []


def test_a_leftover_that_cannot_be_removed_keeps_nobody_from_reading(tmp_path: Path) -> None:
    """As on a disk that became read-only."""
    open_store(directory(tmp_path)).create("key", b"body")
    leftover = tmp_path / local.TEMPORARY / "old"
    leftover.mkdir()  # which is no file that could be unlinked
    long_ago = time.time() - local.LEFTOVER_AGE_S - 10
    os.utime(leftover, (long_ago, long_ago))
    assert open_store(directory(tmp_path)).read("key") == b"body"


def test_a_disk_that_becomes_read_only_while_it_is_written_is_unavailable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = open_store(directory(tmp_path))

    def refuse(*_what: Any, **_how: Any) -> None:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    monkeypatch.setattr(os, "fsync", refuse)
    monkeypatch.setattr(Path, "unlink", refuse)
    with pytest.raises(Unavailable, match="Read-only file system"):
        store.create("key", b"x")


# S3


def test_a_dead_endpoint_is_unavailable_for_creates_too() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # bound and not listening: nobody answers there
        endpoint = f"http://127.0.0.1:{taken.getsockname()[1]}"
        store = S3Store(_settings(endpoint), create_pauses_s=(0.01,))
        with pytest.raises(Unavailable):
            store.create("key", b"x")


def test_a_create_without_an_answer_has_an_unknown_outcome() -> None:
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        endpoint = f"http://127.0.0.1:{silent.getsockname()[1]}"
        store = S3Store(_settings(endpoint, ("timeout_s", "0.3")), create_pauses_s=())
        with pytest.raises(OutcomeUnknown):
            store.create("key", b"x")


def test_a_bucket_that_is_not_there_is_a_store_that_is_away(s3_server: S3Server) -> None:
    """Else it would read as if an object were missing, also one that is only to be written."""
    store = S3Store(s3_server.bucket()._replace(url="s3://mistyped/lake"))
    asks: tuple[Callable[[], object], ...] = (
        lambda: store.create("key", b"x"),
        lambda: store.read("key"),
        lambda: list(store.list("")),
        lambda: probe(store),
    )
    for ask in asks:
        with pytest.raises(Unavailable, match="knows no such bucket"):
            ask()


def test_after_a_lost_answer_our_own_bytes_are_a_success_and_others_are_not(
    s3_server: S3Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = S3Store(s3_server.bucket(), create_pauses_s=(0.01,))
    put = obstore.put
    lost: list[str] = []

    def put_and_lose_the_answer(client: Any, key: str, body: Any, **options: Any) -> Any:
        answer = put(client, key, b"theirs" if key == "other" else body, **options)
        if key not in lost:
            lost.append(key)
            raise obstore.exceptions.GenericError("error sending request, kind: Timeout")
        return answer

    monkeypatch.setattr(obstore, "put", put_and_lose_the_answer)
    store.create("mine", b"mine")
    assert store.read("mine") == b"mine"
    with pytest.raises(AlreadyExists):
        store.create("other", b"mine")


def test_a_refusal_after_a_lost_answer_does_not_say_that_nothing_was_written(
    s3_server: S3Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = S3Store(s3_server.bucket(), create_pauses_s=(0.01,))
    refusal = obstore.exceptions.GenericError("server returned non-2xx status code: 507")
    failures = [obstore.exceptions.GenericError("kind: Timeout"), refusal, refusal]

    def fail(*_what: Any, **_how: Any) -> Any:
        raise failures.pop(0)

    monkeypatch.setattr(obstore, "put", fail)
    with pytest.raises(OutcomeUnknown):
        store.create("key", b"x")
    with pytest.raises(StoreFull):
        store.create("key", b"x")


def _settings(endpoint: str, *more: tuple[str, str]) -> StoreSettings:
    options = (("endpoint", endpoint), ("access_key_id", "x"), ("secret_access_key", "y"), *more)
    return StoreSettings("main", "s3://bucket", options)


def test_a_directory_that_somebody_emptied_is_written_to_again_and_one_that_is_gone_is_not(
    tmp_path: Path,
) -> None:
    """Its temporary files lie in it, too: a wiped store could not be filled again."""
    root = tmp_path / "store"
    store = open_store(directory(root))
    store.create("a/one", b"1")
    for each in root.iterdir():
        shutil.rmtree(each)
    store.create("a/one", b"2")
    assert store.read("a/one") == b"2"
    shutil.rmtree(root)
    with pytest.raises(Unavailable, match="mount it"):
        store.create("a/one", b"3")
    assert not root.exists()
