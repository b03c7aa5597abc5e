"""Why an answer does not fit into 64 bits, and which narrower query does. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from maar.model.errors import InvalidInput
from maar.model.labels import Labels
from maar.ports.reader.query import Matcher
from maar.query.decide.exact import ANSWER_MAX

NAMED_MAX = 20  # profiles that are looked at; when more are to blame, it is not the profiles
SHOWN_MAX = 5  # errors travel in a header, and the selector comes last


@dataclass(frozen=True, slots=True)
class Heavy:
    """A profile with large values."""

    profile: str
    service: str
    time: str
    labels: Labels
    weight: int  # the sum of its absolute values


def overflow(
    heaviest: Sequence[Heavy],
    *,
    weight: int,
    series: Iterable[Labels],
    matchers: Sequence[Matcher],
) -> InvalidInput:
    """`heaviest` come first to last, `weight` is of all profiles, `series` are those asked for."""
    blamed = _culprits(heaviest, weight)
    said = "values of the profiles asked for add up to more than 2^63-1, which no answer can hold"
    if not blamed:
        return _refusal(
            f"{said}, and no {NAMED_MAX} of them alone are too large: ask for a shorter time range "
            "or for fewer series"
        )
    way = "ask for a time range without them"
    if without := _excluding({heavy.labels for heavy in blamed}, set(series)):
        way += f", or leave them out with the selector {selector_text([*matchers, *without])}"
    return _refusal(f"{said}. Too large are {_name_profiles(blamed)}. To get an answer, {way}")


def selector_text(matchers: Iterable[Matcher]) -> str:
    """As people write it."""
    return "{" + ", ".join(f"{m.name}{m.op}{_quote(m.value)}" for m in matchers) + "}"


def _culprits(heaviest: Sequence[Heavy], weight: int) -> Sequence[Heavy]:
    """The fewest without which everything else fits; none when those given do not suffice."""
    for number, heavy in enumerate(heaviest, 1):
        weight -= heavy.weight
        if weight <= ANSWER_MAX:
            return heaviest[:number]
    return ()


def _name_profiles(blamed: Sequence[Heavy]) -> str:
    """A profile has several series by labels of its samples, and is named once."""
    names = list(
        dict.fromkeys(f"{heavy.profile} of {heavy.service} at {heavy.time}" for heavy in blamed)
    )
    more = [f"{len(names) - SHOWN_MAX} more"] if len(names) > SHOWN_MAX else []
    *others, last = [*names[:SHOWN_MAX], *more]
    return f"{', '.join(others)} and {last}" if others else last


def _excluding(blamed: set[Labels], series: set[Labels]) -> list[Matcher]:
    """Conditions that no blamed series meets and as many others as possible do; maybe none."""
    others = series - blamed
    chosen: list[Matcher] = []
    for labels in sorted(blamed):
        if any((m.name, m.value) in labels for m in chosen):
            continue
        pairs = [pair for pair in labels if not pair[0].startswith("__")]
        best = min(pairs, key=lambda pair: (sum(pair in other for other in others), pair))
        others = {other for other in others if best not in other}
        chosen.append(Matcher(best[0], "!=", best[1]))
    return chosen if others else []


def _quote(value: str) -> str:
    escaped = value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    return f'"{escaped}"'


def _refusal(message: str) -> InvalidInput:
    return InvalidInput(message, reason="overflow")
