"""The names of functions in several parts, as numbers that all of them share. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from maar.query.decide.totals import Flags, Int32

SHAPE = "[go.shape."
# Methods of pointers, closures and the runtime: no other language has names of these forms.
GO_NAME = r"\.\(\*|\.func[0-9]|^runtime\."


@dataclass(frozen=True, slots=True, kw_only=True)
class FrameNames:
    """Sorted, and each once: then siblings of a flame graph are in the order of their numbers."""

    texts: tuple[str, ...]
    rank: tuple[Int32, ...]  # of each part: where in `texts` each of its names is
    of_go: Flags  # whether only Go gives such a name
    size: int  # bytes in memory


def join_names(parts: Sequence[Sequence[str]], *, folded: bool) -> FrameNames:
    """`folded`: without the type parameters of Go's functions."""
    given = [list(map(fold, names)) if folded else names for names in parts]
    texts = tuple(sorted({name for names in given for name in names}))
    place = {name: number for number, name in enumerate(texts)}
    rank = tuple(np.array([place[name] for name in names], np.int32) for names in given)
    text = sum(map(len, texts))
    return FrameNames(
        texts=texts,
        rank=rank,
        of_go=names_of_go(texts),
        size=100 * len(texts) + 2 * text + 4 * sum(map(len, rank)) + 200 * len(rank),
    )


def fold(name: str) -> str:
    """`slices.Sort` for `slices.Sort[go.shape.[]int,go.shape.int]`; a name cut short stays."""
    while (first := name.find(SHAPE)) >= 0:
        depth = 0
        for place in range(first, len(name)):
            depth += (name[place] == "[") - (name[place] == "]")
            if depth == 0:
                name = name[:first] + name[place + 1 :]
                break
        else:
            return name
    return name


def names_of_go(names: Sequence[str]) -> Flags:
    flags = pc.match_substring_regex(pa.array(names, pa.string()), GO_NAME)
    return np.asarray(flags.to_numpy(zero_copy_only=False), np.bool_)
