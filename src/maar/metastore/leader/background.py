"""What the duties of an office work with: the leader that they serve, and threads of their own."""

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

Append = Callable[[Prepare], Awaitable[int]]  # by the leader's loop; the index after it
Item = TypeVar("Item")
Made = TypeVar("Made")


class Led(Protocol):
    """What a duty needs of a leader."""

    @property
    def state(self) -> MetaState: ...

    def now(self) -> LeaseTime: ...

    def confirm(self) -> None:
        """Raise NotLeading unless it surely leads; asked before the store is changed."""
        ...


class Threads:
    """A store far away answers slowly, and others wait for the common threads."""

    def __init__(self, number: int, name: str) -> None:
        self._pool = ThreadPoolExecutor(number, thread_name_prefix=name)
        self._closed = False

    def close(self) -> None:
        self._closed = True
        self._pool.shutdown(wait=False, cancel_futures=True)

    async def do(self, act: Callable[[], Made]) -> Made:
        if self._closed:
            raise NotLeading("the office that was to do this has ended; ask again")
        return await asyncio.get_running_loop().run_in_executor(self._pool, act)

    async def each(
        self, act: Callable[[Item], Made], items: Iterable[Item]
    ) -> list[Made | MaarError]:
        """What became of each; one that goes wrong stops no other."""

        def act_or_error(item: Item) -> Made | MaarError:
            try:
                return act(item)
            except MaarError as error:
                return error

        return list(await asyncio.gather(*(self.do(partial(act_or_error, item)) for item in items)))
