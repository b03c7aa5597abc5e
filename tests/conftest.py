"""Puts this directory on the path, so that every test can import `support`; shares fixtures."""

import gc
from typing import Any

import pytest
from hypothesis import settings

from support.etcd.shared import cluster, etcd, three_members
from support.runs.files_in_turn import FilesInTurn
from support.stores.s3_server import s3_server

__all__ = ["cluster", "etcd", "s3_server", "three_members"]

# A shared machine may stall any example; the time of a whole test is bounded by pytest. The same
# examples everywhere: what passes here passes in CI. `--hypothesis-profile=wander` looks for more.
settings.register_profile("maar", deadline=None, derandomize=True, database=None)
settings.register_profile("wander", deadline=None, derandomize=False)
settings.load_profile("maar")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Long files first: workers take one file after the other, and should end together."""
    items.sort(key=lambda item: -_seconds_of(item))


def pytest_collection_finish() -> None:
    """Modules and thousands of tests stay to the end: no collection of garbage walks them again."""
    gc.collect()
    gc.freeze()


def _seconds_of(item: pytest.Item) -> int:
    mark = item.get_closest_marker("long")
    return int(mark.args[0]) if mark is not None else 0


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> FilesInTurn | None:
    return FilesInTurn(config, log) if config.getvalue("dist") == "loadfile" else None
