"""What a repair costs beside copying and hashing the same bytes.

    python bench/repair.py [--mb 256]

One block of so many megabytes lies in a directory. It is copied to another one by the task of a
repair: read and checked, written, read back. Then both copies are only checked.

    repair_copy     MB/s of CPU time of a copy, against copying the files and hashing the copies
    repair_check    MB/s of CPU time of checking two copies, against the checksums alone

Each line: name value unit ratio baseline.
"""

from __future__ import annotations

import argparse
import shutil
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from maar.adapters.stores.open import open_store
from maar.block.format import checksum
from maar.model import keys
from maar.model.block import TABLES, BlockMeta, File, Kind, Location
from maar.model.ids import BlockId, FencingToken, Incarnation, PlanId, Shard, StoreName, TenantId
from maar.model.plan import LeasedPlan, PlanResult
from maar.model.repair import LeasedRepair, RepairPart, RepairType
from maar.ports.stores.object_store import StoreSettings
from maar.ports.stores.stores import StorePlace, StorePlaces, Stores
from maar.services.repair.ranges import vnode
from maar.services.repair.rules import REPAIR, key_of
from maar.services.repair.run import run

A, B, TENANT = StoreName("a"), StoreName("b"), TenantId("acme")
TOKEN = FencingToken(Incarnation("0badcafe"), 2)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--mb", type=int, default=256)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="maar-bench-") as made:
        measure(Path(made), given.mb)


def measure(directory: Path, megabytes: int) -> None:
    places = tuple(StorePlace(StoreSettings(name, (directory / name).as_uri())) for name in (A, B))
    for name in (A, B):
        (directory / name).mkdir()
    stores = Stores(StorePlaces(places), open_store)
    for name in (A, B):
        stores.open(name).create(keys.marker(TOKEN.incarnation), name.encode())
    meta = block(stores, directory, megabytes << 20)
    mb = meta.size / 1e6
    scratch = directory / "scratch"
    scratch.mkdir()
    files = [directory / A / file.locations[0].key for file in meta.files]

    def by_hand() -> None:
        target = directory / "by-hand"
        target.mkdir()
        for number, path in enumerate(files):
            shutil.copyfile(path, target / str(number))
            checksum.of_file(target / str(number))

    def hashes() -> None:
        for path in files * 2:
            checksum.of_file(path)

    warm = repair(meta, stores, scratch, (A,), "warm")
    assert warm.repaired is not None
    assert not warm.repaired.lost
    base_s, bare_s = cpu_s(by_hand), cpu_s(hashes)
    found: list[PlanResult] = []
    copy_s = cpu_s(lambda: found.append(repair(meta, stores, scratch, (A, B), "copy")))
    assert found[0].repaired is not None
    (made,) = found[0].repaired.copies
    placed = dict(made.files)
    copied = msgspec.structs.replace(
        meta,
        files=tuple(
            msgspec.structs.replace(
                file, locations=(*file.locations, Location(B, placed[file.table]))
            )
            for file in meta.files
        ),
    )
    check_s = cpu_s(lambda: found.append(repair(copied, stores, scratch, (A, B), "check")))
    assert found[1].repaired is not None
    assert not found[1].repaired.ended
    print(f"repair_copy {mb / copy_s:.0f} MB/s {base_s / copy_s:.2f} copy_and_checksum")
    print(f"repair_check {2 * mb / check_s:.0f} MB/s {bare_s / check_s:.2f} checksum")


def cpu_s(work: Callable[[], object]) -> float:
    began = time.process_time()
    work()
    return max(1e-6, time.process_time() - began)


def repair(
    meta: BlockMeta, stores: Stores, scratch: Path, wanted: tuple[StoreName, ...], attempt: str
) -> PlanResult:
    plan = LeasedPlan(
        PlanId(1, 0),
        REPAIR,
        TOKEN,
        key_of(TENANT, RepairType.VNODE),
        (meta,),
        1 << 30,
        10**12,
        repair=LeasedRepair(RepairType.VNODE, wanted, (RepairPart(vnode(0), 0, 1),), (wanted,)),
    )
    return run(plan, store=stores, attempt=attempt, scratch=scratch, wall_ns=1)


def block(stores: Stores, directory: Path, size: int) -> BlockMeta:
    """Five files of random numbers, which nothing compresses."""
    name, day = BlockId("0" * 31 + "1"), 20_000
    stem = keys.stem(block=name, plan=PlanId(1, 0), token=TOKEN, attempt="made")
    files = []
    for number, table in enumerate(TABLES):
        rows = size // 8 // len(TABLES)
        path = directory / f"{table}.parquet"
        numbers = np.random.default_rng(number).integers(0, 1 << 62, rows)
        pq.write_table(pa.table({"number": numbers}), path, use_dictionary=False)
        key = keys.table(name=table, tenant=TENANT, day=day, stem=stem)
        stores.open(A).create_from_file(key, path)
        files.append(
            File(
                table,
                path.stat().st_size,
                checksum.of_file(path),
                checksum.footer_size_of_file(path),
                rows,
                (Location(A, key),),
            )
        )
        path.unlink()
    return BlockMeta(
        1, name, Kind.BLOCK, 1, TENANT, Shard(1), A, day, 0, 1, 1, 1,
        sum(file.size for file in files), tuple(files), (), "bench", 0,
    )  # fmt: skip


if __name__ == "__main__":
    main()
