"""Runs a load: every push is sent when it is due, and retried until it is acknowledged."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator, Sequence
from random import Random

from maar.api.protocol import wire
from maar.cli.client import TRY_LATER
from maar.cli.retry import pause_s
from maar.model.labels import SERVICE_NAME
from maar.tools.load.http import Broken, ConnectionPool, PushReply
from maar.tools.load.plan import Crowd, Program
from maar.tools.load.profiles import Template
from maar.tools.load.report import LoadTally

NO_ANSWER = "no answer"

Acknowledged = Callable[[Program, Template, int, tuple[str, ...]], None]


class LoadRun:
    """Pushes as many independent agents would; `tally` may be read meanwhile."""

    def __init__(
        self,
        crowd: Crowd,
        doors: Sequence[ConnectionPool],
        shelves: Sequence[Sequence[Template]],  # of the services, by turns
        acknowledged: Acknowledged,
        *,
        patience_s: float,
        under_way_max: int,
        seed: int,
    ) -> None:
        self.tally = LoadTally()
        self._crowd = crowd
        self._sources = crowd.sources(seed)
        self._doors = doors
        self._shelves = shelves
        self._acknowledged = acknowledged
        self._patience_s = patience_s
        self._room = asyncio.Semaphore(under_way_max)
        self._chance = Random(seed)
        self._stopping = asyncio.Event()
        self._last_ns = 0

    def stop(self) -> None:
        """Begin no more pushes; those in flight continue."""
        self._stopping.set()

    async def run(self) -> None:
        began = time.monotonic()
        ends = began + self._crowd.seconds
        async with asyncio.TaskGroup() as under_way:
            for number in range(self._crowd.pushes):
                due = began + self._crowd.due_s(number)
                await self._until(due)
                full = self._room.locked()
                await self._room.acquire()
                now = time.monotonic()
                self.tally.late_s = max(self.tally.late_s, now - due)
                if self._stopping.is_set() or (full and now > ends):
                    self._room.release()
                    break  # time is over; pushes that are still waiting for a slot are left out
                self.tally.sent += 1
                under_way.create_task(self._push(number, due))

    async def _until(self, due: float) -> None:
        left = due - time.monotonic()
        if left <= 0:
            await asyncio.sleep(0)  # let other tasks run
            return
        try:
            async with asyncio.timeout(left):
                await self._stopping.wait()
        except TimeoutError:
            pass  # it is due

    async def _push(self, number: int, due: float) -> None:
        try:
            source = self._sources[number % len(self._sources)]
            template = self._template(source, number)
            time_ns = self._now_ns()
            body = request(source, template.with_time(time_ns), client_id=f"maar-load-{time_ns:x}")
            answer = await self._insist(source.tenant, body, number)
            if answer is not None:
                self.tally.acknowledged += 1
                self.tally.bytes += len(body)
                self.tally.waits_s.append(time.monotonic() - due)
                self._acknowledged(source, template, time_ns, answer.ids)
        finally:
            self._room.release()

    async def _insist(self, tenant: str, body: bytes, number: int) -> PushReply | None:
        """Send the same bytes until they are acknowledged, refused permanently, or time is over."""
        gives_up = time.monotonic() + self._patience_s
        for tries, door in enumerate(self._turns(number)):
            told_s = 0.0
            try:
                answer = await door.push(tenant, body)
            except Broken as error:
                self.tally.count_refusal(NO_ANSWER, f"{door.address.url}: {error}")
            else:
                if answer.status == 200 and answer.ids:
                    return answer
                self.tally.count_refusal(
                    str(answer.status), answer.sentence or "without a profile's id"
                )
                if answer.status not in TRY_LATER:
                    return None
                told_s = answer.retry_after_s
            wait_s = pause_s(tries, told_s=told_s, chance=self._chance)
            if time.monotonic() + wait_s > gives_up:
                return None
            await asyncio.sleep(wait_s)
            self.tally.retries += 1
        return None

    def _turns(self, number: int) -> Iterator[ConnectionPool]:
        while True:
            yield self._doors[number % len(self._doors)]
            number += 1

    def _template(self, source: Program, number: int) -> Template:
        shelf = self._shelves[source.number % len(self._shelves)]
        return shelf[number // len(self._sources) % len(shelf)]

    def _now_ns(self) -> int:
        """The present time, but never the same twice: a profile's time is part of its identity."""
        self._last_ns = max(time.time_ns(), self._last_ns + 1)
        return self._last_ns


def request(source: Program, body: bytes, *, client_id: str) -> bytes:
    message = wire.PushRequest()
    series = message.series.add()
    series.labels.add(name=SERVICE_NAME, value=source.service)
    series.labels.add(name="pod", value=source.pod)
    series.samples.add(raw_profile=body, ID=client_id)
    return bytes(message.SerializeToString())
