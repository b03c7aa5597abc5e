"""Where a profile goes, whom to try next, and that every shard is tried exactly once."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from itertools import count, islice
from random import Random

import pytest
import xxhash
from hypothesis import given
from hypothesis import strategies as st

from maar.model.errors import Unavailable
from maar.model.ids import HOME, NodeId, Shard, TenantId, Zone
from maar.model.ring import Ring, Writer, WriterState
from maar.placement import locate
from maar.placement.locate import REMEMBERED, Place, Placement, Spot, jump
from maar.placement.rules import Balancing, Rules, Share, TenantLimits
from maar.placement.table import new_table

ACME = TenantId("acme")


def ring_of(owners: str, states: dict[str, WriterState] | None = None) -> Ring:
    """A ring from the owners' letters, in order of the shards."""
    nodes = sorted(set(owners))
    states = states or {}
    writers = tuple(
        Writer(NodeId(node), f"{node}:1", "s", owners.count(node),
               states.get(node, WriterState.ACTIVE))
        for node in nodes
    )  # fmt: skip
    return Ring(HOME, 1, writers, tuple(nodes.index(owner) for owner in owners))


def even_ring(nodes: int, shards: int = 4) -> Ring:
    names = [NodeId(f"n{number:03}") for number in range(nodes)]
    table = new_table(dict.fromkeys(names, shards))
    writers = tuple(Writer(name, "", "s", shards, WriterState.ACTIVE) for name in names)
    place_of = {name: place for place, name in enumerate(names)}
    return Ring(HOME, 1, writers, tuple(place_of[owner] for owner in table))


def no_draw(_: int) -> int:
    raise AssertionError("nothing is left to chance here")


def placement(
    ring: Ring,
    datasets: dict[tuple[TenantId, str], Share] | None = None,
    limits: TenantLimits | None = None,
    draw: Callable[[int], int] = no_draw,
    remembered_max: int = REMEMBERED,
) -> Placement:
    found = limits or TenantLimits()
    rules = Rules(1, datasets or {})
    return Placement(ring, rules, lambda _: found, draw, remembered_max=remembered_max)


def name_at(start: int, shards: int) -> str:
    """Some name whose hash jumps to that place."""
    return next(
        name
        for name in map("name-{}".format, count())
        if jump(xxhash.xxh64_intdigest(name.encode()), shards) == start
    )


# ── the worked example ─────────────────────────────────────────────────────────────────────────


def test_the_worked_example_of_the_order_of_shards() -> None:
    """12 shards, nodes A, B and C; the tenant's subring starts at 3 and has 8 shards, the
    dataset's starts at 1 within it and has 4. Places count from 0 there, shards from 1 here.
    """
    mapping = (4, 11, 5, 2, 3, 0, 7, 9, 8, 10, 1, 6)
    ring = ring_of("".join("AAAABBBBCCCC"[place] for place in mapping))
    tenant, service = TenantId(name_at(3, 12)), name_at(1, 8)
    here = placement(ring, {(tenant, service): Share(8, 4)})

    places = [here.place(tenant, service, mark) for mark in range(4)]
    assert [place.shard - 1 for place in places] == [4, 5, 6, 7]
    assert places[0].spot == Spot(3, 8, 1, 4)
    assert [mapping[place.shard - 1] for place in places] == [3, 0, 7, 9]
    assert [ring.nodes()[place.shard - 1] for place in places] == [*"AABC"]

    selected = here.place(tenant, service, 2)
    assert selected.shard - 1 == 6
    writers = [writer.node for writer in here.writers(selected)]
    assert writers[0] == "B"
    assert sorted(writers[1:]) == [*"AC"], "either may stand in: they have shards of the tenant"
    assert [shard - 1 for shard in here.order(selected)] == [
        *(6, 7, 4, 5),  # the dataset's
        *(8, 9, 10, 3),  # the tenant's
        *(11, 0, 1, 2),  # all others
    ]
    again = here.place(tenant, service, 2)
    assert again == selected, "the shard keeps its id while another node takes it"


