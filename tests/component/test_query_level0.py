"""Segments are decoded for a query once and within a bound; a bad profile hides no other."""

from __future__ import annotations

from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from random import Random
from threading import Barrier

import msgspec
import pytest
from prometheus_client import CollectorRegistry

from maar.model.errors import Corrupt, NotFound
from maar.ports.reader.query import GetProfile
from maar.ports.stores.object_store import ObjectStore
from maar.query.metrics import Metrics
from maar.query.read.level0 import DecodedPart, Level0
from support.lake.asking import ALWAYS, START, Asker, ask, lake, service, some_profiles, store
from support.lake.query_lake import TENANT, Known, Lake, by_stack, known_profile, rows

__all__ = ["ask", "lake", "store"]

pytestmark = pytest.mark.component


def test_what_was_just_acknowledged_is_in_the_next_answer(lake: Lake, ask: Asker) -> None:
    for number in range(3):
        lake.add_segment([known_profile([((f"f{number}",), {}, (1, 1))], time_ns=START + number)])
        assert ask.stacks() == Counter({(f"f{n}",): 1 for n in range(number + 1)})
    assert ask.metric("maar_query_level0_profiles_decoded_total") == 3
    assert ask.metric("maar_query_level0_cache_lookups_total", result="hit") == 3
    assert ask.metric("maar_query_level0_cache_bytes") > 0


def test_a_dataset_that_many_want_at_once_is_decoded_once(lake: Lake) -> None:
    meta = lake.add_segment(some_profiles(Random(14), 20))
    registry = CollectorRegistry()
    level0 = Level0(lake.store, bytes_max=1 << 30, metrics=Metrics(registry))
    barrier = Barrier(8)

    def want(_: int) -> DecodedPart:
        barrier.wait()
        (part,) = level0.parts(meta, meta.datasets)
        return part

    with ThreadPoolExecutor(8) as pool:
        got = list(pool.map(want, range(8)))
    lookups = "maar_query_level0_cache_lookups_total"
    assert registry.get_sample_value("maar_query_level0_profiles_decoded_total") == 20
    assert registry.get_sample_value(lookups, {"result": "miss"}) == 1
    assert registry.get_sample_value(lookups, {"result": "hit"}) == 7
    assert all(each is got[0] for each in got)


def test_a_failed_decoding_does_not_block_the_next_one(lake: Lake, store: ObjectStore) -> None:
    meta = lake.add_segment(some_profiles(Random(15), 2))
    key = meta.files[0].locations[0].key
    body = store.read(key)
    store.delete(key)
    level0 = Level0(store, bytes_max=1 << 30, metrics=Metrics(CollectorRegistry()))
    with pytest.raises(NotFound):
        level0.parts(meta, meta.datasets)
    store.create(key, body)
    assert [part.profiles for part in level0.parts(meta, meta.datasets)] == [2]


def test_the_cache_of_level_0_keeps_its_bound(lake: Lake) -> None:
    random = Random(1)
    for _ in range(4):
        lake.add_segment(some_profiles(random, 10))
    one = Asker(lake)
    expected = one.stacks()
    bound = int(one.metric("maar_query_level0_cache_bytes") // 2)
    two = Asker(lake, level0_cache_bytes_max=bound)
    assert two.stacks() == expected
    assert two.stacks() == expected
    assert 0 < two.metric("maar_query_level0_cache_bytes") <= bound
    assert two.metric("maar_query_level0_profiles_decoded_total") > 40
    one.engine.close()
    two.engine.close()


def test_a_raw_profile_that_cannot_be_decoded_hides_no_other(lake: Lake, ask: Asker) -> None:
    good, bad = some_profiles(Random(3), 2)
    broken = msgspec.structs.replace(bad.raw, payload=b"\x1f\x8bnot gzip at all")
    lake.add_segment([good, Known(broken, [])])
    assert ask.stacks() == by_stack(rows([good], time=ALWAYS))
    assert ask.run(ask.engine.call(GetProfile(TENANT, broken.id, ALWAYS))) == broken.payload
    lake.add_segment([Known(broken, [])])  # a dataset of which nothing is left
    assert ask.stacks(service("checkout")) == by_stack(rows([good], time=ALWAYS))


def test_all_services_of_a_segment_are_decoded_together_and_one_alone(lake: Lake) -> None:
    profiles = [
        known_profile([(("f",), {}, (1, 1))], time_ns=START, service=f"s{n}") for n in range(20)
    ]
    meta = lake.add_segment(profiles)
    ask = Asker(lake)
    assert ask.stacks(service("s3")) == {("f",): 1}
    assert ask.metric("maar_query_level0_profiles_decoded_total") == 1, "the others cost nothing"
    assert ask.stacks() == {("f",): 20}
    assert ask.metric("maar_query_level0_profiles_decoded_total") == 21
    assert ask.stacks(service("s4")) == {("f",): 1}
    assert ask.stacks() == {("f",): 20}
    assert ask.metric("maar_query_level0_profiles_decoded_total") == 21, "what is there is used"
    assert ask.metric("maar_query_level0_cache_lookups_total", result="miss") == 2
    assert len(meta.datasets) == 20
    ask.engine.close()


@pytest.mark.parametrize("what", ["place", "number"])
def test_a_segment_that_the_index_describes_wrongly_is_an_error(lake: Lake, what: str) -> None:
    lake.add_segment(
        [known_profile([(("f",), {}, (1, 1))], time_ns=START, service=name) for name in ("a", "b")]
    )
    first, second = lake.blocks[0].datasets
    wrong = (
        msgspec.structs.replace(first, row_group_first=second.row_group_first)
        if what == "place"
        else msgspec.structs.replace(first, profiles=2)
    )
    lake.blocks[0] = msgspec.structs.replace(lake.blocks[0], datasets=(wrong, second))
    ask = Asker(lake)
    with pytest.raises(Corrupt, match=r"index says"):
        ask.stacks(service("a"))
    ask.engine.close()
