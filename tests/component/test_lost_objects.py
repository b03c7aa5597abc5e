"""A lost object does not stop a service for ever: it is named, and its block can be given up."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from maar.model.block import BlockMeta
from maar.model.errors import Rejected
from support.lake.fold_and_store import put
from support.lake.whole_lake import WholeLake, profile
from support.metastore.fold import segment
from support.metastore.world import World
from support.stores.memory_store import MemoryStore

pytestmark = [pytest.mark.component, pytest.mark.timeout(120)]


def test_a_lost_block_is_looked_at_and_given_up(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    world = World(tmp_path / "log")

    async def test() -> None:
        async with world.running() as service:
            now = await service.now()
            metas: list[BlockMeta] = [segment(n, at=now.lease_time) for n in (1, 2)]
            for meta in metas:
                put(world.store, meta)
            assert set((await service.add_blocks(tuple(metas))).refusals) == {""}
            lost, kept = metas
            key = lost.files[0].locations[0].key
            world.store.delete(key)
            loss = await service.loss(lost.id)
            assert loss.block == lost
            assert [str(each) for each in loss.damages] == [
                f"object {key} of block {lost.id} is missing"
            ]
            done = await service.lose(lost.id, note="the disk died")
            assert done.damages == loss.damages
            assert [meta.id for meta in await service.blocks()] == [kept.id]
            status = await service.status()
            assert (status.blocks_lost, status.profiles_lost) == (1, lost.profiles)
            assert "the disk died" in caplog.text
            assert key in caplog.text

        async with world.running() as service:
            status = await service.status()
            assert (status.blocks_lost, status.profiles_lost) == (1, lost.profiles)

    asyncio.run(test())


def test_nothing_is_deleted_before_the_log_has_answered_though_nobody_waits_for_it_any_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What comes back was seen to be there, and must still be when it does."""
    world = World(tmp_path / "log")

    async def test() -> None:
        async with world.running() as service:
            meta = segment(1, at=(await service.now()).lease_time)
            await service.add_blocks((meta,))
            leader_term = service.leader_term
            assert leader_term is not None
            asked, may_go, command = asyncio.Event(), asyncio.Event(), leader_term.command

            async def slow(*how: Any) -> Any:
                asked.set()
                await may_go.wait()
                return await command(*how)

            monkeypatch.setattr(leader_term, "command", slow)
            losing = asyncio.create_task(service.lose(meta.id, note=""))
            await asked.wait()
            losing.cancel()
            for _ in range(5):
                await asyncio.sleep(0)
            assert leader_term.cleaner.removal.locked()
            may_go.set()
            with pytest.raises(asyncio.CancelledError):
                await losing
            assert not leader_term.cleaner.removal.locked()
            assert await service.blocks() == ()

    asyncio.run(test())


def test_a_whole_block_is_not_given_up_without_force(tmp_path: Path) -> None:
    lake = WholeLake(tmp_path, MemoryStore())

    async def test() -> None:
        async with lake.running() as service:
            meta = await lake.push(service, [profile("a", 1)])
            with pytest.raises(Rejected, match="intact"):
                await service.lose(meta.id, note="")
            assert [each.id for each in await service.blocks()] == [meta.id]
            await service.lose(meta.id, note="", force=True)
            assert await service.blocks() == ()

    asyncio.run(test())
