"""A bulk write as a Spark job: files are read side by side, shuffled by day, and written.

The shuffle is Spark's own; what is written goes through the publisher of blocks alone. So there are
few blocks for each day, and copies of a profile meet in one task, wherever their files were.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from maar.model.errors import NotFound
from maar.model.plan import LeasedPlan
from maar.ports.stores.object_store import ObjectStore, StoreSettings
from maar.ports.stores.stores import Stores
from maar.runner.runner import RowSource
from maar.services.ingest import run
from maar.services.ingest.known import KnownBlock
from maar.services.ingest.run import NOTHING, Told
from maar.services.ingest.source import Admit, ReadFile, SourceFile, Whose, place, read_files
from maar.services.runs import Guard, Noted

READ_AT_ONCE = 64  # files of one reading task
SPREAD_BYTES = 128 << 20  # of files of a day, about, that one task writes
TASKS_MAX = 1_000

Row = tuple[str, int, bytes | None]  # a file's name, its size, and its bytes if they are at hand
Read = Callable[[str], bytes]
OpenSource = Callable[[StoreSettings], ObjectStore]


class Bulk(NamedTuple):
    """What is written, and for whom."""

    whose: Whose
    admit: Admit
    read: Read
    known: tuple[KnownBlock, ...]


def of_files(bulk: Bulk, files: Sequence[SourceFile], told: Callable[[Told], None]) -> RowSource:
    """From a list of names: each reading task opens some of them."""

    def rows(context: Any) -> Any:
        cores = max(1, int(context.defaultParallelism))
        slices = min(len(files), TASKS_MAX, max(2 * cores, -(-len(files) // READ_AT_ONCE)))
        named: list[Row] = [(file.name, file.size, None) for file in files]
        size = sum(file.size for file in files)
        return _by_day(bulk, context.parallelize(named, slices), size=size, cores=cores)

    return _source(bulk, rows, told)


def of_frame(bulk: Bulk, frame: Any, told: Callable[[Told], None]) -> RowSource:
    """From a DataFrame with a path and its content, like one that `binaryFile` reads."""

    def rows(context: Any) -> Any:
        cores = max(1, int(context.defaultParallelism))
        found = frame.select("path", "content").rdd.map(_row)
        return _by_day(bulk, found, size=0, cores=cores)

    return _source(bulk, rows, told)


def _row(found: Any) -> Row:
    content = bytes(found[1])
    return str(found[0]), len(content), content


def _source(bulk: Bulk, rows: Callable[[Any], Any], told: Callable[[Told], None]) -> RowSource:
    def tell(notes: Sequence[bytes]) -> None:
        shares = (msgspec.msgpack.decode(note, type=Told) for note in notes)
        told(sum(shares, NOTHING))

    task = functools.partial(write_share, whose=bulk.whose, known=bulk.known)
    return RowSource(rows, task, tell)


def _by_day(bulk: Bulk, rows: Any, *, size: int, cores: int) -> Any:
    """Files that were read, by day; those of a large source in several parts of each day."""
    spread = max(1, -(-size // SPREAD_BYTES))
    keyed = functools.partial(
        read_share, whose=bulk.whose, admit=bulk.admit, read=bulk.read, spread=spread
    )
    tasks = min(TASKS_MAX, max(2 * cores, spread))
    return rows.mapPartitions(keyed).partitionBy(tasks).values()


def read_share(
    rows: Iterable[Row], *, whose: Whose, admit: Admit, read: Read, spread: int
) -> Iterator[tuple[int, ReadFile]]:
    """In a task: files that were read, each under the number of the task that writes it."""
    for file in read_files(rows, whose=whose, admit=admit, read=read, wall_ns=time.time_ns()):
        yield place(file, spread=spread), file


def write_share(
    plan: LeasedPlan,
    *,
    store: ObjectStore | Stores,
    attempt: str,
    scratch: Path,
    wall_ns: int,
    guard: Guard,
    rows: Iterable[ReadFile],
    share: int,
    whose: Whose,
    known: Sequence[KnownBlock],
) -> Noted:
    """In a task: write a share, and tell what became of its files."""
    result, told = run.run(
        plan,
        store=store,
        attempt=attempt,
        scratch=scratch,
        wall_ns=wall_ns,
        guard=guard,
        files=rows,
        share=share,
        whose=whose,
        known=known,
    )
    return Noted(result, msgspec.msgpack.encode(told))


def read_local(name: str) -> bytes:
    """A file that every executor can open under this name."""
    try:
        return Path(name).read_bytes()
    except OSError as error:
        raise NotFound(f"it cannot be read: {error.strerror or error}") from error


def read_object(name: str, *, settings: StoreSettings, open_store: OpenSource) -> bytes:
    """An object below a store's own address."""
    return _open(settings, open_store).read(name.removeprefix(f"{settings.url}/"))


@functools.lru_cache(maxsize=4)
def _open(settings: StoreSettings, open_store: OpenSource) -> ObjectStore:
    return open_store(settings)
