"""Two directories and two S3 servers under load, harmed in every way, are made whole again.

By chance, and for as long as you like: `make soak-stores`.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from support.lake.harmed_lake import check_manifests_alone, harmed_lake
from support.stores.harmed import four_stores

pytestmark = [pytest.mark.component, pytest.mark.long(190), pytest.mark.timeout(600)]


def test_every_profile_is_in_each_store_alone_whatever_was_done_to_them(tmp_path: Path) -> None:
    with four_stores(tmp_path) as stores:
        _, disk, far, shelf = stores
        with harmed_lake(tmp_path, stores, seed=14, spark=False) as lake:
            lake.goes_on(10)
            lake.cut_off(far)
            lake.wipe(disk)
            lake.kill("worker")
            lake.kill("metastore")
            lake.load.stop()
            lake.settle()
            harmed = lake.harm_files(0.01, least=2)
            found = lake.repair()
            assert (found["outcome"], found["damaged"], found["lost"]) == ("completed", harmed, 0)
            lake.wipe_home()
            lake.load.stop()
            lake.settle()
            lake.check_copies()
            lake.check_each_alone()
            acknowledged = lake.load.acknowledged
        check_manifests_alone(shelf, tmp_path / "again", acknowledged)
