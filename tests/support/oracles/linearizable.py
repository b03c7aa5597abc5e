"""Decides by search whether a history is linearizable: some order explains every answer.

Wing and Gong's search with Lowe's memory: an operation takes effect at one moment between its call
and its return, so it may be put next as long as no other one returned before it was called; what
was put in which set, leading to which state, is never searched twice. Objects that share no
operation are judged by themselves, since a history is linearizable if that of each object is.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final, Generic, TypeVar

STEPS_MAX = 2_000_000
SHOWN = 6


class Unanswered:
    """No answer came: the call may take effect at any later moment, or never."""

    def __repr__(self) -> str:
        return "?"


UNANSWERED: Final = Unanswered()

C = TypeVar("C", bound=Hashable)
S = TypeVar("S", bound=Hashable)


@dataclass(frozen=True, slots=True)
class Operation(Generic[C]):
    """What somebody asked of an object, what came back, and when."""

    key: str
    call: C
    answer: object
    called_ns: int
    returned_ns: int  # without meaning when it is unanswered
    client: str = ""

    @property
    def answered(self) -> bool:
        return self.answer is not UNANSWERED

    def __str__(self) -> str:
        end = f"{self.returned_ns / 1e9:.6f}" if self.answered else "…"
        span = f"[{self.called_ns / 1e9:.6f}, {end}]"
        return f"{span} {self.client or '-'}: {self.call} → {self.answer}"


@dataclass(frozen=True, slots=True)
class Violation:
    """The furthest that any order came, and what none could put next."""

    key: str
    placed: int
    state: object
    last: tuple[str, ...]
    stuck: tuple[str, ...]

    def __str__(self) -> str:
        before = "\n".join(f"    {line}" for line in self.last)
        after = "\n".join(f"    {line}" for line in self.stuck)
        return (
            f"no order explains {self.key}: after {self.placed} operations, the last of them\n"
            f"{before}\n  with the state {self.state}, none of these can come next:\n{after}"
        )


class Undecided(Exception):
    """The search was given up: this is neither a yes nor a no."""


# The state after an operation, or None if it cannot have this answer in this state. An unanswered
# one can always take its effect, whatever that is.
Step = Callable[[S, Operation[C]], S | None]


def violations(
    history: Iterable[Operation[C]], start: S, step: Step[S, C], *, steps_max: int = STEPS_MAX
) -> list[Violation]:
    """What no order explains, object by object; empty for a linearizable history."""
    of_key: dict[str, list[Operation[C]]] = defaultdict(list)
    for operation in history:
        of_key[operation.key].append(operation)
    searches = (_Search(of_key[key], start, step, steps_max) for key in sorted(of_key))
    return [found for search in searches if (found := search.run()) is not None]


@dataclass(slots=True)
class _Frame(Generic[S]):
    """A place in the search: how it came about, and what may come next."""

    state: S
    placed: int  # a bit for each operation
    next: Iterator[int]
    put: int  # the operation that led here; -1 at the start


class _Search(Generic[S, C]):
    """One object's history; answered operations first, by their calls, then the unanswered."""

    def __init__(
        self, history: Sequence[Operation[C]], start: S, step: Step[S, C], steps_max: int
    ) -> None:
        answered = sorted((op for op in history if op.answered), key=lambda op: op.called_ns)
        unanswered = sorted((op for op in history if not op.answered), key=lambda op: op.called_ns)
        self._operations = answered + unanswered
        self._answered = len(answered)
        self._all = (1 << len(answered)) - 1
        self._start = start
        self._step = step
        self._left = steps_max
        self._seen: set[tuple[int, S]] = set()
        self._furthest: tuple[int, S, tuple[int, ...], int] = (0, start, (), 0)

    def run(self) -> Violation | None:
        path = [_Frame(self._start, 0, self._candidates(0), -1)]
        while path:
            here = path[-1]
            if here.placed & self._all == self._all:
                return None
            following = self._following(here)
            if following is None:
                path.pop()
                continue
            path.append(following)
            self._note(path)
        return self._violation()

    def _following(self, here: _Frame[S]) -> _Frame[S] | None:
        for at in here.next:
            if self._left == 0:
                raise Undecided(
                    f"the history of {self._operations[0].key} has too many possible orders; "
                    "record fewer operations at once on one object"
                )
            self._left -= 1
            state = self._step(here.state, self._operations[at])
            if state is None:
                continue
            placed = here.placed | 1 << at
            if (placed, state) not in self._seen:
                self._seen.add((placed, state))
                return _Frame(state, placed, self._candidates(placed), at)
        return None

    def _candidates(self, placed: int) -> Iterator[int]:
        """Whatever was called before the first return of those that are not placed yet."""
        return iter(self._allowed_next(placed))

    def _allowed_next(self, placed: int) -> list[int]:
        answered: list[int] = []
        first_return: int | None = None
        at = _lowest_zero(placed)
        while at < self._answered:
            operation = self._operations[at]
            if first_return is not None and operation.called_ns > first_return:
                break
            if not placed >> at & 1:
                answered.append(at)
                if first_return is None or operation.returned_ns < first_return:
                    first_return = operation.returned_ns
            at += 1
        # Who must come soon is tried first; who need not come at all, last.
        allowed = [at for at in answered if self._operations[at].called_ns <= (first_return or 0)]
        allowed.sort(key=lambda at: self._operations[at].returned_ns)
        for at in range(self._answered, len(self._operations)):
            called_ns = self._operations[at].called_ns
            if not placed >> at & 1 and first_return is not None and called_ns <= first_return:
                allowed.append(at)
        return allowed

    def _note(self, path: list[_Frame[S]]) -> None:
        here = path[-1]
        count = (here.placed & self._all).bit_count()
        if count > self._furthest[0]:
            last = tuple(frame.put for frame in path[-SHOWN:] if frame.put >= 0)
            self._furthest = (count, here.state, last, here.placed)

    def _violation(self) -> Violation:
        count, state, last, placed = self._furthest
        operations = self._operations
        return Violation(
            operations[0].key,
            count,
            state,
            tuple(str(operations[at]) for at in last),
            tuple(str(operations[at]) for at in self._allowed_next(placed)),
        )


def _lowest_zero(bits: int) -> int:
    return (~bits & bits + 1).bit_length() - 1


def running_backwards(stamps: Iterable[tuple[int, int, int]]) -> list[str]:
    """Of (called, returned, number) in real time: numbers that are less than an earlier answer's.

    What numbers the answers (a log's indexes) can only grow from a return to a later call.
    """
    ordered = sorted(stamps)
    returned = sorted((returned_ns, number) for _, returned_ns, number in ordered)
    faults = []
    at, most = 0, -1
    for called_ns, _, number in ordered:
        while at < len(returned) and returned[at][0] < called_ns:
            most = max(most, returned[at][1])
            at += 1
        if number < most:
            faults.append(f"{number} was answered to a call at {called_ns}, after {most} was known")
    return faults
