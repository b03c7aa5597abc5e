"""Which blocks are known to have no profile in common, by a look at all of their ids."""

from __future__ import annotations

from collections.abc import Sequence

from maar.query.decide.totals import share_words
from maar.query.read.part_cache import PartCache, Weighed
from maar.query.read.sources import Source

KEY_BYTES = 250  # of each of the blocks that an answer is about


class KnownCopies:
    """Blocks never change, so that an answer about some of them stays right."""

    def __init__(self, cache: PartCache) -> None:
        self._cache = cache

    def among(self, sources: Sequence[Source]) -> bool:
        """Whether two of some parts may have the same profile; False is certain."""
        key = tuple(source.key for source in sources)
        if None in key:  # level 0
            return _share(sources)
        known = self._cache.get(
            ("copies", key), lambda: Weighed(_share(sources), KEY_BYTES * len(key))
        )
        found: bool = known.what
        return found


def _share(sources: Sequence[Source]) -> bool:
    return share_words([source.totals.ids for source in sources])
