"""Keeps etcd below its quota: watches its size, compacts history, defragments members in turn."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from aetcd import rpc

from maar.adapters.etcd.connection import (
    ALARM,
    COMPACT,
    DEFRAGMENT,
    STATUS,
    TRY_S,
    TXN,
    EtcdConnection,
    Member,
)
from maar.adapters.etcd.metrics import EtcdMetrics
from maar.adapters.etcd.requests import put, txn
from maar.adapters.etcd.room import (
    EtcdRoom,
    MemberStatus,
    room,
    version_refusal,
    worth_tidying,
)
from maar.adapters.etcd.tuning import TUNING, Tuning
from maar.adapters.etcd.values import Keys
from maar.background import Loop, cancel
from maar.model.errors import MaarError, Rejected, StoreFull, Unavailable
from maar.ports.metastore.log import BATCH_BYTES_MAX

log_ = logging.getLogger("maar.etcd")

LOOK_S = 3.0
APPEND_BYTES = 512  # what an append costs etcd beside its entries, about
TIDY_S = 600.0  # between two rounds of defragmentation, unless room is short
DEFRAGMENT_S = 120.0
COMPACT_S = 30.0
BLINDLY_S = 300.0


class Upkeep:
    def __init__(
        self,
        connection: EtcdConnection,
        keys: Keys,
        metrics: EtcdMetrics,
        *,
        quota_bytes: int,
        tuning: Tuning = TUNING,
    ) -> None:
        self._connection = connection
        self._keys = keys
        self._metrics = metrics
        self._quota = quota_bytes
        self._tuning = tuning
        self._not_ours: set[str] = set()  # members that we may not defragment
        metrics.quota.set(quota_bytes)
        self._statuses_seen: list[MemberStatus] = []
        self._alarmed = False
        self._refused = False
        self._wrote = 0  # bytes by us, since the check before the last
        self._wrote_lately = 0  # and since the last
        self._history = 0  # and since history was compacted
        self._looks = 0  # in this term
        self._look_now = asyncio.Event()
        self.compacted = 0
        self._tidied_s = 0.0
        self._blindly = 0, 0.0  # at which revision, and when, everything was last defragmented
        self._task: asyncio.Task[None] | None = None

    def start(self, leads: Callable[[], bool]) -> None:
        """Check and maintain etcd for as long as we lead."""
        if self._task is not None:
            self._task.cancel()
        # What an earlier term saw is outdated, and could refuse even the first entry of this one.
        self._statuses_seen, self._alarmed, self._refused = [], False, False
        self._wrote = self._wrote_lately = self._history = self._looks = 0
        self._task = asyncio.create_task(self._look_while(leads))

    async def stop(self) -> None:
        task, self._task = self._task, None
        if task is not None:
            await cancel(task)
            self._metrics.refusing.set(0)  # the next leader sets its own

    def check(self, size: int, *, reserve: bool) -> None:
        """StoreFull when an append of so many bytes would come too near to etcd's quota."""
        now = self._room_after(self._wrote + size)
        refusal = now.reserve_refusal if reserve else now.refusal
        if refusal:
            self.look_soon()
            raise StoreFull(refusal, retry_after_s=LOOK_S)

    def wrote(self, size: int) -> None:
        """Between two checks, the bytes that we write ourselves are counted."""
        self._wrote += size + APPEND_BYTES
        self._wrote_lately += size + APPEND_BYTES
        self._history += size + APPEND_BYTES
        if self._history >= self._tuning.compact_bytes:
            self.look_soon()

    def look_soon(self) -> None:
        self._look_now.set()

    async def check_versions(self) -> None:
        """Rejected when a member runs a release that cannot be used."""
        for status in await self._patiently(TRY_S):
            if refusal := version_refusal(status):
                raise Rejected(refusal)

    async def _patiently(self, within_s: float) -> list[MemberStatus]:
        """A member that has just started is not refused for its first moments."""
        loop = asyncio.get_running_loop()
        end = loop.time() + within_s
        while True:
            try:
                return await self._statuses()
            except Unavailable:
                if loop.time() >= end:
                    raise
                await asyncio.sleep(0.1)

    async def look(self) -> None:
        """Check how much room there is, and make some when it is short."""
        # etcd's numbers lag: what was written since the last check may not be in them yet.
        self._wrote, self._wrote_lately = self._wrote_lately, 0
        statuses = await self._statuses()
        alarm = await self._alarm()
        self.judge(statuses, alarm=alarm)
        if alarm or self._refused or self._tidying_due(statuses):
            await self._relieve(statuses, alarm=alarm)
        if self._refused and not alarm:
            await self._stir()

    async def relieve(self) -> None:
        """etcd has refused a write for lack of room: compact and defragment now."""
        await self._relieve(await self._statuses(), alarm=True)

    async def compact(self, *, within_s: float = TRY_S) -> None:
        """Compact the history of all keys; current values stay."""
        self._history = 0
        statuses = await self._statuses()
        await self._compact(max(status.revision for status in statuses), within_s=within_s)
        self.look_soon()

    async def _look_while(self, leads: Callable[[], bool]) -> None:
        looking = Loop(
            self._look_and_compact,
            failed="etcd status unknown",
            log=log_,
            every_s=LOOK_S,
            wake=self._look_now,
            rest_s=LOOK_S / 10,
        )
        await looking.run(while_=leads)

    async def _look_and_compact(self) -> None:
        await self.look()
        self._looks += 1
        if (
            self._looks % self._tuning.compact_looks == 0
            or self._history >= self._tuning.compact_bytes
        ):
            await self.compact()

    async def _stir(self) -> None:
        """Write something: etcd updates its usage only then, and refused appends write nothing."""
        await self._connection.call(TXN, txn(success=[put(self._keys.stirred, b"")]))

    async def _relieve(self, statuses: list[MemberStatus], *, alarm: bool) -> None:
        revision = max(status.revision for status in statuses)
        await self._compact(revision, within_s=COMPACT_S)
        blindly = alarm and self._may_have_freed(revision)
        statuses = await self._statuses()
        for status in sorted(statuses, key=lambda status: status.leads):  # its leader last
            worth = worth_tidying(status, quota=self._quota, blindly=blindly)
            if worth and status.endpoint not in self._not_ours:
                await self._tidy(status)
        self._tidied_s = asyncio.get_running_loop().time()
        statuses = await self._statuses()
        if alarm and not room(statuses, quota=self._quota, alarm=False).reserve_refusal:
            await self._disarm()
            alarm = False
        self.judge(statuses, alarm=alarm)

    def judge(self, statuses: list[MemberStatus], *, alarm: bool) -> None:
        self._statuses_seen, self._alarmed = statuses, alarm
        refusal = self._room_after(BATCH_BYTES_MAX).refusal  # of the largest append
        if refusal and not self._refused:
            log_.error("appends refused cause=%s", refusal)
        if self._refused and not refusal:
            log_.warning("appends accepted again: etcd has room")
        self._refused = bool(refusal)
        self._metrics.refusing.set(self._refused)
        self._metrics.in_use.set(max(status.in_use for status in statuses))
        self._metrics.file.set(max(status.size for status in statuses))
        self._metrics.members.set(len(statuses))

    def _room_after(self, wrote: int) -> EtcdRoom:
        return room(
            self._statuses_seen,
            quota=self._quota,
            alarm=self._alarmed,
            refused=self._refused,
            wrote=wrote,
        )

    def _tidying_due(self, statuses: list[MemberStatus]) -> bool:
        waited = asyncio.get_running_loop().time() - self._tidied_s > TIDY_S
        return waited and any(worth_tidying(status, quota=self._quota) for status in statuses)

    def _may_have_freed(self, revision: int) -> bool:
        """Whether something may have been deleted since the last defragmentation under the alarm.

        etcd updates its usage only when it writes, and under its alarm it hardly writes.
        """
        now = asyncio.get_running_loop().time()
        at, when = self._blindly
        if revision <= at and now - when < BLINDLY_S:
            return False
        self._blindly = revision, now
        return True

    async def _statuses(self) -> list[MemberStatus]:
        """Of the members that answer; Unavailable when none does."""
        asked = await asyncio.gather(
            *(self._status(member) for member in self._connection.members), return_exceptions=True
        )
        found = [status for status in asked if isinstance(status, MemberStatus)]
        if found:
            return found
        for error in asked:
            if isinstance(error, BaseException):
                raise error
        raise Unavailable("no member of etcd answers")

    async def _status(self, member: Member) -> MemberStatus:
        reply = await self._connection.ask(member, STATUS, rpc.StatusRequest(), within_s=TRY_S)
        return MemberStatus(
            endpoint=member.endpoint,
            version=reply.version,
            size=reply.dbSize,
            in_use=reply.dbSizeInUse,
            revision=reply.header.revision,
            leads=reply.leader == reply.header.member_id,
        )

    async def _alarm(self) -> bool:
        request = rpc.AlarmRequest(action=rpc.AlarmRequest.GET, alarm=rpc.NONE)
        reply = await self._connection.call(ALARM, request)
        for alarm in reply.alarms:
            if alarm.alarm == rpc.CORRUPT:
                log_.error("etcd reports a corrupt member, replace it member=%x", alarm.memberID)
        return any(alarm.alarm == rpc.NOSPACE for alarm in reply.alarms)

    async def _disarm(self) -> None:
        request = rpc.AlarmRequest(action=rpc.AlarmRequest.GET, alarm=rpc.NOSPACE)
        reply = await self._connection.call(ALARM, request)
        for alarm in reply.alarms:
            if alarm.alarm == rpc.NOSPACE:
                await self._connection.call(
                    ALARM,
                    rpc.AlarmRequest(
                        action=rpc.AlarmRequest.DEACTIVATE,
                        memberID=alarm.memberID,
                        alarm=rpc.NOSPACE,
                    ),
                )
        log_.warning("etcd has room again: its quota alarm was cleared")

    async def _compact(self, revision: int, *, within_s: float) -> None:
        """Compact; return when the room is free, or earlier when that takes long."""
        if revision <= self.compacted:
            return
        request = rpc.CompactionRequest(revision=revision, physical=True)
        try:
            member = self._connection.member
            await self._connection.ask(member, COMPACT, request, within_s=within_s)
        except (Rejected, Unavailable) as error:
            log_.debug("etcd compaction skipped cause=%s", error)
            return
        self.compacted = revision

    async def _tidy(self, status: MemberStatus) -> None:
        """Defragment one member; it does not answer meanwhile."""
        member = next(m for m in self._connection.members if m.endpoint == status.endpoint)
        self._connection.turn(member)
        log_.info("etcd member defragmented endpoint=%s bytes=%d", status.endpoint, status.size)
        try:
            await self._connection.ask(
                member, DEFRAGMENT, rpc.DefragmentRequest(), within_s=DEFRAGMENT_S
            )
        except Rejected as error:
            self._not_ours.add(status.endpoint)
            log_.warning(
                "etcd member must be defragmented by hand endpoint=%s cause=%s",
                status.endpoint,
                error,
            )
        except MaarError as error:
            log_.warning(
                "etcd member not defragmented endpoint=%s cause=%s", status.endpoint, error
            )
