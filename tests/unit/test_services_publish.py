"""An attempt writes only while its guard lets it."""

from __future__ import annotations

from itertools import count
from pathlib import Path

import pytest

from maar.model.errors import LeaseLost
from maar.services.compact import compact
from support.memory_store import MemoryStore
from support.spark_plans import TIME_NS, leased, segment

INTENT_TABLES_AND_MANIFEST = 1 + 5 + 1


@pytest.mark.parametrize("allowed", range(INTENT_TABLES_AND_MANIFEST))
def test_not_one_object_is_written_after_the_guard_refused(allowed: int, tmp_path: Path) -> None:
    store = MemoryStore()
    plan = leased(segment(store, 1), segment(store, 2))
    before = {info.key for info in store.list("")}
    asked = count()

    def guard() -> None:
        if next(asked) >= allowed:
            raise LeaseLost("no more")

    with pytest.raises(LeaseLost):
        compact(plan, store=store, attempt="a", scratch=tmp_path, wall_ns=TIME_NS, guard=guard)
    assert len({info.key for info in store.list("")} - before) == allowed
    assert list(tmp_path.iterdir()) == []
