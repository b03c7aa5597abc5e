"""A backup holds the whole state, and every byte that changed in it is found."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

from maar.metastore.records.entries import (
    BlocksAdded,
    StateHashed,
    Stored,
    encode,
    encode_entry,
)
from maar.metastore.recovery import backup
from maar.metastore.state.digest import digest
from maar.model import keys
from maar.model.errors import (
    AlreadyExists,
    Corrupt,
    InvalidInput,
    Rejected,
    Unavailable,
)
from maar.model.time import LeaseTime
from maar.ports.metastore.log import Record
from support.clock.virtual_time import run_virtually
from support.metastore.fold import INCARNATION, segment
from support.metastore.operations import new_log, run


@pytest.mark.parametrize("with_snapshot", [False, True])
def test_a_backup_holds_the_whole_state(tmp_path: Path, with_snapshot: bool) -> None:
    async def test() -> None:
        ours = await new_log()
        if with_snapshot:
            await ours.snapshot()
        await ours.add(4)
        await ours.hash()
        path = tmp_path / "meta.backup"
        made = await backup.write(ours.log, ours.store, path, wall_ns=7)
        found = await backup.read(path)
        assert digest(found.state) == digest(ours.state) == digest(made.state)
        assert found.head == made.head == ours.replica.head
        assert found.wall_ns == 7
        assert (found.entries, found.snapshot_index) == (made.entries, made.snapshot_index)
        assert bool(found.snapshot_index) is with_snapshot
        assert list(tmp_path.iterdir()) == [path]

    run(test())


def test_a_backup_holds_entries_that_are_too_large_for_the_log(tmp_path: Path) -> None:
    async def test() -> None:
        ours = await new_log()
        body = encode_entry(BlocksAdded(tuple(segment(n) for n in range(100, 110))))
        key = keys.stored_entry(
            incarnation=INCARNATION,
            index=ours.state.index + 1,
            sha256=hashlib.sha256(body).digest(),
        )
        ours.store.create(key, body)
        where = encode_entry(Stored(key, len(body), hashlib.sha256(body).digest()))
        await ours.append_bodies([encode(ours.state.version, LeaseTime(1), ours.wall, where)])
        assert len(ours.state.blocks) == 13
        await backup.write(ours.log, ours.store, tmp_path / "b", wall_ns=0)
        ours.store.delete(key)
        assert digest((await backup.read(tmp_path / "b")).state) == digest(ours.state)

    run(test())


def test_every_flipped_or_missing_byte_of_a_backup_is_found(tmp_path: Path) -> None:
    async def test() -> None:
        ours = await new_log()
        await ours.snapshot()
        await ours.add()
        path = tmp_path / "b"
        await backup.write(ours.log, ours.store, path, wall_ns=0)
        good = path.read_bytes()
        for at in range(0, len(good), max(1, len(good) // 60)):
            flipped = bytearray(good)
            flipped[at] ^= 4
            for bad in (bytes(flipped), good[:at], good + b"x"):
                path.write_bytes(bad)
                with pytest.raises(Corrupt):
                    await backup.read(path)
        path.write_bytes(good)
        await backup.read(path)

    run(test())


def test_a_backup_of_a_newer_program_is_refused_with_a_sentence(tmp_path: Path) -> None:
    path = tmp_path / "b"
    with path.open("wb") as file:
        writer = backup.BackupWriter(file)
        writer.add(backup.Opening(backup.VERSION + 1, 0))
        writer.end()
    with pytest.raises(Rejected, match="newer maar"):
        run_virtually(backup.read(path))


def test_a_backup_never_replaces_a_file_and_leaves_no_half_of_one(tmp_path: Path) -> None:
    async def test() -> None:
        ours = await new_log()
        path = tmp_path / "b"
        path.write_text("precious")
        with pytest.raises(AlreadyExists):
            await backup.write(ours.log, ours.store, path, wall_ns=0)
        assert path.read_text() == "precious"
        ours.log.cut = True
        with pytest.raises(Unavailable):
            await backup.write(ours.log, ours.store, tmp_path / "c", wall_ns=0)
        assert list(tmp_path.iterdir()) == [path]
        with pytest.raises(InvalidInput, match="cannot be written"):
            await backup.write(ours.log, ours.store, tmp_path / "none" / "c", wall_ns=0)
        with pytest.raises(InvalidInput, match="cannot be read"):
            await backup.read(tmp_path / "none")

    run(test())


def test_a_log_that_is_truncated_meanwhile_is_read_again_from_a_newer_snapshot(
    tmp_path: Path,
) -> None:
    async def test() -> None:
        ours = await new_log()
        await ours.snapshot()
        await ours.add(3)
        read = ours.log.read
        done = False

        async def truncated_once(*, after: int, limit_bytes: int = 1 << 20) -> list[Record]:
            nonlocal done
            if not done and limit_bytes > 1:
                done = True
                index = await ours.snapshot()
                await ours.truncate(index + 1)
            return await read(after=after, limit_bytes=limit_bytes)

        await ours.add(1)
        ours.log.read = truncated_once  # type: ignore[method-assign]
        made = await backup.write(ours.log, ours.store, tmp_path / "b", wall_ns=0)
        assert done
        assert made.head == ours.replica.head
        assert digest((await backup.read(tmp_path / "b")).state) == digest(ours.state)

    run(test())


def test_no_backup_is_made_of_a_state_that_the_leader_did_not_share(tmp_path: Path) -> None:
    async def test() -> None:
        ours = await new_log()
        wrong = StateHashed(ours.state.index, bytes(32))
        body = encode(ours.state.version, LeaseTime(ours.now), ours.wall, encode_entry(wrong))
        await ours.log.append([body], term=ours.term, head=ours.replica.head)
        with pytest.raises(Corrupt, match="in doubt"):
            await backup.write(ours.log, ours.store, tmp_path / "b", wall_ns=0)
        assert not list(tmp_path.iterdir())

    run(test())
