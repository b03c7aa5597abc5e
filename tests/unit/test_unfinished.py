"""Who is hung up on when too many keep us waiting: decided over plain values, in virtual time."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from maar.app.http.unfinished import (
    ConnectionLimits,
    RefusedConnection,
    Unfinished,
    Why,
    address_of,
    connections_within,
)

HONEST, STRANGER = "10.0.0.1", "10.0.0.9"


def waiting(*, unfinished: int = 100, per_address: int = 100, connections: int = 100) -> Unfinished:
    return Unfinished(
        ConnectionLimits(
            head_s=10,
            body_s=30,
            unfinished_max=unfinished,
            unfinished_per_address_max=per_address,
            connections_max=connections,
        )
    )


def test_headers_have_their_time_and_more_bytes_buy_none() -> None:
    one = waiting()
    one.on_begin("a", HONEST, 0.0)
    one.on_begin("b", HONEST, 5.0)
    assert one.overdue(9.9) == []
    assert one.overdue(10.0) == [RefusedConnection("a", Why.HEAD_SLOW)]
    assert one.overdue(15.0) == [
        RefusedConnection("a", Why.HEAD_SLOW),
        RefusedConnection("b", Why.HEAD_SLOW),
    ]


def test_a_body_has_its_own_time_from_the_end_of_the_headers() -> None:
    one = waiting()
    one.on_begin("a", HONEST, 0.0)
    one.head_whole("a", 9.0)
    one.head_whole("a", 20.0)  # said after each piece of the body; only the first counts
    assert one.overdue(38.9) == []
    assert one.overdue(39.0) == [RefusedConnection("a", Why.BODY_SLOW)]


def test_what_is_whole_is_not_waited_for() -> None:
    one = waiting()
    one.on_begin("a", HONEST, 0.0)
    one.whole("a")
    one.on_begin("b", HONEST, 0.0)
    one.head_whole("b", 1.0)
    one.whole("b")
    assert (one.overdue(1e9), one.requests) == ([], 0)


def test_beyond_its_number_an_address_loses_its_oldest_and_no_other_does() -> None:
    one = waiting(per_address=2)
    assert one.on_begin("h", HONEST, 0.0) is None
    assert one.on_begin("a", STRANGER, 1.0) is None
    assert one.on_begin("b", STRANGER, 2.0) is None
    one.head_whole("a", 2.5)  # it is the oldest all the same
    assert one.on_begin("c", STRANGER, 3.0) == RefusedConnection("a", Why.ADDRESS_FULL)


def test_beyond_the_number_of_all_the_address_with_the_most_loses_its_oldest() -> None:
    one = waiting(unfinished=3)
    one.on_begin("h", HONEST, 0.0)
    one.on_begin("a", STRANGER, 1.0)
    one.on_begin("b", STRANGER, 2.0)
    assert one.on_begin("i", HONEST, 3.0) == RefusedConnection("a", Why.FULL)


def test_idle_connections_make_room_before_half_requests_do() -> None:
    one = waiting(connections=3)
    for name in ("idle", "half", "busy"):
        one.on_open(name, HONEST)
    one.busy("half")
    one.on_begin("half", HONEST, 0.0)
    one.busy("busy")
    assert one.on_open("new", HONEST) == RefusedConnection("idle", Why.CONNECTIONS)
    one.on_close("idle")
    one.busy("new")
    assert one.on_open("newer", HONEST) == RefusedConnection("half", Why.CONNECTIONS)


def test_a_connection_is_refused_when_all_others_are_being_answered() -> None:
    one = waiting(connections=1)
    one.on_open("busy", HONEST)
    one.busy("busy")
    assert one.on_open("new", STRANGER) == RefusedConnection("new", Why.CONNECTIONS)


def test_of_idle_connections_the_one_that_is_idle_the_longest_goes() -> None:
    one = waiting(connections=2)
    one.on_open("a", HONEST)
    one.on_open("b", HONEST)
    one.busy("a")
    one.idle("a")
    assert one.on_open("c", HONEST) == RefusedConnection("b", Why.CONNECTIONS)


def test_connections_that_come_together_each_push_out_another() -> None:
    """Whoever was told to go is still there for a moment, and makes room only once."""
    one = waiting(connections=3)
    for name in ("a", "b", "half"):
        one.on_open(name, STRANGER)
    one.busy("half")
    one.on_begin("half", STRANGER, 0.0)
    assert one.on_open("c", STRANGER) == RefusedConnection("a", Why.CONNECTIONS)
    one.idle("a")  # it lingers, so that its reason is read
    gone = [one.on_open(name, STRANGER) for name in ("d", "e")]
    assert gone == [
        RefusedConnection("b", Why.CONNECTIONS),
        RefusedConnection("c", Why.CONNECTIONS),
    ]


def test_one_network_of_ipv6_is_one_address() -> None:
    assert address_of("2001:db8:1:2:3::1") == address_of("2001:db8:1:2:ffff::9")
    assert address_of("2001:db8:1:2::1") != address_of("2001:db8:1:3::1")
    assert address_of("fe80::1%eth0") == address_of("fe80::2")
    assert address_of("::ffff:10.0.0.1") == address_of("10.0.0.1") == "10.0.0.1"
    assert address_of("10.0.0.1") != address_of("10.0.0.2")
    assert address_of("") == ""


def test_connections_leave_descriptors_for_everything_else() -> None:
    assert connections_within(16_384, descriptors=1024) == 768
    assert connections_within(16_384, descriptors=200) == 136
    assert connections_within(16_384, descriptors=1 << 20) == 16_384
    assert connections_within(16_384, descriptors=10) == 1


@settings(max_examples=200, deadline=None)
@given(st.lists(st.tuples(st.sampled_from("obhwc"), st.integers(0, 9)), max_size=80))
def test_no_number_is_ever_exceeded_when_refusals_are_carried_out(
    steps: list[tuple[str, int]],
) -> None:
    """The oracle is a plain list of who is there."""
    one = waiting(unfinished=5, per_address=3, connections=4)
    there: dict[int, str] = {}
    halves: list[int] = []

    def carried_out(refused: RefusedConnection | None) -> None:
        if refused is not None:
            who = refused.who
            assert isinstance(who, int)
            one.on_close(who)
            there.pop(who, None)
            if who in halves:
                halves.remove(who)

    for now, (step, number) in enumerate(steps):
        address = f"10.0.0.{number % 3}"
        if step == "o" and number not in there:
            there[number] = address
            carried_out(one.on_open(number, address))
        elif step == "b" and number in there and number not in halves:
            one.busy(number)
            halves.append(number)
            carried_out(one.on_begin(number, address, float(now)))
        elif step == "h":
            one.head_whole(number, float(now))
        elif step == "w" and number in halves:
            one.whole(number)
            halves.remove(number)
            one.idle(number)
        elif step == "c" and number in there:
            carried_out(RefusedConnection(number, Why.FULL))
        assert one.connections == len(there) <= 4
        assert one.requests == len(halves) <= 5
        assert all(sum(there[h] == f"10.0.0.{n}" for h in halves) <= 3 for n in range(3))
    late = {refused.who for refused in one.overdue(1e9)}
    assert late == set(halves)
