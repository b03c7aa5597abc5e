"""What a group of blocks may look like to those who add, merge and view them: the model."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from support.oracles.linearizable import UNANSWERED, Operation


@dataclass(frozen=True, slots=True)
class Added:
    """A block was registered; the answer is whether it is in the index."""

    block: str


@dataclass(frozen=True, slots=True)
class Merged:
    """Blocks were replaced by others; the answer is whether that was accepted."""

    inputs: tuple[str, ...]
    outputs: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Viewed:
    """The answer is the set of blocks that were shown."""


Call: TypeAlias = Added | Merged | Viewed


@dataclass(frozen=True, slots=True)
class Shown:
    """The blocks of a group, and all that ever were."""

    live: frozenset[str] = frozenset()
    seen: frozenset[str] = frozenset()

    def __str__(self) -> str:
        return f"of {len(self.live)} live blocks: {', '.join(sorted(self.live)[-8:])}"


def step(state: Shown, operation: Operation[Call]) -> Shown | None:
    """Sources or their output, never both, never neither; and nothing comes or goes by itself."""
    answer = operation.answer
    match operation.call:
        case Viewed():
            return state if answer is UNANSWERED or answer == state.live else None
        case Added(block):
            if answer is False or block in state.seen:
                return state
            return Shown(state.live | {block}, state.seen | {block})
        case Merged(inputs, outputs):
            if answer is False or state.seen.issuperset(outputs):
                return state
            if not state.live.issuperset(inputs):
                return state if answer is UNANSWERED else None
            made = frozenset(outputs)
            return Shown(state.live - frozenset(inputs) | made, state.seen | made)