# ── subrings ───────────────────────────────────────────────────────────────────────────────────


def test_a_service_keeps_to_one_shard_by_default() -> None:
    here = placement(even_ring(3))
    assert len({here.place(ACME, "shop", mark).shard for mark in range(50)}) == 1


def test_services_spread_over_all_shards_which_count_from_one() -> None:
    here = placement(even_ring(3))
    shards = {here.place(ACME, f"service-{n}", n).shard for n in range(200)}
    assert shards == set(range(1, 13))


def test_a_wider_dataset_uses_neighbouring_shards_by_fingerprint() -> None:
    here = placement(even_ring(3), {(ACME, "shop"): Share(0, 3)})
    marks = [here.place(ACME, "shop", mark).shard for mark in range(6)]
    assert marks[:3] == marks[3:]
    assert [(shard - marks[0]) % 12 for shard in marks[:3]] == [0, 1, 2]


def test_datasets_of_a_tenant_stay_within_its_shards() -> None:
    here = placement(even_ring(6), limits=TenantLimits(tenant_shards=5, dataset_shards=3))
    shards = {here.place(ACME, f"s{n % 90}", n).shard for n in range(900)}
    first = here.place(ACME, "s0", 0).spot.tenant_start
    assert shards == {(first + step) % 24 + 1 for step in range(5)}


@pytest.mark.parametrize(("nodes", "more"), [(3, 4), (4, 5), (6, 8)])
def test_more_shards_take_datasets_and_exchange_none_among_the_old(nodes: int, more: int) -> None:
    """With a beginning of its own in the ring, a tenant would have half of its datasets moved."""
    before, now = placement(even_ring(nodes)), placement(even_ring(more))
    moved = 0
    for number in range(600):
        tenant, service = TenantId(f"tenant-{number % 7}"), f"service-{number}"
        was, to = before.place(tenant, service, 0).shard, now.place(tenant, service, 0).shard
        assert to == was or to > 4 * nodes
        moved += to != was
    assert moved / 600 < 1.25 * (1 - nodes / more)


def test_a_dataset_gets_at_most_what_its_tenant_has() -> None:
    here = placement(even_ring(3), {(ACME, "shop"): Share(2, 64), (ACME, "all"): Share(99, 64)})
    assert here.place(ACME, "shop", 0).spot.dataset_shards == 2
    assert here.place(ACME, "all", 0).spot[1::2] == (12, 12)


@pytest.mark.parametrize("shards", [0, -3])
def test_a_rule_without_shards_still_gives_one(shards: int) -> None:
    here = placement(even_ring(3), {(ACME, "shop"): Share(shards, shards)})
    assert here.place(ACME, "shop", 7).spot[1::2] == (12, 1)


def test_an_empty_ring_says_what_to_do() -> None:
    empty = placement(Ring(Zone("west"), 0, (), ()))
    with pytest.raises(Unavailable, match=r"zone west has no shards.*--roles segment-writer"):
        empty.place(ACME, "shop", 1)


@given(
    st.integers(1, 9),
    st.integers(1, 5),
    st.integers(0, 50),
    st.integers(-1, 50),
    st.text(max_size=9),
    st.integers(0, 2**64 - 1),
)
def test_the_order_visits_every_shard_once_dataset_then_tenant_then_the_rest(
    nodes: int, each: int, tenant_shards: int, dataset_shards: int, service: str, mark: int
) -> None:
    ring = even_ring(nodes, each)
    here = placement(ring, {(ACME, service): Share(tenant_shards, dataset_shards)})
    place = here.place(ACME, service, mark)
    spot, total = place.spot, nodes * each
    order = list(here.order(place))
    tenants = [(spot.tenant_start + step) % total + 1 for step in range(spot.tenant_shards)]
    datasets = [
        tenants[(spot.dataset_start + step) % len(tenants)] for step in range(spot.dataset_shards)
    ]
    assert order[0] == place.shard == datasets[mark % len(datasets)]
    assert sorted(order) == list(range(1, total + 1))
    assert set(order[: len(datasets)]) == set(datasets)
    assert set(order[: len(tenants)]) == set(tenants)
    assert {writer.node for writer in here.writers(place)} == {w.node for w in ring.writers}


