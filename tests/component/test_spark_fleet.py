"""`maar worker` on a cluster whose hosts have no maar, as docs/spark.md tells to start it.

The short form of `make soak-spark`: the same code, fewer segments, each kill once.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator

import pytest

from support.spark.fleet import Lake, fleet, inject

pytestmark = [pytest.mark.component, pytest.mark.long(95), pytest.mark.timeout(600)]

SEGMENTS = 80  # four plans of the first level, on two slots


@pytest.fixture(scope="module")
def lake(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lake]:
    with fleet(tmp_path_factory.mktemp("fleet")) as made:
        yield made


def test_segments_are_compacted_on_hosts_that_have_only_what_was_packed(lake: Lake) -> None:
    path = f"/usr/local/bin:/usr/bin:/bin:{sys.base_prefix}/bin"
    python = "python{}.{}".format(*sys.version_info)
    looked = subprocess.run(
        ["/usr/bin/env", "-i", f"PATH={path}", python, "-c", "import maar"],
        cwd=lake.directory,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert "No module named 'maar'" in looked.stderr
    worker = lake.start_worker(packed=True)
    try:
        lake.push(SEGMENTS // 2)
        lake.wait_settled()
        assert worker.stop() == 0, worker.log()
    finally:
        lake.wipe()


def test_an_executor_a_host_and_the_driver_are_killed_and_nothing_is_lost(lake: Lake) -> None:
    """A frozen executor is in test_spark_cluster.py, a killed JVM in test_worker_alone.py."""
    worker = lake.start_worker(packed=False)
    for name in ("executor killed", "host killed", "driver killed"):
        inject(lake, name, segments=SEGMENTS)
    lake.wait_settled()
    assert worker.stop() == 0, worker.log()
