"""Answers of the index that are kept, for as long as it says that they are still right."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Awaitable, Callable

import msgspec

from maar.model.ids import TenantId
from maar.model.time import SECOND_NS, TimeRange
from maar.ports.reader.index import IndexView, ViewRequest
from maar.query.read.part_cache import Weighed

ROUND_NS = 60 * SECOND_NS  # ranges that move with the clock ask the same question for a while
TIME_MAX_NS = (1 << 63) - 1
DATASET_BYTES = 1500  # about what one is in memory, with its types
BLOCK_BYTES = 3000
VIEW_BYTES = 1000

Question = tuple[TenantId, TimeRange, str]


class KnownViews:
    """By question. The index is asked each time, and leaves out the blocks of an answer that is
    still right: a query sees what was acknowledged before it, and nothing that was deleted. The
    least recently used goes first. For the event loop only.
    """

    def __init__(self, bytes_max: int) -> None:
        self.bytes_max = bytes_max
        self.bytes = 0
        self._kept: OrderedDict[Question, Weighed] = OrderedDict()

    async def ask(
        self, call: Callable[[ViewRequest], Awaitable[IndexView]], request: ViewRequest
    ) -> IndexView:
        """The whole answer. Its blocks may also be of a little before and after the range."""
        wide = msgspec.structs.replace(request, range=round_out(request.range))
        question = (wide.tenant, wide.range, wide.service)
        if question in self._kept:
            self._kept.move_to_end(question)
            known: IndexView = self._kept[question].what
            view = await call(msgspec.structs.replace(wide, known=known.stamp))
            if view.stamp == known.stamp:
                return msgspec.structs.replace(known, index=view.index, letters=view.letters)
        else:
            view = await call(wide)
        self._keep(question, view)
        return view

    def _keep(self, question: Question, view: IndexView) -> None:
        if (former := self._kept.pop(question, None)) is not None:
            self.bytes -= former.size
        *_, service = question  # whatever somebody asked for
        size = _size(view) + len(service)
        if not view.stamp or size > self.bytes_max:
            return
        self._kept[question] = Weighed(view, size)
        self.bytes += size
        while self.bytes > self.bytes_max:
            self.bytes -= self._kept.popitem(last=False)[1].size


def round_out(time: TimeRange) -> TimeRange:
    """To whole minutes; what is as good as unbounded stays so."""
    start_ns = time.start_ns // ROUND_NS * ROUND_NS
    end_ns = -(-time.end_ns // ROUND_NS) * ROUND_NS
    return TimeRange(start_ns, end_ns if end_ns <= TIME_MAX_NS else time.end_ns)


def _size(view: IndexView) -> int:
    datasets = sum(len(meta.datasets) for meta in view.blocks)
    return VIEW_BYTES + BLOCK_BYTES * len(view.blocks) + DATASET_BYTES * datasets
