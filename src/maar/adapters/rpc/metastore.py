"""The metastore's client: finds the replica that can answer, and retries during a failover."""

from __future__ import annotations

import asyncio
import time
from typing import Any, TypeVar

from maar.adapters.rpc.channel import Channel
from maar.adapters.rpc.failover import Replicas, Search, passes, share_s
from maar.model.errors import Retryable, Unreachable
from maar.ports.calls import Call

METASTORE_DEADLINE_S = 10.0  # longer than an election takes

R = TypeVar("R")


class MetastoreClient:
    """Sends each request to the replica that can answer it, until the deadline.

    Requests are idempotent: each carries its own id, so it may be retried. With a single address
    that leads, there is one try with the whole deadline.
    """

    def __init__(self, addresses: str, *, deadline_s: float = METASTORE_DEADLINE_S) -> None:
        """One address, or several with commas between: the nearest first, since it is read from."""
        self._replicas = Replicas(addresses)
        self._deadline_s = deadline_s
        self.channels: dict[str, Channel] = {}
        self._closed = False

    async def close(self) -> None:
        self._closed = True
        channels = list(self.channels.values())
        self.channels.clear()
        for channel in channels:
            await channel.close()

    async def call(self, request: Call[Any, R], /) -> R:
        replicas, leads = self._replicas, not request.any_replica
        search = Search(replicas, leads=leads)
        until = time.monotonic() + self._deadline_s
        while True:
            now = time.monotonic()
            address = search.next(now)
            channel = self.channels.get(address) or await self._connect(address)
            try:
                within_s = share_s(until - now, alone=replicas.alone)
                reply = await channel.call(request, within_s=within_s)
            except Retryable as error:
                pause_s = search.note_refusal(address, error, time.monotonic())
                if not passes(error, alone=replicas.alone) or self._closed:
                    raise
                if time.monotonic() + pause_s >= until:
                    raise
            else:
                replicas.trust(address, leads=leads)
                return reply
            await asyncio.sleep(pause_s)

    async def _connect(self, address: str) -> Channel:
        """A new channel; those to former leaders that the settings do not name are closed."""
        old = [
            self.channels.pop(each) for each in self.channels.keys() - self._replicas.addresses()
        ]
        for channel in old:
            await channel.close()
        if self._closed:
            raise Unreachable(f"the channel to {address} is closed")
        if address not in self.channels:
            self.channels[address] = Channel(address, watched=not self._replicas.alone)
        return self.channels[address]
