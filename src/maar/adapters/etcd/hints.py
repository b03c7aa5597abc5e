"""A watch on head and leader keys: only a hint when to read them again, never trusted further."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import grpc.aio
from aetcd import rpc

from maar.adapters.etcd.connection import EtcdConnection
from maar.adapters.etcd.values import Keys, Mark, unpack
from maar.background import cancel, wait_any
from maar.model.errors import MaarError

log_ = logging.getLogger("maar.etcd")

PAUSE_S = 0.2


class Hints:
    """Waits for changes; the watch starts with the first waiter."""

    def __init__(self, connection: EtcdConnection, keys: Keys, *, silent_s: float) -> None:
        self._connection = connection
        self._keys = keys
        self._silent_s = silent_s
        self.index = 0
        self._changed = asyncio.Event()
        self._leader_changed = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._behind_since: float | None = None

    async def head_behind(self, after: int, *, within_s: float) -> None:
        """Return when the head may be behind an index, or after a while."""
        self._watch()
        self._notice(after)
        if self.index <= after:
            await self.change(within_s=within_s)

    async def change(self, *, within_s: float) -> None:
        """Return when head or leader may have changed, or after a while."""
        self._watch()
        await wait_any(within_s, self._changed)

    async def leader_change(self, *, within_s: float) -> None:
        """As `change`, for the leader key alone: candidates need not wake at every append."""
        self._watch()
        await wait_any(within_s, self._leader_changed)

    async def close(self) -> None:
        if self._task is not None:
            await cancel(self._task)

    def _watch(self) -> None:
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._follow_for_ever())

    def _notice(self, after: int) -> None:
        """Detect a member that is connected but sends nothing: reads have seen more."""
        now = asyncio.get_running_loop().time()
        if self.index >= after:
            self._behind_since = None
        elif self._behind_since is None:
            self._behind_since = now
        elif now - self._behind_since > self._silent_s and self._task is not None:
            self._behind_since = None
            self.index = after  # the next watch reports only what comes after it
            self._task.cancel()

    async def _follow_for_ever(self) -> None:
        """Not a `background.Loop`: gRPC's own errors are to be expected here, and whoever cancels
        the watch wants the next one to be of another member.
        """
        while True:
            member = self._connection.member
            try:
                await self._follow(member)
            except (grpc.aio.AioRpcError, MaarError) as error:
                log_.debug("etcd watch ended endpoint=%s cause=%s", member.endpoint, error)
                self._connection.turn(member)
            except asyncio.CancelledError:
                self._connection.turn(member)
                raise
            await asyncio.sleep(PAUSE_S)

    async def _follow(self, member: Any) -> None:
        stream = member.watch.Watch(metadata=await self._connection.metadata(member))
        try:
            for key in (self._keys.head, self._keys.leader):
                created = rpc.WatchCreateRequest(key=key)
                await stream.write(rpc.WatchRequest(create_request=created))
            async for reply in stream:
                if reply.canceled:
                    return
                for event in reply.events:
                    self._hear(event)
                # Also when a watch has just started: a change may have come before it.
                self._wake(leader=not reply.events or any(map(self._is_leader, reply.events)))
        finally:
            stream.cancel()

    def _hear(self, event: Any) -> None:
        if event.kv.key == self._keys.head and event.type == rpc.Event.PUT:
            mark = unpack(event.kv.value, Mark, key=event.kv.key)
            self.index = max(self.index, mark.index)

    def _is_leader(self, event: Any) -> bool:
        return bool(event.kv.key == self._keys.leader)

    def _wake(self, *, leader: bool) -> None:
        self._changed.set()
        self._changed = asyncio.Event()
        if leader:
            self._leader_changed.set()
            self._leader_changed = asyncio.Event()