def test_each_writer_is_named_once_and_the_owner_first() -> None:
    ring = ring_of("abacbc", {"a": WriterState.LEAVING})
    here = placement(ring)
    for mark in range(20):
        place = Place(Shard(3), Spot(0, 6, 2, 2), 0, mark)
        named = [writer.node for writer in here.writers(place)]
        assert (named[0], sorted(named)) == ("a", [*"abc"])


# ── who stands in ──────────────────────────────────────────────────────────────────────────────


def heirs_of(dead: str, ring: Ring, datasets: int) -> Counter[NodeId]:
    """Who takes the first so many datasets that the dead writer has."""
    here, found = placement(ring), Counter[NodeId]()
    for number in count():
        if found.total() == datasets:
            return found
        tenant, service = TenantId(f"tenant-{number % 7}"), f"service-{number}"
        owner, heir, *_ = here.writers(here.place(tenant, service, number))
        if owner.node == dead:
            found[heir.node] += 1
    raise AssertionError("numbers do not end")


def heirs_of_all(ring: Ring, datasets: int, series: int) -> dict[NodeId, Counter[NodeId]]:
    """Who takes how many series of each writer's first so many datasets, should it die."""
    here, had = placement(ring), Counter[NodeId]()
    found = {writer.node: Counter[NodeId]() for writer in ring.writers}
    for number in count():
        tenant, service = TenantId(f"tenant-{number % 7}"), f"service-{number}"
        owner = ring.nodes()[here.place(tenant, service, 0).shard - 1]
        if had[owner] < datasets:
            had[owner] += 1
            marks = (xxhash.xxh64_intdigest(f"{service}/{one}".encode()) for one in range(series))
            for place, many in Counter(here.place(tenant, service, one) for one in marks).items():
                found[owner][next(islice(here.writers(place), 1, None)).node] += many
        if had.total() == datasets * len(found):
            return found
    raise AssertionError("numbers do not end")


@pytest.mark.parametrize("nodes", [3, 4, 6, 11, 26, 29, 32])
def test_no_heir_takes_more_than_half_again_its_share_whichever_writer_dies(nodes: int) -> None:
    """Of 1,000 equal datasets of six series; of one series, chance alone makes it 1.64."""
    for heirs in heirs_of_all(even_ring(nodes), datasets=1000, series=6).values():
        assert len(heirs) == nodes - 1
        assert max(heirs.values()) <= 1.5 * heirs.total() / (nodes - 1)


def test_of_a_thousand_datasets_in_all_no_heir_takes_more_than_half_again_its_share() -> None:
    ring = even_ring(6)
    here, heirs = placement(ring), {writer.node: Counter[NodeId]() for writer in ring.writers}
    for number in range(1000):
        owner, heir, *_ = here.writers(here.place(ACME, f"service-{number}", 0))
        heirs[owner.node][heir.node] += 1
    for found in heirs.values():
        assert max(found.values()) <= 1.5 * found.total() / 5


def test_a_writer_of_more_shards_stands_in_for_more() -> None:
    found = heirs_of("a", ring_of("abbbcabbbcabbbc"), 2000)
    assert found[NodeId("b")] / found[NodeId("c")] == pytest.approx(3, rel=0.25)


def test_when_an_heir_is_dead_too_its_part_is_spread_again() -> None:
    here, found = placement(even_ring(6)), Counter[NodeId]()
    for number in range(6000):
        first, second, third, *_ = here.writers(here.place(ACME, f"service-{number}", 0))
        if (first.node, second.node) == ("n000", "n001"):
            found[third.node] += 1
    assert len(found) == 4
    assert max(found.values()) <= 1.5 * found.total() / 4


