"""Tenants take turns, whoever comes first and however many they are."""

from __future__ import annotations

from collections import Counter, deque

import pytest
from hypothesis import given
from hypothesis import strategies as st

from maar.model.errors import Overloaded, TooLarge
from maar.model.ids import TenantId
from maar.query.decide.budget import ROWS, AnswerBudget
from maar.query.decide.turns import NoTurn, TurnLimits, Turns

A, B, C = map(TenantId, "abc")


def turns(slots: int = 4, *, of_one: int = 0, waiting: int = 100, mine: int = 100) -> Turns[str]:
    return Turns(TurnLimits(slots=slots, tenant_slots=of_one, waiting=waiting, tenant_waiting=mine))


def test_one_tenant_leaves_a_slot_for_the_next() -> None:
    room = turns(4)
    assert [room.ask(A, f"a{n}") for n in range(5)] == [0, 1, 2, None, None]
    assert room.waiting == 2
    assert room.ask(B, "b0") == 3, "at once, whatever the other one asks for"


@pytest.mark.parametrize(("slots", "of_one", "held"), [(1, 0, 1), (2, 0, 1), (4, 4, 4), (4, 9, 4)])
def test_how_many_one_may_hold(slots: int, of_one: int, held: int) -> None:
    room = turns(slots, of_one=of_one)
    assert sum(room.ask(A, f"a{n}") is not None for n in range(9)) == held


def test_free_slots_go_round_the_tenants() -> None:
    room = turns(2, of_one=2)
    for waiter in ("a0", "a1", "a2", "a3", "a4"):
        room.ask(A, waiter)
    for waiter in ("b0", "b1"):
        room.ask(B, waiter)
    room.ask(C, "c0")
    served = [room.free(0)[0] for _ in range(6)]
    assert served == [(w, 0) for w in ("a2", "b0", "c0", "a3", "b1", "a4")]
    assert room.waiting == 0
    assert room.free(0) == []


def test_a_slot_stays_free_for_others_while_one_waits_for_more() -> None:
    room = turns(3)
    for n in range(4):
        room.ask(A, f"a{n}")  # two at work, two wait
    assert room.ask(B, "b0") == 2
    assert room.free(2) == [], "it is not for the tenant that has all others"
    assert room.free(0) == [("a2", 0)]


def test_who_waits_is_served_before_who_comes_later() -> None:
    room = turns(2, of_one=1)
    room.ask(A, "a0")
    room.ask(A, "a1")
    room.leave(A, "a1")
    assert room.waiting == 0
    room.ask(A, "a2")
    assert room.free(0) == [("a2", 0)], "and who left is forgotten"


def test_a_full_queue_refuses_its_own_tenant_only() -> None:
    room = turns(1, mine=2)
    for n in range(3):
        room.ask(A, f"a{n}")
    with pytest.raises(NoTurn, match="queries of tenant a are running and 2 wait") as refused:
        room.ask(A, "a3")
    assert isinstance(refused.value, Overloaded)
    assert refused.value.reason == "tenant_waiting"
    assert refused.value.retry_after_s
    assert room.ask(B, "b0") is None
    assert room.free(0) == [("a1", 0)]
    assert room.free(0) == [("b0", 0)], "its turn comes before the rest of the crowd"


def test_all_queues_together_are_bounded() -> None:
    room = turns(1, waiting=2)
    room.ask(A, "a0")
    room.ask(A, "a1")
    room.ask(B, "b0")
    with pytest.raises(NoTurn, match="2 queries of 2 tenants wait"):
        room.ask(C, "c0")


@given(
    st.integers(1, 5),
    st.integers(0, 5),
    st.lists(
        st.tuples(st.sampled_from(["ask", "free", "leave"]), st.integers(0, 3), st.integers(0, 9)),
        max_size=60,
    ),
)
def test_whatever_happens_slots_are_held_once_and_never_idle_for_nothing(
    slots: int, of_one: int, steps: list[tuple[str, int, int]]
) -> None:
    """Against a model that is only lists."""
    room = turns(slots, of_one=of_one)
    most = max(1, min(of_one or slots - 1, slots))
    held: dict[int, str] = {}
    waiting: dict[str, deque[str]] = {}
    for number, (what, who, which) in enumerate(steps):
        tenant = TenantId("abcd"[who])
        if what == "ask":
            waiter = f"{tenant}{number}"
            slot = room.ask(tenant, waiter)
            if slot is None:
                waiting.setdefault(tenant, deque()).append(waiter)
            else:
                assert slot not in held
                held[slot] = tenant
        elif what == "free" and held:
            slot = sorted(held)[which % len(held)]
            del held[slot]
            for waiter, given_slot in room.free(slot):
                assert waiting[waiter[0]].popleft() == waiter, "first come, first served"
                assert given_slot not in held
                held[given_slot] = waiter[0]
        elif what == "leave" and waiting.get(tenant):
            room.leave(tenant, waiting[tenant].pop())
        counts = Counter(held.values())
        assert all(count <= most for count in counts.values())
        assert room.waiting == sum(map(len, waiting.values()))
        if len(held) < slots:
            assert all(counts[name] >= most for name, queue in waiting.items() if queue)


def test_a_budget_is_for_all_that_is_held() -> None:
    budget = AnswerBudget(100)
    budget.take(60, ROWS)
    budget.take(40, ROWS)
    with pytest.raises(TooLarge, match="100 bytes of memory"):
        budget.take(1, ROWS)
    assert budget.taken == 101
