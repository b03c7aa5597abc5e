"""Profile types by the short names that people use: cpu, inuse_space, goroutines, mutex."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator

from maar.cli.output.failure import EXIT_USAGE, CommandFailed

_PARTS = 5  # name:sample_type:sample_unit:period_type:period_unit

# The default value of a profile that has several, unless one of them is named.
_USUAL = {"process_cpu": "cpu", "memory": "inuse_space", "mutex": "delay", "block": "delay"}


def is_short(asked: str) -> bool:
    return asked.count(":") < _PARTS - 1


def full_type(asked: str, there: Collection[str]) -> str:
    """The existing type that a short name means.

    A value's name takes precedence over a profile's, and both over other spellings.
    """
    if not is_short(asked):
        return asked
    for means in _readings(asked):
        found = sorted(filter(means, there))
        if len(found) == 1:
            return found[0]
        if found:
            raise CommandFailed(
                f"--type {asked} may mean {len(found)} profile types; say one of "
                f"{', '.join(found)}",
                EXIT_USAGE,
            )
    if not there:
        raise CommandFailed(f"there are no profiles in this time range, so none of type {asked!r}")
    raise CommandFailed(
        f"no profile type here is called {asked!r}; there are {', '.join(sorted(there))}"
    )


def _readings(asked: str) -> Iterator[Callable[[str], bool]]:
    yield lambda full: _value(full) == asked
    yield lambda full: _name(full) == asked and _value(full) == _USUAL.get(asked)
    yield lambda full: _name(full) == asked
    yield lambda full: full.startswith(f"{asked}:")
    one = asked.removesuffix("s")  # goroutine, goroutines
    yield lambda full: one in (_value(full).removesuffix("s"), _name(full).removesuffix("s"))


def _name(full: str) -> str:
    return full.partition(":")[0]


def _value(full: str) -> str:
    return full.partition(":")[2].partition(":")[0]
