"""The names of several parts as numbers, and what is chosen of runs, against the obvious way."""

from __future__ import annotations

from random import Random

import numpy as np
import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from maar.query.decide.frame_names import fold, join_names
from maar.query.decide.run_choice import choose_runs
from maar.query.decide.stack_sums import StackSums, frames_of
from maar.query.decide.totals import hidden_runs, runs_of, totals_of

SECOND_US = 10**6
some_names = st.lists(
    st.sampled_from(["a", "b.F[go.shape.int]", "b.F[go.shape.string]", "b.F", "x.(*T).m", "é"]),
    unique=True,
)


@given(st.lists(some_names, max_size=3))
def test_every_name_keeps_its_text_and_all_are_in_order(parts: list[list[str]]) -> None:
    for folded in (False, True):
        joined = join_names(parts, folded=folded)
        assert list(joined.texts) == sorted(set(joined.texts))
        wanted = [[fold(name) if folded else name for name in names] for names in parts]
        found = [[joined.texts[number] for number in rank] for rank in joined.rank]
        assert found == wanted
        assert [joined.texts[place] for place in np.flatnonzero(joined.of_go)] == (
            ["x.(*T).m"] if any("x.(*T).m" in names for names in parts) else []
        )


def test_names_weigh_what_their_text_does() -> None:
    """They may have 65,535 characters each, and outlive the stacks that they came with."""
    long = ["a" * 60_000, "b" * 60_000]
    assert join_names([long], folded=True).size > sum(map(len, long))


def test_stacks_that_were_seen_are_gathered_with_other_numbers() -> None:
    lists = [["a", "b"], [], ["c"], ["b", "b", "a"]]
    table = pa.table({"stack_id": pa.array([5, 6, 7, 8]), "functions": pa.array(lists)})
    sums = StackSums(frames_of([table]))
    rows = np.array([8, 5, 6, 5], np.int64)
    sums.add(rows, np.array([1, 2, 3, 4]), np.array([0]), np.array([4]))
    length, frame, value = sums.gather(np.array([10, 20, 30], np.int32))
    assert sums.count_frames() == 5
    assert length.tolist() == [2, 0, 3]
    assert frame.tolist() == [10, 20, 20, 20, 10]
    assert value.tolist() == [6, 3, 1]


def test_runs_are_chosen_by_group_time_and_what_was_deleted() -> None:
    random = Random(3)
    rows = sorted(
        (random.choice("ab"), "t", random.randrange(3), random.randrange(20) * SECOND_US, n)
        for n in range(200)
    )
    samples = pa.table(
        {
            "service": pa.array([row[0] for row in rows]),
            "profile_type": pa.array([row[1] for row in rows]),
            "series_id": pa.array([row[2] for row in rows], pa.int64()),
            "time": pa.array([row[3] for row in rows], pa.timestamp("us")),
            "profile_id": pa.array([row[4].to_bytes(16, "big") for row in rows], pa.binary(16)),
            "value": pa.array([1] * len(rows), pa.int64()),
        }
    )
    totals = totals_of([runs_of(samples, first_row=0)])
    for _ in range(100):
        wanted = np.array([random.random() < 0.7 for _ in totals.group_series])
        start, end = sorted(random.choices(range(-1, 22), k=2))
        first = random.randrange(20) * SECOND_US
        masks = random.choice(([], [(random.choice(("a", "")), first, first + 5 * SECOND_US)]))
        runs, groups = choose_runs(
            totals, wanted, start_us=start * SECOND_US, end_us=end * SECOND_US, masks=masks
        )
        flags = wanted[totals.group] & ~hidden_runs(totals, masks)
        flags &= (totals.time >= start * SECOND_US) & (totals.time < end * SECOND_US)
        assert runs.tolist() == np.flatnonzero(flags).tolist()
        assert np.flatnonzero(groups).tolist() == sorted(set(totals.group[runs].tolist()))
