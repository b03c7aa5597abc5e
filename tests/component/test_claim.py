"""Several servers, each with a log of its own, begin at once in one new store: one of them does."""

from __future__ import annotations

import asyncio
import secrets
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry

from maar.adapters.sqlite.log import SqliteLog
from maar.adapters.stores.open import open_store
from maar.adapters.system_clock import SystemClock
from maar.metastore.recovery import restoring, traces
from maar.metastore.replica import snapshot
from maar.metastore.service import MetastoreService
from maar.model import keys
from maar.model.errors import MaarError, Rejected
from maar.model.ids import MAIN_STORE, Incarnation
from maar.model.policy import Policy
from maar.model.time import WallTime
from maar.ports.metastore.log import Candidate
from maar.ports.stores.object_store import ObjectStore, StoreSettings
from support.lake.lost_log import Lives

pytestmark = pytest.mark.component

SERVERS = 4


@pytest.fixture(params=["directory", "s3"])
def settings(request: pytest.FixtureRequest, tmp_path: Path) -> StoreSettings:
    if request.param == "s3":
        found: StoreSettings = request.getfixturevalue("s3_server").bucket()
        return found
    return StoreSettings(MAIN_STORE, (tmp_path / "store").as_uri())


def server(directory: Path, store: ObjectStore) -> MetastoreService:
    async def take() -> int:
        reader = SqliteLog.open_reader(directory)
        try:
            return await snapshot.make(reader, store)
        finally:
            await reader.close()

    return MetastoreService(
        SqliteLog.open(directory),
        store,
        SystemClock(),
        Policy(),
        entropy=secrets.token_bytes,
        candidate=Candidate(directory.name),
        take_snapshot=take,
        registry=CollectorRegistry(),
    )


def test_one_of_several_begins_and_goes_on_and_the_others_stop(
    settings: StoreSettings, tmp_path: Path
) -> None:
    async def started(service: MetastoreService) -> MaarError | None:
        try:
            await service.start()
        except MaarError as error:
            return error
        return None

    async def test() -> None:
        homes = [tmp_path / f"log-{number}" for number in range(SERVERS)]
        for _ in range(2):  # after a restart it is the same one
            services = [server(home, open_store(settings)) for home in homes]
            ended = await asyncio.gather(*map(started, services))
            leading = [n for n, error in enumerate(ended) if error is None]
            lives = {(await services[n].replica()).incarnation for n in leading}
            assert len(leading) == 1, ended
            for number, error in enumerate(ended):
                assert number in leading or isinstance(error, Rejected)
            markers = {info.key for info in open_store(settings).list(keys.MARKERS)}
            assert markers == {keys.marker(Incarnation(life)) for life in lives}
            for service in services:
                await service.stop()

    asyncio.run(test())


def test_a_lost_log_without_a_snapshot_comes_back_in_every_kind_of_store(
    settings: StoreSettings, tmp_path: Path
) -> None:
    """Merged, not merged, and a copy by an attempt that never completed."""
    store = open_store(settings)
    lake = Lives(store=store)
    lake.merge([lake.push(1, 2), lake.push(3)])
    attempted = lake.schedule([lake.push(4), lake.push(5)])
    lake.write(attempted, lake.lease(attempted))
    shown = lake.visible_profiles()

    async def restored() -> None:
        log = SqliteLog.open(tmp_path / "new")
        found = traces.origin(store)
        await restoring.restore(
            log,
            store,
            found,
            incarnation=Incarnation("feedbeef"),
            adopts=found.incarnations[1:],
            wall=WallTime(lake.clock.wall),
        )
        await log.close()

    async def adopted() -> set[str]:
        service = server(tmp_path / "new", store)
        await service.start()
        async with asyncio.timeout(60):
            while (await service.status()).adopting:
                await asyncio.sleep(0.05)
        blocks = await service.blocks()
        await service.stop()
        return {meta.files[0].locations[0].key for meta in blocks}

    asyncio.run(restored())
    found = asyncio.run(adopted())
    profiles = {number for key in found for number in lake.contents[key]}
    assert profiles == shown
    lake.cleaner.close()
    lake.adoption.close()
    lake.orphans.close()
