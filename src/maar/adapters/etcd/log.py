"""The log in etcd: any number of replicas read it, and only the leader of the current term appends.

An append is one transaction and one key: it compares the leader's key and the head, then writes the
batch and the new head. Lease and term are kept by etcd, so etcd itself refuses a leader that was
paused past its lease. Every value is checksummed, since etcd does not detect a flipped bit.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from prometheus_client import CollectorRegistry

from maar.adapters.etcd.connection import TXN, EtcdConnection
from maar.adapters.etcd.copying import Copying
from maar.adapters.etcd.election import Election, check_leadership
from maar.adapters.etcd.hints import Hints
from maar.adapters.etcd.metrics import EtcdMetrics
from maar.adapters.etcd.reading import LogReader
from maar.adapters.etcd.requests import (
    absent,
    compare_created,
    compare_revision,
    get,
    key_value,
    put,
    put_entries,
    revision,
    txn,
    value,
)
from maar.adapters.etcd.settings import EtcdSettings
from maar.adapters.etcd.truncation import Truncation
from maar.adapters.etcd.tuning import TUNING, Tuning
from maar.adapters.etcd.upkeep import COMPACT_S, Upkeep
from maar.adapters.etcd.values import FORMAT, Keys, Leading, Mark, pack
from maar.model.errors import (
    Corrupt,
    HeadMoved,
    NotFound,
    OutcomeUnknown,
    Rejected,
    StoreFull,
    Unavailable,
)
from maar.ports.metastore.log import (
    BATCH_BYTES_MAX,
    EMPTY,
    Candidate,
    Head,
    Leadership,
    Record,
    Term,
    check_limits,
    follow,
)

__all__ = ["EtcdLog", "EtcdSettings"]

log_ = logging.getLogger("maar.etcd")

FULL_S = 1.0
SECOND_LOOK_S = 0.7  # members that were briefly away have reconnected by then

NOBODY = Leading(0, "", "")

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class SeenHead:
    """A head, and the revision at which it was written: appends compare the latter."""

    head: Head
    revision: int


@dataclass(frozen=True, slots=True)
class Presumed:
    """What an append compares: it succeeds only while this term leads and this is the head."""

    seen: SeenHead
    leadership: int


class EtcdLog:
    """Made by `open` (a replica) or `open_reader` (reading only); also a `LogCopy`."""

    def __init__(
        self,
        settings: EtcdSettings,
        *,
        writes: bool,
        registry: CollectorRegistry | None = None,
        tuning: Tuning = TUNING,
    ) -> None:
        self._settings = settings
        self._tuning = tuning
        self._metrics = EtcdMetrics(registry or CollectorRegistry())
        self._writes = writes
        self.keys = Keys(settings.prefix)
        self.connection = EtcdConnection(settings, message_bytes_max=tuning.message_bytes_max)
        self.hints = Hints(self.connection, self.keys, silent_s=tuning.watch_silent_s)
        self.election = Election(
            self.connection,
            self.keys,
            self.hints,
            election_s=settings.election_s,
            checked=self._read_checked,
            tuning=tuning,
        )
        self._reading = LogReader(self.connection, self.keys)
        self._truncation = Truncation(self.connection, self.keys, self._reading, tuning)
        self._copying = Copying(self.connection, self.keys)
        self.upkeep = Upkeep(
            self.connection,
            self.keys,
            self._metrics,
            quota_bytes=settings.quota_bytes,
            tuning=tuning,
        )
        self.seen: SeenHead | None = None
        self._unsettled: Presumed | None = None
        self._greeted = False

    @classmethod
    async def open(
        cls,
        settings: EtcdSettings,
        *,
        registry: CollectorRegistry | None = None,
        tuning: Tuning = TUNING,
    ) -> EtcdLog:
        """Rejected when this cluster or this log cannot be used.

        A cluster that does not answer yet is no error here: later calls report it until it answers.
        """
        return await cls(settings, writes=True, registry=registry, tuning=tuning)._connect()

    @classmethod
    async def open_reader(cls, settings: EtcdSettings) -> EtcdLog:
        """A reader that never leads; NotFound when there is no log under the prefix."""
        return await cls(settings, writes=False)._connect()

    async def _connect(self) -> EtcdLog:
        try:
            await self._greet()
        except Unavailable as error:
            log_.warning("log not reachable yet cause=%s", error)
        except BaseException:  # raised again: nobody else has the connections to close them
            await self.close()
            raise
        return self

    async def campaign(self, candidate: Candidate) -> Term:
        await self._greet()
        self._check_writes()
        await self.upkeep.check_versions()  # members may have been added or upgraded meanwhile
        term = await self._campaign(candidate)
        self.upkeep.start(lambda: self.election.leads(term))
        return term

    def hold(self, term: Term) -> None:
        self.election.hold(term)

    async def resign(self, term: Term) -> None:
        if await self.election.resign(term):
            await self.upkeep.stop()

    async def leadership(self) -> Leadership | None:
        await self._greet()

        async def read_leader() -> Leadership | None:
            reply = await self._call(get(self.keys.leader))
            kv = key_value(reply, 0)
            return None if kv is None else value(kv, Leading, NOBODY).leadership

        return await self._read_checked(read_leader)

    async def append(
        self, bodies: Sequence[bytes], *, term: Term, head: Head, reserve: bool = False
    ) -> Head:
        check_limits(bodies)
        self._check_writes()
        tenure = self.election.tenure(term)
        self.upkeep.check(sum(map(len, bodies)), reserve=reserve)
        if self._unsettled is not None:
            raise OutcomeUnknown("an earlier append has an unknown outcome; ask for the head first")
        seen = self.seen
        while True:
            if seen is None or seen.head != head:
                seen = await self._look(tenure.revision, term)
            if seen.head != head:
                raise HeadMoved(
                    f"the log's head is {seen.head.index}, not {head.index} as presumed"
                )
            if not bodies:
                return head
            if now := await self._append_once(bodies, term, Presumed(seen, tenure.revision)):
                return now
            seen = None

    async def _append_once(
        self, bodies: Sequence[bytes], term: Term, presumed: Presumed
    ) -> Head | None:
        """The new head; None when the leader's key or the head is not as presumed any more."""
        head = presumed.seen.head
        records = follow(head, bodies, term)
        request = txn(self._compares(presumed), put_entries(self.keys, head, records))
        try:
            reply = await self.connection.once(TXN, request, within_s=self._tuning.append_s)
        except (OutcomeUnknown, asyncio.CancelledError):
            self._unsettled = presumed
            raise
        except StoreFull:
            self.upkeep.look_soon()
            raise
        if not reply.succeeded:
            return None
        self.upkeep.wrote(request.ByteSize())
        last = Head(records[-1].index, records[-1].hash)
        return self._remember(SeenHead(last, reply.header.revision))

    async def read(self, *, after: int, limit_bytes: int = BATCH_BYTES_MAX) -> list[Record]:
        await self._greet()
        return await self._read_checked(
            lambda: self._reading.read(after=after, limit_bytes=limit_bytes)
        )

    async def wait_change(self, *, after: int) -> None:
        await self.hints.head_behind(after, within_s=self._tuning.look_s)

    async def head(self) -> Head:
        await self._greet()
        return await self._read_checked(self._settled_head)

    async def first(self) -> int:
        await self._greet()

        async def read_first() -> int:
            base, head = await self._ends()
            return base.index + 1 if base.index < head.index else 0

        return await self._read_checked(read_first)

    async def truncate(self, *, before: int, term: Term) -> None:
        self._check_writes()

        async def step() -> int:
            leadership = self.election.tenure(term).revision
            try:
                return await self._truncation.step(before=before, leadership=leadership, term=term)
            except StoreFull:
                await self.upkeep.relieve()
                return await self._truncation.step(before=before, leadership=leadership, term=term)

        forgotten = 0
        while some := await self._read_checked(step):  # between two of them appends get their turn
            forgotten += some
            if forgotten >= self._tuning.forget_at_once:  # else etcd frees everything at once
                await self.upkeep.compact(within_s=COMPACT_S)
                forgotten = 0
        await self.upkeep.compact()

    async def seal(self, note: str) -> None:
        await self._greet()
        self._check_writes()
        keys = self.keys
        reply = await self.connection.call(
            TXN,
            txn(
                [absent(keys.leader), absent(keys.sealed)],
                [put(keys.sealed, pack(note))],
                [get(keys.leader), get(keys.sealed)],
            ),
        )
        if not reply.succeeded and (leader := key_value(reply, 0)) is not None:
            name = value(leader, Leading, NOBODY).name
            raise Rejected(
                f"the log under {self._settings.prefix} is led by {name}; stop its metastores first"
            )

    async def seal_note(self) -> str:
        reply = await self.connection.call(TXN, txn(success=[get(self.keys.sealed)]))
        return value(key_value(reply, 0), str, "")

    async def begin(self, base: Head, *, term: Term) -> Head:
        await self._greet()
        self._check_writes()
        return await self._copying.begin(base, term=term)

    async def add(self, records: Sequence[Record]) -> Head:
        self._check_writes()
        return await self._copying.add(records)

    async def finish(self) -> None:
        self._check_writes()
        await self._copying.finish()

    async def close(self) -> None:
        await self.upkeep.stop()
        await self.election.close()
        await self.hints.close()
        await self.connection.close()

    # ── permissions and checks ─────────────────────────────────────────────────────────────────

    def _check_writes(self) -> None:
        if not self._writes:
            raise Rejected(f"the log under {self._settings.prefix} was opened for reading only")

    async def _greet(self) -> None:
        """Check first that this cluster and this log can be used."""
        if self._greeted:
            return
        await self.upkeep.check_versions()
        key = self.keys.format

        async def read_format() -> int:
            return value(key_value(await self._call(get(key)), 0), int, 0)

        form = await self._read_checked(read_format)
        if not form and not self._writes:
            raise NotFound(
                f"there is no log under {self._settings.prefix} in etcd; start a metastore there "
                "first"
            )
        if not form:
            await self.connection.call(TXN, txn([absent(key)], [put(key, pack(FORMAT))]))
        elif form != FORMAT:
            raise Rejected(
                f"the log under {self._settings.prefix} has format {form}, this program knows "
                f"{FORMAT}; start the program that wrote it"
            )
        self._greeted = True

    async def _campaign(self, candidate: Candidate) -> Term:
        while True:
            try:
                return (await self.election.campaign(candidate)).term
            except StoreFull as error:
                log_.error("nobody can lead while etcd refuses writes cause=%s", error)
                await self.upkeep.relieve()
                await asyncio.sleep(FULL_S)

    # ── reading ────────────────────────────────────────────────────────────────────────────────

    async def _read_checked(self, call: Callable[[], Awaitable[T]]) -> T:
        """Read again, from every other member if there are some, when bytes are damaged (S12)."""
        for _ in self.connection.members:
            try:
                return await call()
            except Corrupt as error:
                member = self.connection.member  # members that did not answer were skipped before
                log_.error(
                    "etcd member served damaged bytes endpoint=%s cause=%s", member.endpoint, error
                )
                self._metrics.damaged.labels(member.endpoint).inc()
                self.connection.turn(member)
                await asyncio.sleep(SECOND_LOOK_S)
        return await call()

    async def _ends(self) -> tuple[Head, Head]:
        reply = await self._call(get(self.keys.base), get(self.keys.head))
        base = value(key_value(reply, 0), Mark, Mark.of(EMPTY)).head
        return base, self._remember(_seen_head(key_value(reply, 1)))

    async def _settled_head(self) -> Head:
        """Read the head, and make sure that an append with unknown outcome cannot arrive any more.

        Writing the same head again changes its revision, which the lost append compares.
        """
        lost = self._unsettled
        if lost is None:
            return (await self._ends())[1]
        rewritten = put(self.keys.head, pack(Mark.of(lost.seen.head)))
        here = get(self.keys.head)
        try:
            reply = await self.connection.call(
                TXN, txn(self._compares(lost), [rewritten, here], [here])
            )
        except StoreFull:
            return (await self._ends())[1]  # etcd is full: appends have to wait for room anyway
        head = self._remember(_seen_head(key_value(reply, 1 if reply.succeeded else 0)))
        if self._unsettled is lost:  # a concurrent call may have settled it meanwhile
            self._unsettled = None
        return head

    async def _look(self, leadership: int, term: Term) -> SeenHead:
        """The head, if this term still leads."""

        async def read_head() -> SeenHead:
            reply = await self._call(get(self.keys.leader), get(self.keys.head))
            check_leadership(key_value(reply, 0), leadership, term)
            seen = _seen_head(key_value(reply, 1))
            self._remember(seen)
            return seen

        return await self._read_checked(read_head)

    def _remember(self, seen: SeenHead) -> Head:
        if self.seen is None or self.seen.revision <= seen.revision:
            self.seen = seen
        return seen.head

    def _compares(self, presumed: Presumed) -> list[Any]:
        keys = self.keys
        return [
            compare_created(keys.leader, presumed.leadership),
            compare_revision(keys.head, presumed.seen.revision),
        ]

    async def _call(self, *reads: Any) -> Any:
        return await self.connection.call(TXN, txn(success=reads))


def _seen_head(kv: Any | None) -> SeenHead:
    return SeenHead(value(kv, Mark, Mark.of(EMPTY)).head, revision(kv))
