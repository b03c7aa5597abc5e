"""The compiled walk, as a piece of software to install and start."""

from __future__ import annotations

import pytest
from numba.core import caching

from maar.pprof import wire
from maar.pprof.kernel import kernel


def doubled(number: int) -> int:
    return number * 2


def test_where_no_cache_can_be_written_each_process_compiles_for_itself(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(caching.CacheImpl, "_locator_classes", [])
    assert kernel(doubled)(21) == 42


def test_the_walk_is_cached_beside_its_source_or_where_the_environment_says() -> None:
    assert wire.walk._cache.cache_path
    assert wire.walk.targetoptions["nogil"]
