"""Small jobs first, and nobody who waits is passed over for ever, however few slots there are."""

from __future__ import annotations

from maar.metastore.decide import shares

ZERO, ONE, TWO, ALONE = 0, 1, 2, 99


def handed_out(count: int, waiting: list[int], *, share: int = 8) -> list[int]:
    passed: dict[int, int] = {}
    given = []
    for _ in range(count):
        line = shares.next_line(passed, waiting, share=share)
        passed = shares.after(passed, waiting, line)
        given.append(line)
    return given


def test_alone_in_waiting_a_line_gets_everything() -> None:
    assert handed_out(20, [TWO]) == [TWO] * 20


def test_of_eight_plans_one_goes_to_each_higher_line_that_waits() -> None:
    given = handed_out(800, [ZERO, ONE, TWO, ALONE])
    for start in range(2, 790):
        assert {ZERO, ONE, TWO, ALONE} == set(given[start : start + 8])
    assert given.count(ZERO) > 800 / 2


def test_the_first_line_gets_the_rest() -> None:
    assert handed_out(16, [ZERO, ONE]) == [*[ZERO] * 7, ONE] * 2


def test_with_more_lines_than_shares_everybody_still_gets_a_turn() -> None:
    given = handed_out(40, [0, 1, 2, 3, 4], share=2)
    assert set(given[-10:]) == {0, 1, 2, 3, 4}
    assert handed_out(9, [0, 1, 2], share=1) == [0, 1, 2] * 3


def test_a_line_that_did_not_wait_has_saved_up_nothing() -> None:
    passed = shares.after({ONE: 6, TWO: 5}, [ZERO, TWO], ZERO)
    assert passed == {ZERO: 0, TWO: 6}
    assert shares.next_line(passed, [ZERO, ONE, TWO], share=8) == ZERO