def test_a_series_has_one_heir_everywhere_and_a_dataset_in_a_shard_at_most_four() -> None:
    ring = even_ring(26)
    one, other, counted = placement(ring), placement(ring), Counter[int]()
    for number in range(100):
        heirs = set[NodeId]()
        for mark in range(40):
            first, second = (
                [writer.node for writer in here.writers(here.place(ACME, f"s{number}", mark))]
                for here in (one, other)
            )
            assert first == second
            heirs.add(first[1])
        counted[len(heirs)] += 1
    assert max(counted) == 4
    assert counted[4] > 60, "four draws among 25"


@given(st.integers(1, 9), st.integers(1, 36), st.integers(0, 2**64 - 1))
def test_the_shard_is_the_published_one_whichever_part_a_series_is_of(
    nodes: int, dataset_shards: int, mark: int
) -> None:
    here = placement(even_ring(nodes), {(ACME, "shop"): Share(0, dataset_shards)})
    place = here.place(ACME, "shop", mark)
    assert place.offset == mark % place.spot.dataset_shards
    assert place.shard == locate.shard_at(place.spot, place.offset, 4 * nodes)


def test_a_tenant_that_is_bound_to_few_shards_stays_with_their_owners() -> None:
    ring = even_ring(12)
    here = placement(ring, limits=TenantLimits(tenant_shards=6))
    for number in range(100):
        place = here.place(ACME, f"service-{number}", 0)
        spot = place.spot
        bound = {ring.nodes()[(spot.tenant_start + step) % 48] for step in range(6)}
        named = [writer.node for writer in here.writers(place)]
        assert set(named[: len(bound)]) == bound
        assert len(named) == 12


@given(st.integers(0, 400), st.integers(0, 2**64 - 1))
def test_an_order_that_is_scattered_has_everything_once(size: int, seed: int) -> None:
    assert sorted(locate.scatter(size, seed)) == list(range(size))


# ── rules and chance ───────────────────────────────────────────────────────────────────────────


def test_round_robin_draws_among_the_shards_of_the_dataset() -> None:
    share = Share(0, 4, Balancing.ROUND_ROBIN)
    here = placement(even_ring(3), {(ACME, "shop"): share}, draw=Random(1).randrange)
    drawn = Counter(here.place(ACME, "shop", 0).shard for _ in range(4000))
    assert len(drawn) == 4
    assert min(drawn.values()) > 800
    by_fingerprint = placement(even_ring(3), {(ACME, "shop"): Share(0, 4)})
    assert set(drawn) == {by_fingerprint.place(ACME, "shop", mark).shard for mark in range(4)}


def test_limits_say_how_a_dataset_without_a_rule_is_spread() -> None:
    limits = TenantLimits(dataset_shards=2, balancing="round-robin")
    here = placement(even_ring(3), limits=limits, draw=lambda n: n - 1)
    assert here.place(ACME, "shop", 0).offset == 1


def test_a_rule_that_says_nothing_of_balancing_leaves_it_to_the_limits() -> None:
    rules = {(ACME, "shop"): Share(0, 3, Balancing.UNSPECIFIED)}
    assert placement(even_ring(3), rules).place(ACME, "shop", 4).offset == 1
    limits = TenantLimits(balancing="round-robin")
    drawn = placement(even_ring(3), rules, limits, draw=lambda n: n - 1)
    assert drawn.place(ACME, "shop", 4).offset == 2


def test_the_same_service_of_two_tenants_lies_in_different_places() -> None:
    here = placement(even_ring(16))
    spots = {here.place(TenantId(f"t{number}"), "api", 0).shard for number in range(40)}
    assert len(spots) > 20


def test_what_is_remembered_is_bounded_and_what_is_forgotten_is_found_again() -> None:
    limits = TenantLimits(dataset_shards=3)
    here = placement(even_ring(3), limits=limits, remembered_max=40)
    fresh = [placement(even_ring(3), limits=limits).place(ACME, f"s{n}", n) for n in range(50)]
    assert [here.place(ACME, f"s{n}", n) for n in range(50)] == fresh
    assert [here.place(ACME, f"s{n}", n) for n in range(50)] == fresh
    assert 0 < here.remembered <= 40
