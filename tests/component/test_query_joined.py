"""Queries over segments that were joined: the same answers from far fewer objects."""

from __future__ import annotations

from pathlib import Path
from random import Random

import pytest

from maar.model.block import BlockMeta
from maar.model.errors import TooLarge
from maar.model.ids import FencingToken, Incarnation, PlanId
from maar.model.plan import LeasedPlan
from maar.ports.reader.query import GetProfile
from maar.ports.stores.object_store import ObjectStore
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


@pytest.mark.parametrize("bound", ["raw_bytes_max", "weight_max"])
def test_what_is_too_much_to_be_decoded_at_once_is_decoded_in_pieces(
    lake: Lake, ask: Asker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, bound: str
) -> None:
    """Joining must not make a query fail that would have opened each segment for itself."""
    profiles = backlog(lake, Random(4))
    largest = max(known.raw.raw_size for known in profiles)
    monkeypatch.setattr(ask.engine.level0, bound, 3 * largest if bound == "raw_bytes_max" else 1)
    lake.blocks[:] = [join(lake.store, lake.blocks, tmp_path / "scratch", 1)]
    assert ask.stacks() == by_stack(rows(profiles, time=ALWAYS))
    decoded = ask.metric("maar_query_level0_profiles_decoded_total")
    assert decoded >= len(profiles)
    assert ask.metric("maar_query_level0_cache_bytes") == 0, "pieces are not kept"


def test_pieces_count_against_what_a_query_may_hold(
    lake: Lake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    backlog(lake, Random(4))
    lake.blocks[:] = [join(lake.store, lake.blocks, tmp_path / "scratch", 1)]
    poor = Asker(lake, answer_bytes_max=2_000)
    monkeypatch.setattr(poor.engine.level0, "weight_max", 1)
    with pytest.raises(TooLarge, match="not compacted yet"):
        poor.stacks()
    poor.engine.close()


def test_a_profile_is_found_in_it(lake: Lake, ask: Asker, tmp_path: Path) -> None:
    profiles = backlog(lake, Random(9))
    lake.blocks[:] = [join(lake.store, lake.blocks, tmp_path / "scratch", 1)]
    for known in profiles[::7]:
        found = ask.run(ask.engine.call(GetProfile(TENANT, known.raw.id, ALWAYS)))
        assert found == known.raw.payload
