"""A push in batches: one shard each, and none too large for a message."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from maar.adapters.rpc import MESSAGE_BYTES_MAX
from maar.distributor.service import BATCH_BYTES_MAX, batches, message_bytes
from maar.model.ids import Shard, TenantId
from maar.placement.locate import Place, Spot
from support.segment.writers_as_told import profile

SPOT = Spot(0, 4, 0, 4)


class ByName:
    """The number at the end of a service is its shard."""

    def place(self, tenant: TenantId, service: str, fingerprint: int) -> Place:  # noqa: ARG002
        return Place(Shard(int(service.rpartition("-")[2])), SPOT, fingerprint % 4)


@settings(max_examples=40)
@given(
    st.lists(st.tuples(st.integers(1, 5), st.integers(0, 3000)), min_size=1, max_size=40),
    st.integers(1, 5000),
)
def test_every_profile_is_in_one_batch_of_its_shard_in_the_order_of_the_push(
    chosen: list[tuple[int, int]], bytes_max: int
) -> None:
    profiles = [
        profile(f"s-{shard}", number=number, payload=b"x" * size)
        for number, (shard, size) in enumerate(chosen)
    ]
    made = batches(profiles, ByName(), bytes_max=bytes_max)
    for shard in range(1, 6):
        mine = [one for batch in made if batch.place.shard == shard for one in batch.profiles]
        assert mine == [one for one in profiles if one.service == f"s-{shard}"]
    for batch in made:
        assert batch.profiles
        assert len(batch.profiles) == 1 or sum(map(message_bytes, batch.profiles)) <= bytes_max


def test_neighbours_on_a_shard_travel_together() -> None:
    made = batches([profile(f"s-{n % 2}", number=n) for n in range(10)], ByName())
    assert [len(batch.profiles) for batch in made] == [5, 5]


def test_the_order_of_failover_is_that_of_the_first_profile() -> None:
    profiles = [profile("s-1", number=n) for n in range(10)]
    (batch,) = batches(profiles, ByName())
    assert batch.place == batches(profiles[:1], ByName())[0].place


def test_a_batch_stays_far_below_what_a_message_may_have() -> None:
    assert BATCH_BYTES_MAX <= MESSAGE_BYTES_MAX // 2
