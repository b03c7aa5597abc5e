"""A file may be mapped in parts: which of them holds an address, however many there are."""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Sequence
from heapq import heappop, heappush

from maar.pprof.plain import PlainMapping

MappedFile = tuple[str, str]  # its name and build id


class MappedFiles:
    """The mappings of a profile, each file's by itself."""

    def __init__(self, mappings: Sequence[PlainMapping]) -> None:
        parts: dict[MappedFile, list[tuple[int, int, int]]] = defaultdict(list)
        for row, mapping in enumerate(mappings):
            end = mapping.offset + mapping.limit - mapping.start
            parts[mapping.file, mapping.build_id].append((mapping.offset, end, row))
        self._parts = {file: _Parts(some) for file, some in parts.items()}

    def row(self, file: MappedFile, address: int) -> int | None:
        """The first mapping of a file that holds an address within it; the first of all, if none
        does; None without any.
        """
        found = self._parts.get(file)
        return None if found is None else found.row(address)


class _Parts:
    """Where in a file another mapping begins to be the first that holds an address."""

    def __init__(self, parts: Sequence[tuple[int, int, int]]) -> None:
        first = parts[0][2]
        self._starts = [-1, *sorted({place for start, end, _ in parts for place in (start, end)})]
        self._rows = [first]
        coming = sorted(part for part in parts if part[0] < part[1])
        coming.reverse()
        holding: list[tuple[int, int]] = []  # rows, and where each ends
        for place in self._starts[1:]:
            while coming and coming[-1][0] <= place:
                _, end, row = coming.pop()
                heappush(holding, (row, end))
            while holding and holding[0][1] <= place:
                heappop(holding)
            self._rows.append(holding[0][0] if holding else first)

    def row(self, address: int) -> int:
        return self._rows[bisect_right(self._starts, address) - 1]
