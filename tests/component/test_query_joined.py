"""Queries over segments that were joined: the same answers from far fewer objects."""

from __future__ import annotations

from pathlib import Path
from random import Random

import pytest

from maar.model.block import BlockMeta
from maar.model.ids import FencingToken, Incarnation, PlanId
from maar.model.plan import LeasedPlan
from maar.ports.object_store import ObjectStore
from maar.ports.query import GetProfile
from maar.services.compact.rules import COMPACTION
from maar.services.logcompact.rules import LOGCOMPACT
from maar.services.logcompact.run import run as logcompact
from support.lake.asking import ALWAYS, ODD, Asker, ask, lake, service, some_profiles, store
from support.lake.query_lake import COUNT, CPU, TENANT, Known, Lake, by_stack, rows

__all__ = ["ask", "lake", "store"]

pytestmark = pytest.mark.component


def join(store: ObjectStore, inputs: list[BlockMeta], scratch: Path, number: int) -> BlockMeta:
    plan = LeasedPlan(
        id=PlanId(number, 0),
        kind=LOGCOMPACT,
        token=FencingToken(Incarnation("00000000"), number),
        key=COMPACTION.lane(inputs[0]),
        inputs=tuple(inputs),
        target_block_bytes=1,
        lease_ns=1,
    )
    (made,) = logcompact(plan, store=store, attempt="a", scratch=scratch, wall_ns=0).outputs
    return made


def backlog(lake: Lake, random: Random) -> list[Known]:
    """Segments of three services, with profiles that were pushed twice."""
    profiles = [
        known
        for name in ("checkout", "search", "mail")
        for known in some_profiles(random, 20, service=name)
    ]
    random.shuffle(profiles)
    for first in range(0, len(profiles), 3):
        lake.add_segment([*profiles[first : first + 3], random.choice(profiles)])
    return profiles


@pytest.mark.parametrize("seed", range(3))
def test_a_flame_graph_is_the_same_before_and_after(
    lake: Lake, ask: Asker, tmp_path: Path, seed: int
) -> None:
    profiles = backlog(lake, Random(seed))
    segments = list(lake.blocks)
    half = len(segments) // 2
    joined = [
        join(lake.store, some, tmp_path / "scratch", number)
        for number, some in enumerate((segments[:half], segments[half:]), start=1)
    ]
    for blocks in (segments, joined, [*joined, *segments[:4]]):
        lake.blocks[:] = blocks
        for kind in (CPU, COUNT):
            found = rows(profiles, time=ALWAYS, profile_type=kind)
            for time in (ALWAYS, ODD):
                assert ask.stacks(time=time, kind=kind) == by_stack(found)
            own = [row for row in found if row[3].service == "search"]
            assert ask.stacks(service("search"), kind=kind) == by_stack(own)


def test_a_profile_is_found_in_it(lake: Lake, ask: Asker, tmp_path: Path) -> None:
    profiles = backlog(lake, Random(9))
    lake.blocks[:] = [join(lake.store, lake.blocks, tmp_path / "scratch", 1)]
    for known in profiles[::7]:
        found = ask.run(ask.engine.call(GetProfile(TENANT, known.raw.id, ALWAYS)))
        assert found == known.raw.payload
