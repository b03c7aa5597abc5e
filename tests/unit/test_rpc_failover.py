"""Which replica a client asks next, without any network."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from maar.adapters.rpc.failover import (
    LEARNED_MAX,
    PAUSE_MAX_S,
    SUSPECT_S,
    Replicas,
    Search,
    passes,
    share_s,
)
from maar.model.addresses import addresses_in
from maar.model.errors import (
    NotLeading,
    OutcomeUnknown,
    Overloaded,
    Retryable,
    StoreFull,
    Unavailable,
    Unreachable,
)

A, B, C = "a:1", "b:1", "c:1"
ALL = f"{A},{B},{C}"

Answer = Callable[[str], Retryable | None]


@dataclass
class World:
    """Replicas that answer by a rule; time passes only by pauses, and by silence."""

    replicas: Replicas
    answer: Answer
    silence_s: float = 1.0
    now: float = 100.0
    asked: list[str] = field(default_factory=list)

    def call(self, *, leads: bool = True, tries: int = 50) -> str:
        search = Search(self.replicas, leads=leads)
        for _ in range(tries):
            address = search.next(self.now)
            self.asked.append(address)
            error = self.answer(address)
            if error is None:
                self.replicas.trust(address, leads=leads)
                return address
            self.now += self.silence_s if isinstance(error, Unreachable) else 0.0
            self.now += search.note_refusal(address, error, self.now)
            assert passes(error, alone=self.replicas.alone), error
        raise AssertionError(f"nobody answered: {self.asked}")


def led_by(leader: str, *silent: str) -> Answer:
    def answer(address: str) -> Retryable | None:
        if address in silent:
            return Unreachable("no word")
        return None if address == leader else NotLeading("not me", leader=leader)

    return answer


def test_addresses_are_listed_with_commas() -> None:
    assert addresses_in(" a:1, b:1,,a:1 ") == ("a:1", "b:1")
    assert addresses_in("unix:/run/m.sock") == ("unix:/run/m.sock",)
    assert addresses_in("") == ()


def test_a_client_is_sent_to_the_leader_and_remembers_it() -> None:
    world = World(Replicas(ALL), led_by(C))
    assert world.call() == C
    assert world.asked == [A, C]
    world.call()
    assert world.asked == [A, C, C]


def test_a_leader_that_is_not_in_the_settings_is_found_and_left_again() -> None:
    world = World(Replicas(A), led_by("far:1"))
    assert world.call() == "far:1"
    world.answer = led_by(A, "far:1")
    assert world.call() == A
    assert world.asked == [A, "far:1", "far:1", A]


def test_after_the_leaders_death_the_others_are_asked_until_one_of_them_leads() -> None:
    world = World(Replicas(ALL), led_by(A))
    world.call()
    world.asked.clear()
    began = world.now

    def later(address: str) -> Retryable | None:
        elected = world.now - began > 5.0
        return led_by(B if elected else A, A)(address)

    world.answer = later
    assert world.call() == B
    assert world.now - began < 5.0 + 1.0 + PAUSE_MAX_S  # at most one silence too many
    assert world.asked.count(A) <= 4, "the dead one is asked again and again"


def test_a_silent_replica_is_not_asked_while_another_answers_even_if_it_is_named() -> None:
    world = World(Replicas(ALL), led_by(A, A))
    world.replicas.suspect(A, world.now)
    search = Search(world.replicas, leads=True)
    asked = []
    until = world.now + SUSPECT_S
    while world.now < until:
        address = search.next(world.now)
        asked.append(address)
        world.now += search.note_refusal(address, NotLeading("", leader=A), world.now) + 0.01
    assert set(asked) == {B, C}
    search.note_refusal(B, NotLeading("", leader=A), world.now)
    assert search.next(world.now) == A, "it may have come back"


def test_two_that_name_each_other_are_asked_in_turn_with_pauses() -> None:
    def confused(address: str) -> Retryable | None:
        return NotLeading("", leader=B if address == A else A)

    search = Search(Replicas(f"{A},{B}"), leads=True)
    pauses = []
    for _ in range(20):
        address = search.next(0.0)
        error = confused(address)
        assert error is not None
        pauses.append(search.note_refusal(address, error, 0.0))
    assert sum(1 for pause in pauses if pause) == 10, "a round has one pause"
    assert max(pauses) == PAUSE_MAX_S


def test_reads_go_to_the_first_that_answers_and_stay_there() -> None:
    world = World(Replicas(ALL), led_by(A, A))
    world.answer = lambda address: Unreachable("") if address == A else None
    assert world.call(leads=False) == B
    assert world.call(leads=False) == B
    assert world.asked == [A, B, B]
    world.answer = lambda address: Unavailable("behind") if address == B else None
    assert world.call(leads=False) in (A, C)


def test_a_read_that_only_a_leader_can_help_with_waits_for_one() -> None:
    answers = iter([NotLeading("no leader is known")] * 7)
    world = World(Replicas(ALL), lambda _: next(answers, None))
    world.call(leads=False)
    assert len(world.asked) == 8
    assert world.now > 100.0


def test_leaders_that_were_named_once_are_forgotten_in_time() -> None:
    replicas = Replicas(A)
    for number in range(100):
        replicas.learn(f"pod-{number}:1")
    assert len(replicas.addresses()) == 1 + LEARNED_MAX
    assert replicas.leader == "pod-99:1"
    assert {A, "pod-99:1"} <= replicas.addresses()


@pytest.mark.parametrize(
    ("error", "alone", "others"),
    [
        (NotLeading("", leader=B), True, True),
        (NotLeading(""), True, True),
        (Unreachable(""), False, True),
        (Unavailable(""), False, True),
        (OutcomeUnknown(""), False, True),
        (Overloaded(""), False, False),
        (StoreFull(""), False, False),
    ],
)
def test_what_another_try_may_mend(error: Retryable, alone: bool, others: bool) -> None:
    assert passes(error, alone=True) is alone
    assert passes(error, alone=False) is others


def test_a_try_has_a_share_of_the_time_unless_there_is_nobody_else() -> None:
    assert share_s(10.0, alone=True) == 10.0
    assert share_s(10.0, alone=False) == 5.0
    assert share_s(1.5, alone=False) == 1.0
    assert share_s(0.3, alone=False) == 0.3


@given(
    leaders=st.lists(st.sampled_from([A, B, C, "d:1"]), min_size=1, max_size=5),
    silent=st.sets(st.sampled_from([A, B, C]), max_size=2),
    hints=st.lists(st.sampled_from(["", A, B, C, "gone:1"]), min_size=12, max_size=12),
    leads=st.booleans(),
)
def test_whatever_was_said_before_a_leader_that_lives_is_found(
    leaders: list[str], silent: set[str], hints: list[str], leads: bool
) -> None:
    """Wrong hints, dead replicas and changes of leader only cost tries."""
    world = World(Replicas(ALL), led_by(A), silence_s=0.1)
    wrong = iter(hints)
    for leader in leaders:
        deaf = (silent | {"gone:1"}) - {leader}
        if deaf >= {A, B, C} - {leader} and leader not in (A, B, C):
            continue  # nobody is left who could name it

        def answer(address: str, leader: str = leader, deaf: set[str] = deaf) -> Retryable | None:
            if address in deaf:
                return Unreachable("")
            if address == leader:
                return None
            return NotLeading("", leader=next(wrong, leader))

        world.answer = answer
        assert world.call(leads=leads) == leader
