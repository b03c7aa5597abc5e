"""The data of a maar from before the first release comes over, by the commands of the runbook."""

from __future__ import annotations

import asyncio
import shutil
from pathlib import Path

import pytest

from maar.adapters.sqlite.log import DATABASE
from maar.adapters.stores.open import open_store
from maar.metastore.service import MetastoreService
from maar.model import keys
from maar.model.errors import Rejected
from maar.model.ids import MAIN_STORE, Incarnation
from maar.ports.stores.object_store import StoreSettings
from support.docs.runbook import Runbook
from support.lake.whole_lake import WholeLake, profile

pytestmark = pytest.mark.component

FORMER = Path(__file__).parents[1] / "compat" / "golden" / "former"
PROFILES = [profile(f"f{number}", 1 + number) for number in range(6)]


def nothing() -> None:
    """No server runs: the test has a metastore of its own."""


def test_blocks_and_segments_are_adopted_from_the_store(tmp_path: Path) -> None:
    (tmp_path / "store").mkdir()
    store = open_store(StoreSettings(MAIN_STORE, (tmp_path / "store").as_uri()))
    lake = WholeLake(tmp_path, store)

    async def filled() -> Incarnation:
        async with lake.running() as service:
            await lake.push(service, PROFILES[:2])
            await lake.push(service, PROFILES[2:4])
            assert await lake.compact_all(service) == {1}
            await lake.push(service, PROFILES[4:])
            return (await service.now()).incarnation

    life = asyncio.run(filled())

    # as the older maar would have left it
    shutil.rmtree(tmp_path / "log")
    (tmp_path / "log").mkdir()
    shutil.copy(FORMER / "log.db", tmp_path / "log" / DATABASE)
    for info in list(store.list(keys.snapshot_prefix(life))):
        store.delete(info.key)
    former = (FORMER / "snapshot.maar").read_bytes()
    store.create(keys.snapshot(incarnation=life, index=40), former)

    async def refused() -> None:
        with pytest.raises(Rejected, match=r"before its first release.*--without-snapshot"):
            async with lake.running():
                pass

    asyncio.run(refused())

    names = {"/var/lib/maar": str(tmp_path), "s3://profiles/maar": store.settings().url}
    acts = {
        "systemctl stop": nothing,
        "mv /var/lib/maar/log /var/lib/maar/log.old": lambda: shutil.move(
            tmp_path / "log", tmp_path / "log.old"
        ),
        "systemctl start": lambda: asyncio.run(adopted()),
    }

    async def adopted() -> None:
        async with lake.running() as service:
            await settled(service)
            status = await service.status()
            assert status.incarnation != life
            assert {level.level for level in status.levels} == {0, 1}
            async with lake.engine(service) as asker:
                await asker.sees(PROFILES)
            assert 2 in await lake.compact_all(service)
            async with lake.engine(service) as asker:
                await asker.sees(PROFILES)

    book = Runbook(names, acts)
    book.follow("An older maar wrote the log")
    assert "objects in file://" in book.said[0]
    assert "wrong" not in book.said[-1]
    assert "of another log" in book.said[-1]


async def settled(service: MetastoreService) -> None:
    async with asyncio.timeout(30):
        while (await service.status()).adopting:
            await asyncio.sleep(0.01)
