"""Stacks of Go programs: names without type parameters, and the roots that Go has cut off."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from random import Random

import numpy as np
import pytest

from maar.model.errors import TooLarge
from maar.query.decide.budget import AnswerBudget
from maar.query.decide.flamegraph import Stacks
from maar.query.decide.frame_names import fold
from maar.query.decide.go_stacks import frames_max_of, tidy_stacks

HEAP = "memory:inuse_space:bytes:space:bytes"
CPU = "process_cpu:cpu:nanoseconds:cpu:nanoseconds"
Stack = tuple[str, ...]
DEEP = tuple(f"pkg.(*Type).method{n}" for n in range(100))  # of some program, root first

JAVA = tuple(f"java/lang/Class.method{n}" for n in range(40))


@pytest.mark.parametrize(
    ("name", "folded"),
    [
        ("slices.Sort[go.shape.[]int,go.shape.int]", "slices.Sort"),
        ("a/b.(*Tree[go.shape.int]).Next", "a/b.(*Tree).Next"),
        ("x.New[go.shape.struct { A map[string][]int }].func2", "x.New.func2"),
        ("x.F[go.shape.int].G[go.shape.*uint8_0]", "x.F.G"),
        ("x.F[go.shape.[]int", "x.F[go.shape.[]int"),
        ("x.F[go.shape.int].G[go.shape.[", "x.F.G[go.shape.["),
        ("x.F[...]", "x.F[...]"),
        ("operator[]", "operator[]"),
        ("", ""),
    ],
)
def test_type_parameters_are_left_out(name: str, folded: str) -> None:
    assert fold(name) == folded


@pytest.mark.parametrize(
    ("profile_type", "frames"),
    [
        (HEAP, 32),
        ("memory:alloc_objects:count:space:bytes", 32),
        (CPU, 64),
        ("process_cpu:samples:count:cpu:nanoseconds", 64),
        ("mutex:delay:nanoseconds:contentions:count", 0),
        ("block", 0),
    ],
)
def test_go_cuts_stacks_by_type(profile_type: str, frames: int) -> None:
    assert frames_max_of(profile_type) == frames


def test_lost_roots_come_from_another_stack() -> None:
    whole, cut = DEEP[:28], DEEP[4:36]
    assert tidy([whole, cut]) == Counter([whole, DEEP[:36]])


def test_roots_may_be_told_from_stack_to_stack() -> None:
    """The last one and the first one have nothing in common that is near their roots."""
    assert tidy([DEEP[:24], DEEP[6:38], DEEP[12:44], DEEP[20:52]]) == Counter(
        [DEEP[:24], DEEP[:38], DEEP[:44], DEEP[:52]]
    )


def test_as_many_roots_as_some_stack_tells() -> None:
    assert tidy([DEEP[2:30], DEEP[:25], DEEP[8:40]]) == Counter([DEEP[:30], DEEP[:25], DEEP[:40]])


@pytest.mark.parametrize(
    "stacks",
    [
        [DEEP[:28], DEEP[9:41]],  # nine frames further: not told by any other
        [DEEP[:28], DEEP[4:31]],  # 27 frames: Go would have kept the root
        [DEEP[:33], DEEP[4:37]],  # 33 frames: Go has not cut any at 32
        [DEEP[:23], DEEP[4:36]],  # too short to tell
        [DEEP[:28], (*DEEP[4:19], "other", *DEEP[20:36])],  # 15 frames in common
        [("a",) * 32, ("a",) * 28, ("runtime.main", *("a",) * 31)],  # recursion
        [("runtime.a", "b") * 16, ("b", "runtime.a") * 16],
        [JAVA[:28], JAVA[4:36]],
        [(), ("a",)],
        [],
    ],
)
def test_other_stacks_stay(stacks: list[Stack]) -> None:
    assert tidy(stacks) == Counter(stacks)


def test_cpu_time_has_deeper_stacks() -> None:
    stacks = [DEEP[:40], DEEP[4:36], DEEP[7:71]]
    assert tidy(stacks, profile_type=CPU) == Counter([DEEP[:40], DEEP[4:36], DEEP[:71]])
    assert tidy(stacks, profile_type="mutex:delay:nanoseconds:contentions:count") == Counter(stacks)


def test_what_is_not_drawn_tells_nothing_of_what_is() -> None:
    stacks, values = [DEEP[:28], DEEP[4:36]], [0, 5]
    assert tidy(stacks, values=values, drawn=True) == Counter(stacks)
    assert tidy(stacks, values=values, drawn=False) == Counter([DEEP[:28], DEEP[:36]])


def test_instances_of_a_type_are_one_stack() -> None:
    first, second = (("main.main", f"x.F[go.shape.{kind}]", "x.G") for kind in ("int", "[]int"))
    assert tidy([first, second]) == Counter({("main.main", "x.F", "x.G"): 2})
    made = tidy_stacks(
        stacks_of([first, second]), profile_type=HEAP, drawn=True, budget=AnswerBudget(1 << 20)
    )
    assert sorted(made.names) == ["main.main", "x.F", "x.G"]


@pytest.mark.parametrize("seed", range(5))
def test_the_order_of_stacks_and_names_does_not_matter(seed: int) -> None:
    """Programs that share functions: several stacks may tell what one has lost."""
    random = Random(seed)
    programs = [(*DEEP[:3], f"x.(*T).start{n}", *DEEP[4 + n % 2 :]) for n in range(3)]
    stacks = []
    for _ in range(60):
        program, first = random.choice(programs), random.randrange(12)
        stacks.append(program[first : first + random.choice((24, 28, 31, 32))])
    expected = tidy(stacks)
    assert expected != Counter(stacks)
    names = sorted({name for stack in stacks for name in stack})
    for _ in range(3):
        random.shuffle(stacks)
        random.shuffle(names)
        assert tidy(stacks, names=names) == expected


def test_roots_count_as_memory() -> None:
    stacks = stacks_of([DEEP[:28], *[(*DEEP[4:35], f"leaf{n}") for n in range(1000)]])
    with pytest.raises(TooLarge):
        tidy_stacks(stacks, profile_type=HEAP, drawn=True, budget=AnswerBudget(1000))


def tidy(
    stacks: Sequence[Stack],
    *,
    profile_type: str = HEAP,
    values: Sequence[int] | None = None,
    drawn: bool = True,
    names: Sequence[str] | None = None,
) -> Counter[Stack]:
    made = tidy_stacks(
        stacks_of(stacks, values=values, names=names),
        profile_type=profile_type,
        drawn=drawn,
        budget=AnswerBudget(1 << 20),
    )
    assert len(made.offset) == len(stacks) + 1
    return Counter(
        tuple(made.names[code] for code in made.frame[first:end])
        for first, end in zip(made.offset[:-1], made.offset[1:], strict=True)
    )


def stacks_of(
    stacks: Sequence[Stack],
    *,
    values: Sequence[int] | None = None,
    names: Sequence[str] | None = None,
) -> Stacks:
    names = names or sorted({name for stack in stacks for name in stack})
    number = {name: code for code, name in enumerate(names)}
    return Stacks(
        names=names,
        offset=np.cumsum([0, *map(len, stacks)]),
        frame=np.array([number[name] for stack in stacks for name in stack], np.int32),
        value=np.array(values or [1] * len(stacks), np.int64),
    )
