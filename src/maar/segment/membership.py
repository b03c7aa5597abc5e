"""A segment writer's membership in the ring: joins, sends heartbeats, drains, leaves (S16)."""

from __future__ import annotations

import asyncio
import logging
from random import Random

import msgspec
from prometheus_client import CollectorRegistry

from maar.model.errors import InvalidInput, MaarError, Unavailable
from maar.model.ids import Zone
from maar.model.ring import Writer, WriterState
from maar.ports.calls import Caller
from maar.ports.writer.membership import Beat, BeatListener
from maar.segment.metrics import MembershipMetrics

log = logging.getLogger("maar.segment")

TELL_S_MAX = 2.0  # how long a stopping process tries to report that it drains or leaves
BEATS_PATIENCE = 2  # intervals that one heartbeat may take before the next is tried
RETRY_SHARE = 0.1  # of the interval: the first pause after a metastore that did not answer


class Membership:
    """Sends heartbeats for one run of a writer's process; once refused, it must accept no pushes.

    An unavailable metastore only delays: the ring that distributors have still lists us.
    """

    def __init__(
        self,
        metastore: Caller[BeatListener],
        zone: Zone,
        writer: Writer,
        *,
        every_s: float,
        leaves: bool,
        random: Random,
        registry: CollectorRegistry,
    ) -> None:
        self._metastore = metastore
        self._zone = zone
        self._writer = writer
        self._every_s = every_s
        self._leaves = leaves
        self._random = random
        self._known: WriterState | None = None  # what the ring last heard of us
        self._refusal = ""
        self._trouble = ""
        self._turn = asyncio.Lock()  # one beat at a time, so that an older one is never the last
        self._metrics = MembershipMetrics(registry)

    async def live(self) -> None:
        """Join, become active, send heartbeats for ever; Unavailable when another took the name.

        Not a `background.Loop`: a refusal has to end the writer.
        """
        misses = 0
        while True:
            heard = await self._beat()
            if heard and self._writer.state is WriterState.JOINING:
                self._state(WriterState.ACTIVE)
                continue  # pushes are accepted from now on: report it at once
            misses = 0 if heard else misses + 1
            await asyncio.sleep(wait_s(self._every_s, misses, chance=self._random.random()))

    async def drain(self) -> bool:
        """Report that we drain, so that distributors use other writers; True when it was heard."""
        self._state(WriterState.LEAVING)
        return await self._tell_once(leaves=False)

    async def leave(self) -> None:
        """After the last flush: leave the ring if `leaves`, else our shards wait for our return."""
        if self._leaves:
            await self._tell_once(leaves=True)

    def ready(self) -> str:
        """'' when the ring knows us as active, else why not."""
        if self._refusal:
            return self._refusal
        if self._known is WriterState.ACTIVE:
            return ""
        if self._known is WriterState.LEAVING:
            return "the segment writer is draining and takes no new profiles"
        return f"the ring does not know this segment writer yet ({self._trouble or 'joining'})"

    def _state(self, state: WriterState) -> None:
        self._writer = msgspec.structs.replace(self._writer, state=state)

    async def _tell_once(self, *, leaves: bool) -> bool:
        """Try once, briefly; otherwise the missing heartbeats show it."""
        if self._refusal or self._known is None:
            return False  # the place is another's, or we never had one
        try:
            async with asyncio.timeout(TELL_S_MAX):
                return await self._beat(leaves=leaves)
        except (TimeoutError, MaarError) as error:
            log.warning(
                "state not reported to the ring state=%s cause=%s", self._writer.state, error
            )
            return False

    async def _beat(self, *, leaves: bool = False) -> bool:
        """Whether the metastore got it. Raises when the ring refuses us."""
        async with self._turn:
            writer = self._writer
            try:
                async with asyncio.timeout(BEATS_PATIENCE * self._every_s):
                    reply = await self._metastore.call(Beat(self._zone, writer, leaves))
            except InvalidInput:
                if self._known is None:
                    raise  # it can never be accepted unchanged
                return self._unheard("the metastore does not understand it any more")
            except (TimeoutError, MaarError) as error:
                return self._unheard(str(error) or "the metastore did not answer in time")
            if reply.refusal:
                self._metrics.beats.labels("refused").inc()
                self._metrics.active.set(0)
                self._refusal = (
                    f"segment writer {writer.node} of zone {self._zone} was refused by the ring: "
                    f"{reply.refusal}. It takes no more profiles. If two processes have the same "
                    "name, give one of them another ring.node"
                )
                raise Unavailable(self._refusal)
            self._metrics.beats.labels("heard").inc()
            if self._trouble:
                log.info("heartbeats answered again")
            self._trouble = ""
            if writer.state is not self._known:
                log.info(
                    "ring membership changed zone=%s node=%s state=%s ring=%d",
                    self._zone,
                    writer.node,
                    writer.state,
                    reply.changed_at,
                )
            self._known = writer.state
            self._metrics.active.set(writer.state is WriterState.ACTIVE)
            return True

    def _unheard(self, why: str) -> bool:
        self._metrics.beats.labels("away").inc()
        if not self._trouble:
            log.warning("heartbeat not answered cause=%s", why)
        self._trouble = why
        return False


def wait_s(every_s: float, misses: int, *, chance: float) -> float:
    """Until the next beat: the interval, or, unheard, a doubling part of it, spread by chance."""
    if not misses:
        return every_s
    doubled_s = every_s * RETRY_SHARE * (1 << min(misses - 1, 10))
    return min(every_s, doubled_s) * (1 - chance / 4)
