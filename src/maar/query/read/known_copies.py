"""Which blocks are known to have no profile in common, by a look at all of their ids."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Hashable, Sequence

from maar.query.decide.totals import share_words
from maar.query.read.sources import Source

KEPT_MAX = 1024  # answers, of a few hundred bytes each


class KnownCopies:
    """Blocks never change, so that an answer about some of them stays right."""

    def __init__(self) -> None:
        self._known: OrderedDict[tuple[Hashable, ...], bool] = OrderedDict()
        self._lock = threading.Lock()

    def among(self, sources: Sequence[Source]) -> bool:
        """Whether two of some parts may have the same profile; False is certain."""
        key = tuple(source.key for source in sources)
        if None in key:  # level 0
            return share_words([source.totals.ids for source in sources])
        with self._lock:
            if key in self._known:
                self._known.move_to_end(key)
                return self._known[key]
        found = share_words([source.totals.ids for source in sources])
        with self._lock:
            self._known[key] = found
            while len(self._known) > KEPT_MAX:
                self._known.popitem(last=False)
        return found
