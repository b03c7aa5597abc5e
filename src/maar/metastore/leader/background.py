"""What the leader's background tasks share: the leader that they serve, and their own threads."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Protocol, TypeVar

from maar.metastore.leader.inbox import Prepare
from maar.metastore.state.state import MetaState
from maar.model.errors import MaarError, NotLeading
from maar.model.time import LeaseTime

Append = Callable[[Prepare], Awaitable[int]]  # through the leader's loop; returns the new index
Item = TypeVar("Item")
Made = TypeVar("Made")


class Led(Protocol):
    """What a background task needs of a leader."""

    @property
    def state(self) -> MetaState: ...

    def now(self) -> LeaseTime: ...

    def confirm(self) -> None:
        """Raise NotLeading unless it certainly leads; called before the store is changed."""
        ...


class Threads:
    """Threads of its own: a remote store answers slowly and would block the shared threads."""

    def __init__(self, number: int, name: str) -> None:
        self._pool = ThreadPoolExecutor(number, thread_name_prefix=name)
        self._closed = False

    def close(self) -> None:
        self._closed = True
        self._pool.shutdown(wait=False, cancel_futures=True)

    async def do(self, act: Callable[[], Made]) -> Made:
        if self._closed:
            raise NotLeading("the leader's term ended before this was done; ask again")
        return await asyncio.get_running_loop().run_in_executor(self._pool, act)

    async def each(
        self, act: Callable[[Item], Made], items: Iterable[Item]
    ) -> list[Made | MaarError]:
        """The outcome of each; one that fails does not stop the others."""

        def act_or_error(item: Item) -> Made | MaarError:
            try:
                return act(item)
            except MaarError as error:
                return error

        return list(await asyncio.gather(*(self.do(partial(act_or_error, item)) for item in items)))
