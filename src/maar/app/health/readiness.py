"""Whether pushes would be acknowledged and queries answered, as the parts themselves report."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping

from maar.adapters.rpc import Channel
from maar.api.health import PURPOSES
from maar.app.health.disks import Disks
from maar.background import cancel
from maar.model.addresses import addresses_in
from maar.model.errors import MaarError
from maar.model.time import SECOND_NS
from maar.ports.calls import Caller, LocalPort
from maar.ports.clock import Clock
from maar.ports.role import GetMetrics, GetReadiness, Role
from maar.ports.stores.object_store import ObjectStore
from maar.ports.stores.probe import probe

log = logging.getLogger("maar.front")

STORE_CHECK_NS = 5_000_000_000
STORE_ANSWER_S = 2.0  # then it is said that the store does not answer
WRITER = "segment-writer"  # when it is a process beside this one
PUSH, QUERY = PURPOSES


class MetastoreRole(LocalPort):
    """The metastore as one role: it is ready when one of its replicas is.

    Each replica serves its own metrics; here are those of the one in this process, if any.
    """

    def __init__(self, addresses: str, *, own: str = "") -> None:
        replicas = addresses_in(addresses)
        self._replicas = {address: Channel(address) for address in replicas}
        self._shown = replicas[0] if len(replicas) == 1 else own

    async def ready(self) -> str:
        asked = [asyncio.create_task(_why_not(each)) for each in self._replicas.values()]
        try:
            reasons = []
            for answer in asyncio.as_completed(asked):
                if not (reason := await answer):
                    return ""  # one ready replica is enough
                reasons.append(reason)
            return ", and ".join(dict.fromkeys(reasons))
        finally:
            await cancel(*asked)

    async def metrics(self) -> str:
        if shown := self._replicas.get(self._shown):
            return await shown.call(GetMetrics())
        reason = await self.ready()
        return "" if reason else "# Every replica of the metastore has a page of its own.\n"

    async def close(self) -> None:
        for client in self._replicas.values():
            await client.close()


async def _why_not(role: Caller[Role]) -> str:
    try:
        return await role.call(GetReadiness())
    except MaarError as error:
        return str(error)


async def _answers(role: Caller[Role]) -> bool:
    try:
        await role.call(GetReadiness())
    except MaarError:
        return False
    return True


class Readiness:
    """/ready of the front, and the metrics of the roles behind it."""

    def __init__(
        self,
        others: Mapping[str, Caller[Role]],
        store: ObjectStore | None,  # that must take writes; None when others write
        clock: Clock,
        *,
        pushes: bool,  # it takes them
        asks: bool,  # it answers queries; the worker may be away: compaction waits
        placed: Callable[[], str],  # whether it is known where to send profiles
        disks: Disks | None = None,  # that pushes need
        front: str = "",  # its own name, when there are several
        siblings: Mapping[str, Caller[Role]] | None = None,  # other fronts of the same port
    ) -> None:
        self._others = others
        self._front = front
        self._siblings = siblings or {}
        self._purposes = [purpose for purpose, has in ((PUSH, pushes), (QUERY, asks)) if has]
        self._placed = placed
        self._disks = disks
        self._store = store
        self._clock = clock
        self._store_check: asyncio.Task[str] | None = None  # the last one
        self._store_asked_ns = 0

    async def __call__(self, purpose: str = "") -> str:
        """'' when ready, else each of `push` and `query` that fails, and why."""
        purposes = [each for each in self._purposes if purpose in ("", each)]
        if purpose and not purposes:
            return f"{purpose}: this process does not serve that"
        found = await asyncio.gather(*map(self._trouble, purposes))
        failing = zip(purposes, found, strict=True)
        return "\n".join(f"{name}: {why}" for name, why in failing if why)

    async def degradation(self) -> str:
        """Which of the other fronts do not serve the port, and why; that leaves us ready."""
        found = await asyncio.gather(*map(_why_not, self._siblings.values()))
        named = zip(self._siblings, found, strict=True)
        return "\n".join(f"degraded: {name}: {why}" for name, why in named if why)

    async def _trouble(self, purpose: str) -> str:
        """Why pushes or queries cannot be served, in sentences."""
        if purpose == PUSH:
            roles = ["metastore", *([WRITER] if WRITER in self._others else [])]
            asked = (*map(self._role, roles), self._writable())
            no_room = self._disks.no_room() if self._disks else ""
            reasons = [*await asyncio.gather(*asked), self._placed(), no_room]
        else:
            asked = tuple(map(self._role, ("metastore", "query")))
            no_room = self._disks.no_room_to_read() if self._disks else ""
            reasons = [*await asyncio.gather(*asked), no_room]
        return "; ".join(reason for reason in reasons if reason)

    async def metrics(self) -> list[str]:
        """The metrics of the other roles; a role that does not answer is missing, and `up` is 0."""
        names = list(self._others)
        texts = await asyncio.gather(*(self._metrics(name) for name in names))
        answers = dict(zip(names, map(bool, texts), strict=True))
        reached = await asyncio.gather(*map(_answers, self._siblings.values()))
        answers |= {self._front: True} if self._front else {}
        answers |= zip(self._siblings, reached, strict=True)
        up = "".join(f'maar_role_up{{role="{name}"}} {int(up)}\n' for name, up in answers.items())
        heading = "# HELP maar_role_up Whether the role answers.\n# TYPE maar_role_up gauge\n"
        return [*texts, heading + up]

    async def _role(self, name: str) -> str:
        why_not = await _why_not(self._others[name])
        return f"{name}: {why_not}" if why_not else ""

    async def _metrics(self, name: str) -> str:
        try:
            return await self._others[name].call(GetMetrics())
        except MaarError as error:
            log.info("metrics of a role are missing of=%s cause=%s", name, error)
            return ""

    async def _writable(self) -> str:
        """Whether the store takes a write; remembered for a while, since asking costs one. A store
        that hangs is asked once, and is said to hang until it answers.
        """
        if self._store is None:
            return ""
        check, now_ns = self._store_check, self._clock.monotonic_ns()
        if check is None or (check.done() and now_ns - self._store_asked_ns > STORE_CHECK_NS):
            check = asyncio.create_task(asyncio.to_thread(_trouble_of, self._store))
            self._store_check, self._store_asked_ns = check, now_ns
        if not check.done():
            await asyncio.wait({check}, timeout=STORE_ANSWER_S)
        if check.done():
            return check.result()
        silent_s = (self._clock.monotonic_ns() - self._store_asked_ns) / SECOND_NS
        return (
            f"store: it has not answered a write for {silent_s:.0f} s, so it hangs or is too slow"
        )


def _trouble_of(store: ObjectStore) -> str:
    try:
        probe(store)
    except MaarError as error:
        return f"store: {error}"
    return ""
