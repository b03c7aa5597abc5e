"""The checker is trusted because it agrees with trying every order, and catches planted lies."""

from __future__ import annotations

from itertools import permutations
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from support.oracles.block_groups import Added, Call, Merged, Shown, Viewed, step
from support.oracles.linearizable import (
    UNANSWERED,
    Operation,
    Undecided,
    running_backwards,
    violations,
)

EMPTY = Shown()


def op(call: Call, answer: object, called: int, returned: int, key: str = "k") -> Operation[Call]:
    return Operation(key, call, answer, called, returned)


def added(block: str, called: int, returned: int, answer: object = True) -> Operation[Call]:
    return op(Added(block), answer, called, returned)


def viewed(blocks: str, called: int, returned: int) -> Operation[Call]:
    return op(Viewed(), frozenset(blocks), called, returned)


def merged(
    inputs: str, output: str, called: int, returned: int, answer: object = True
) -> Operation[Call]:
    return op(Merged(tuple(inputs), tuple(output)), answer, called, returned)


def linearizable(*history: Operation[Call]) -> bool:
    return not violations(history, EMPTY, step)


# honest histories


def test_an_empty_history_is_linearizable() -> None:
    assert linearizable()


def test_of_calls_that_overlap_either_may_be_first() -> None:
    assert linearizable(added("a", 0, 10), viewed("a", 5, 6))
    assert linearizable(added("a", 0, 10), viewed("", 5, 6))
    assert linearizable(added("a", 0, 10), viewed("", 5, 6), viewed("a", 7, 8))


def test_a_call_without_an_answer_may_have_done_its_work_late_or_never() -> None:
    lost = added("a", 0, 1, UNANSWERED)
    assert linearizable(lost, viewed("", 10, 11))
    assert linearizable(lost, viewed("a", 10, 11))
    assert linearizable(lost, viewed("", 10, 11), viewed("a", 12, 13))


def test_a_merge_shows_the_sources_or_the_output() -> None:
    start = added("a", 0, 1), added("b", 0, 1)
    assert linearizable(*start, merged("ab", "c", 2, 9), viewed("ab", 3, 4), viewed("c", 5, 6))
    assert linearizable(*start, merged("ab", "c", 2, 3), merged("ab", "c", 4, 5), viewed("c", 6, 7))
    assert linearizable(*start, merged("ab", "c", 2, 3, False), viewed("ab", 4, 5))


def test_adding_what_was_merged_long_ago_brings_nothing_back() -> None:
    story = added("a", 0, 1), merged("a", "c", 2, 3), added("a", 4, 5)
    assert linearizable(*story, viewed("c", 6, 7))
    assert not linearizable(*story, viewed("ac", 6, 7))


# planted lies


def test_a_lost_acknowledgement_is_found() -> None:
    assert not linearizable(added("a", 0, 1), viewed("", 2, 3))


def test_a_stale_read_is_found() -> None:
    assert not linearizable(added("a", 0, 9), viewed("a", 1, 2), viewed("", 3, 4))


def test_what_an_unanswered_call_did_cannot_go_again() -> None:
    lost = added("a", 0, 1, UNANSWERED)
    assert not linearizable(lost, viewed("a", 2, 3), viewed("", 4, 5))


def test_two_readers_who_saw_two_orders_are_found() -> None:
    both = added("a", 0, 9), added("b", 0, 9)
    assert linearizable(*both, viewed("a", 1, 2), viewed("ab", 3, 4))
    assert not linearizable(*both, viewed("a", 1, 4), viewed("b", 1, 4))


def test_sources_beside_their_output_are_found() -> None:
    start = added("a", 0, 1), added("b", 0, 1)
    assert not linearizable(*start, merged("ab", "c", 2, 9), viewed("abc", 3, 4))


def test_neither_sources_nor_output_are_found() -> None:
    start = added("a", 0, 1), added("b", 0, 1)
    assert not linearizable(*start, merged("ab", "c", 2, 9), viewed("", 3, 4))


def test_a_refused_merge_that_worked_all_the_same_is_found() -> None:
    assert not linearizable(added("a", 0, 1), merged("a", "c", 2, 3, False), viewed("c", 4, 5))


