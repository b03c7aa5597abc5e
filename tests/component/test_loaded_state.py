"""The state that a metastore's process has loaded is out of sight of the garbage collector."""

from __future__ import annotations

import asyncio
import gc
from pathlib import Path

import pytest

from maar.app.roles import metastore
from maar.app.settings.config import load
from maar.metastore.state.state import MetaState

pytestmark = pytest.mark.component


def test_no_collection_walks_the_state_of_a_metastore_that_has_started(tmp_path: Path) -> None:
    places = {
        "MAAR_SERVER__DATA_DIR": f"{tmp_path}/data",
        "MAAR_ROLES__METASTORE": f"unix:{tmp_path}/metastore",
    }
    settings = load(file=None, environ=places)

    async def walked() -> bool:
        async with metastore.run(settings, asyncio.Event(), None):
            return any(isinstance(each, MetaState) for each in gc.get_objects())

    assert not asyncio.run(walked())
