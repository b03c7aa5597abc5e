"""Short names of profile types: which one is meant, given those that there are."""

from __future__ import annotations

import pytest

from maar.cli.input.type_names import full_type
from maar.cli.output.failure import EXIT_REFUSED, EXIT_USAGE, CommandFailed

CPU = "process_cpu:cpu:nanoseconds:cpu:nanoseconds"
TICKS = "process_cpu:samples:count:cpu:nanoseconds"
WALL = "wall:wall:nanoseconds:wall:nanoseconds"
ALLOCATED = "memory:alloc_space:bytes:space:bytes"
IN_USE = "memory:inuse_space:bytes:space:bytes"
OBJECTS = "memory:inuse_objects:count:space:bytes"
GOROUTINES = "goroutines:goroutine:count:goroutine:count"
LOCKED = "mutex:delay:nanoseconds:contentions:count"
LOCKS = "mutex:contentions:count:contentions:count"
BLOCKED = "block:delay:nanoseconds:contentions:count"
BLOCKS = "block:contentions:count:contentions:count"
FLEET = (
    *(CPU, TICKS, WALL, ALLOCATED, IN_USE, OBJECTS),
    *(GOROUTINES, LOCKED, LOCKS, BLOCKED, BLOCKS),
)


@pytest.mark.parametrize(
    ("short", "full"),
    [
        ("cpu", CPU),
        ("process_cpu", CPU),
        ("samples", TICKS),
        ("process_cpu:samples", TICKS),
        ("wall", WALL),
        ("alloc_space", ALLOCATED),
        ("inuse_space", IN_USE),
        ("memory", IN_USE),
        ("goroutine", GOROUTINES),
        ("goroutines", GOROUTINES),
        ("mutex", LOCKED),
        ("block", BLOCKED),
        ("mutex:contentions", LOCKS),
        (CPU, CPU),
    ],
)
def test_a_short_name_means_one_type(short: str, full: str) -> None:
    assert full_type(short, FLEET) == full


def test_a_whole_name_is_taken_at_its_word() -> None:
    assert full_type(CPU, ()) == CPU


def test_what_is_ambiguous_is_refused_with_the_choices() -> None:
    with pytest.raises(CommandFailed) as refused:
        full_type("delay", FLEET)
    assert refused.value.exit_code == EXIT_USAGE
    assert LOCKED in str(refused.value)
    assert BLOCKED in str(refused.value)
    assert LOCKS not in str(refused.value)
    assert full_type("delay", (CPU, LOCKED)) == LOCKED, "it depends on what there is"


def test_a_profile_without_its_usual_value_is_still_found_by_its_name() -> None:
    assert full_type("mutex", (CPU, LOCKS)) == LOCKS
    with pytest.raises(CommandFailed):
        full_type("memory", (ALLOCATED, OBJECTS))


def test_what_there_is_not_is_refused_with_what_there_is() -> None:
    with pytest.raises(CommandFailed, match=f"called 'heat'; there are .*{IN_USE}") as refused:
        full_type("heat", FLEET)
    assert refused.value.exit_code == EXIT_REFUSED
    with pytest.raises(CommandFailed, match="no profiles in this time range"):
        full_type("cpu", ())
