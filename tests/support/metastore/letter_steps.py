"""A leader that has dead letters to deliver, and ways to spoil them."""

from __future__ import annotations

import msgspec
import pytest

from maar.model.time import SECOND_NS
from support.metastore.dead_letters import LetterLake
from support.metastore.fold import SMALL

LAG_NS = 600 * SECOND_NS
POLICY = msgspec.structs.replace(SMALL, registration_floor_lag_ns=LAG_NS)
START = 1000 * SECOND_NS


@pytest.fixture
def lake() -> LetterLake:
    lake = LetterLake(POLICY)
    lake.pass_time(START)
    return lake
