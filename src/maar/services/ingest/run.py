"""A bulk write: a share of a source becomes blocks of its days, is quarantined, or is left out.

What a share writes goes by the same decoder and publisher as compaction's, under keys that say that
a bulk write wrote them; nothing shows before all shares are in one accepted result (S3).
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

import msgspec

from maar.block.decode import to_tables
from maar.model import keys
from maar.model.block import INGESTED
from maar.model.errors import Corrupt
from maar.model.ids import ProfileId
from maar.model.plan import Account, LeasedPlan, PlanResult
from maar.ports.stores.object_store import ObjectStore
from maar.ports.stores.stores import Stores
from maar.services.decoding import ProfilePool
from maar.services.ingest.known import KnownBlock, KnownProfiles
from maar.services.ingest.rules import INGEST
from maar.services.ingest.source import FileState, ReadFile, Whose
from maar.services.merging import Merger
from maar.services.publish import Publisher, always

ORDINALS = 1_000_000  # of the outputs of one share


class NamedFile(msgspec.Struct, frozen=True, array_like=True):
    """A file that did not become a profile, and why."""

    file: str
    cause: str


class Told(msgspec.Struct, frozen=True, array_like=True):
    """What became of the files of a share, for whoever asked; the log keeps only the account."""

    files: int
    kept: int
    duplicates: int
    quarantined: tuple[NamedFile, ...]  # now, or when the same file came before
    refused: tuple[NamedFile, ...]

    def __add__(self, other: Told) -> Told:
        return Told(
            self.files + other.files,
            self.kept + other.kept,
            self.duplicates + other.duplicates,
            self.quarantined + other.quarantined,
            self.refused + other.refused,
        )


NOTHING = Told(0, 0, 0, (), ())


def run(
    plan: LeasedPlan,
    *,
    store: ObjectStore | Stores,
    attempt: str,
    scratch: Path,
    wall_ns: int,
    guard: Callable[[], None] = always,
    files: Iterable[ReadFile],
    share: int,
    whose: Whose,
    known: Sequence[KnownBlock] = (),
) -> tuple[PlanResult, Told]:
    """Write one share of a leased plan; as compaction, it leaves no scratch."""
    began_ns, cpu_ns = time.perf_counter_ns(), time.process_time_ns()
    work = scratch / f"{plan.id}-{plan.token}-{attempt}"
    work.mkdir(parents=True)
    try:
        publisher = Publisher(
            plan,
            level=INGESTED,
            store=store,
            attempt=keys.ingest_attempt(attempt),
            wall_ns=wall_ns,
            guard=guard,
            first_ordinal=share * ORDINALS,
        )
        merger = Merger(plan=plan, work=work, publisher=publisher)
        writing = _Share(
            ProfilePool(merger, whose.tenant, seed=attempt), KnownProfiles(known, store, work)
        )
        account, told = writing.write(files)
    finally:
        shutil.rmtree(work, ignore_errors=True)
    result = PlanResult(
        kind=INGEST,
        outputs=tuple(publisher.outputs),
        account=account,
        collisions=merger.collisions,
        cpu_ms=(time.process_time_ns() - cpu_ns) // 1_000_000,
        wall_ms=(time.perf_counter_ns() - began_ns) // 1_000_000,
    )
    return result, told


def load() -> None:
    """Compile what the first share would have to wait for."""
    to_tables.warm()


class _Share:
    """The files of one share on their way into a pool."""

    def __init__(self, pool: ProfilePool, known: KnownProfiles) -> None:
        self._pool = pool
        self._known = known
        self._names: dict[ProfileId, str] = {}
        self._seen = 0
        self._duplicates = 0
        self._bad_before: list[NamedFile] = []
        self._refused: list[NamedFile] = []

    def write(self, files: Iterable[ReadFile]) -> tuple[Account, Told]:
        for file in files:
            self._seen += 1
            self._take(file)
        kept = self._pool.publish()
        came = self._seen - len(self._refused)
        account = Account(kept, self._duplicates + len(self._bad_before), self._pool.quarantined)
        if account.total() != came:
            raise Corrupt(
                f"A share of {came} files has {kept} profiles kept, {account.duplicates} that were "
                f"there before and {account.quarantined} in quarantine. Nothing of it is used; "
                "this is a bug in maar, please report it."
            )
        held = [NamedFile(self._names[each], cause) for each, cause in self._pool.held]
        quarantined = (*held, *self._bad_before)
        told = Told(self._seen, kept, self._duplicates, quarantined, tuple(self._refused))
        return account, told

    def _take(self, file: ReadFile) -> None:
        if file.profile is None:
            self._refused.append(NamedFile(file.name, file.cause))
            return
        bad = file.state is FileState.BAD
        if file.profile in self._known:
            if bad:
                self._bad_before.append(NamedFile(file.name, file.cause))
            else:
                self._duplicates += 1
            return
        self._known.add(file.profile.id)
        self._names[file.profile.id] = file.name
        if bad:
            self._pool.hold([(file.profile, file.cause)])
        else:
            self._pool.add(file.profile)
