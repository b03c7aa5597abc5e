"""What the tests of a file share: one etcd, and an etcd of three.

They end with the file. To start one is cheap; three members that nobody asks take a thirtieth of a
core for as long as they live, and a run has several processes that would each keep theirs.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from support.etcd.cluster import EtcdCluster


def _running(directory: Path, members: int) -> AbstractContextManager[EtcdCluster]:
    from support.etcd.cluster import running  # slow to import: only for tests that want it

    return running(directory, members=members)


@pytest.fixture(scope="module")
def etcd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EtcdCluster]:
    """One member: take a prefix of your own, and leave it healthy."""
    with _running(tmp_path_factory.mktemp("etcd"), 1) as made:
        yield made


@pytest.fixture(scope="module")
def three_members(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EtcdCluster]:
    with _running(tmp_path_factory.mktemp("three"), 3) as made:
        yield made


@pytest.fixture
def cluster(three_members: EtcdCluster) -> EtcdCluster:
    """Three members, all of them there whatever the test before has done: take a prefix."""
    three_members.start()
    return three_members
