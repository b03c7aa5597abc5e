"""The database of the query role: opened when it is needed, and anew when it is full."""

from __future__ import annotations

import tempfile
from pathlib import Path

import msgspec
import pytest

from maar.model.block import BlockMeta
from maar.model.ids import FencingToken, PlanId
from maar.ports.stores.stores import stores_of
from maar.query.read.database import FOOTER_FACTOR, QueryDatabase
from maar.query.settings import QuerySettings
from support.metastore.fold import INCARNATION, output, segment
from support.stores.memory_store import MemoryStore


def block(number: int) -> BlockMeta:
    plan, token = PlanId(number, 0), FencingToken(INCARNATION, number + 1)
    made = output(plan, token, (segment(number),), profiles=10)
    files = tuple(msgspec.structs.replace(file, footer_size=100) for file in made.files)
    return msgspec.structs.replace(made, files=files)


def answers(database: QueryDatabase, *blocks: BlockMeta) -> bool:
    cursor = database.cursor(blocks)
    found = cursor.execute("SELECT 1").fetchall()
    database.release(cursor)
    return bool(found == [(1,)])


def test_a_database_that_could_not_be_opened_anew_is_opened_for_the_next_query(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The disk for what it spills was full, say."""
    one, two = block(1), block(2)
    room = FOOTER_FACTOR * 100 * len(one.files)
    settings = QuerySettings(footer_cache_bytes_max=room)
    database = QueryDatabase(settings, stores_of(MemoryStore()))
    assert answers(database, one)
    with monkeypatch.context() as changed:
        changed.setattr(tempfile, "tempdir", str(tmp_path / "missing"))
        with pytest.raises(FileNotFoundError):
            answers(database, two)
    assert answers(database, two)
    database.close()
    database.close()


def test_a_database_that_nobody_asked_is_closed_too() -> None:
    QueryDatabase(QuerySettings(), stores_of(MemoryStore())).close()