def test_two_merges_of_the_same_sources_are_found() -> None:
    start = added("a", 0, 1), added("b", 0, 1)
    assert not linearizable(*start, merged("ab", "c", 2, 9), merged("ab", "d", 2, 9))


def test_what_nobody_added_is_found() -> None:
    assert not linearizable(added("a", 0, 1), viewed("az", 2, 3))


def test_objects_are_judged_apart_and_the_guilty_one_is_named() -> None:
    good = op(Added("a"), True, 0, 1, "good"), op(Viewed(), frozenset("a"), 2, 3, "good")
    bad = op(Added("a"), True, 0, 1, "bad"), op(Viewed(), frozenset(), 2, 3, "bad")
    (found,) = violations([*good, *bad], EMPTY, step)
    assert found.key == "bad"
    assert found.placed == 1
    assert "Viewed() → frozenset()" in str(found)


def test_a_search_without_end_is_no_verdict() -> None:
    crowd = [added(f"b{n}", 0, 1000) for n in range(20)]
    with pytest.raises(Undecided, match="too many possible orders"):
        violations([*crowd, viewed("z", 0, 1000)], EMPTY, step, steps_max=1000)


def test_numbers_that_run_backwards_in_real_time_are_found() -> None:
    assert running_backwards([(0, 1, 5), (2, 3, 5), (2, 9, 4), (4, 6, 7)]) != []
    assert running_backwards([(0, 1, 5), (0, 9, 3), (2, 3, 5), (4, 6, 7)]) == []


# against every order there is


def by_trying_all(history: tuple[Operation[Call], ...]) -> bool:
    return any(_in_time(order) and _explains(order) for order in permutations(history))


def _in_time(order: tuple[Operation[Call], ...]) -> bool:
    """Nobody comes after one that was called only after its return."""
    return not any(
        after.answered and after.returned_ns < before.called_ns
        for at, before in enumerate(order)
        for after in order[at + 1 :]
    )


def _explains(order: tuple[Operation[Call], ...]) -> bool:
    state = EMPTY
    for operation in order:
        following = step(state, operation)
        if following is None:
            return False
        state = following
    return True


BLOCKS = "abc"
CALLS: st.SearchStrategy[tuple[Call, object]] = st.one_of(
    st.tuples(st.sampled_from(BLOCKS).map(Added), st.sampled_from([True, UNANSWERED])),
    st.tuples(st.just(Viewed()), st.frozensets(st.sampled_from("abcx"))),
    st.tuples(
        st.sampled_from([Merged(("a",), ("x",)), Merged(("a", "b"), ("x",))]),
        st.sampled_from([True, False, UNANSWERED]),
    ),
)
TIMES = st.tuples(st.integers(0, 12), st.integers(0, 5))


@given(st.lists(st.tuples(CALLS, TIMES), max_size=5))
def test_the_search_agrees_with_trying_every_order(
    drawn: list[tuple[tuple[Call, object], tuple[int, int]]],
) -> None:
    history = tuple(
        op(call, answer, called, called + took) for (call, answer), (called, took) in drawn
    )
    assert linearizable(*history) == by_trying_all(history)


@given(st.integers(0, 2**32))
def test_what_one_honest_object_answered_is_linearizable_and_a_forgotten_block_is_not(
    seed: int,
) -> None:
    random = Random(seed)
    history = _honest(random, count=60)
    assert linearizable(*history)
    views = [at for at, one in enumerate(history) if one.answer not in (True, frozenset())]
    if views:
        at = random.choice(views)
        lie = frozenset(sorted(history[at].answer)[1:])  # type: ignore[call-overload]
        told = op(Viewed(), lie, history[at].called_ns, history[at].called_ns)
        acknowledged = {
            one.call.block
            for one in history
            if isinstance(one.call, Added) and one.returned_ns < told.called_ns
        }
        if not lie.issuperset(acknowledged):
            assert not linearizable(*history, told)


def _honest(random: Random, count: int) -> list[Operation[Call]]:
    """Calls around the moments at which one object really answered them."""
    live: frozenset[str] = frozenset()
    history = []
    for moment in range(0, 10 * count, 10):
        called, returned = moment - random.randrange(40), moment + random.randrange(40)
        if random.random() < 0.5:
            live |= {f"b{moment}"}
            history.append(added(f"b{moment}", called, returned))
        else:
            history.append(op(Viewed(), live, called, returned))
    return history
