"""Leadership is an etcd key held under a lease; a stuck apply loop does not renew it."""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Awaitable, Callable
from typing import Any, NamedTuple, Protocol, TypeVar

from aetcd import rpc

from maar.adapters.etcd.connection import GRANT, RENEW, REVOKE, TRY_S, TXN, EtcdConnection
from maar.adapters.etcd.hints import Hints
from maar.adapters.etcd.requests import (
    absent,
    compare_revision,
    get,
    key_value,
    put,
    revision,
    txn,
    value,
)
from maar.adapters.etcd.tenure import RENEWALS, Tenure
from maar.adapters.etcd.tuning import TUNING, Tuning
from maar.adapters.etcd.values import Keys, Leading, pack
from maar.background import cancel
from maar.model.errors import MaarError, NotFound, OutcomeUnknown, Rejected, TermLost
from maar.ports.metastore.log import Candidate, Term

log_ = logging.getLogger("maar.etcd")

TICK_S = 0.1


T = TypeVar("T")


class Checked(Protocol):
    """Ask again, and elsewhere, when the answer is damaged."""

    async def __call__(self, call: Callable[[], Awaitable[T]], /) -> T: ...


class Last(NamedTuple):
    """The last term, and the revision at which it was written."""

    term: int
    revision: int


class Election:
    def __init__(
        self,
        connection: EtcdConnection,
        keys: Keys,
        hints: Hints,
        *,
        election_s: float,
        checked: Checked,
        tuning: Tuning = TUNING,
    ) -> None:
        self._checked = checked
        self._look_s = tuning.leader_look_s
        self._boot_ns = tuning.boot_ns
        self._connection = connection
        self._keys = keys
        self._hints = hints
        self._ttl_s = math.ceil(election_s)
        self._tenure: Tenure | None = None
        self._renewing: asyncio.Task[None] | None = None

    async def campaign(self, candidate: Candidate) -> Tenure:
        await self._end()
        while True:
            vacant, last = await self._checked(self._vacancy)
            if vacant and (won := await self._stand(candidate, last)):
                self._tenure = won
                self._renewing = asyncio.create_task(self._renew(won))
                return won
            await self._hints.leader_change(within_s=self._look_s)

    async def _vacancy(self) -> tuple[bool, Last]:
        state = await self._connection.call(TXN, txn(success=self._reads()))
        refuse_closed(key_value(state, 2), key_value(state, 3))
        last = key_value(state, 1)
        return key_value(state, 0) is None, Last(value(last, int, 0), revision(last))

    def tenure(self, term: Term) -> Tenure:
        """The tenure of a term that is certainly still held; TermLost otherwise."""
        tenure = self._tenure
        if tenure is None or tenure.term != term:
            raise TermLost(f"term {term} does not lead any more")
        if tenure.is_lost(self._boot_ns()):
            raise TermLost(
                f"term {term} may be over: its lease in etcd was not renewed in time, "
                "so that somebody else may lead"
            )
        return tenure

    def leads(self, term: Term) -> bool:
        tenure = self._tenure
        return tenure is not None and tenure.term == term and not tenure.is_lost(self._boot_ns())

    def hold(self, term: Term) -> None:
        self.tenure(term).note_held(self._boot_ns())

    async def resign(self, term: Term) -> bool:
        """Resign; False when that term was not ours, or is over already."""
        if self._tenure is None or self._tenure.term != term:
            return False
        await self._end()
        return True

    async def close(self) -> None:
        await self._end()

    async def _stand(self, candidate: Candidate, last: Last) -> Tenure | None:
        """Try to become leader after the last term; None when another replica was faster."""
        sent_ns = self._boot_ns()
        granted = await self._connection.call(GRANT, rpc.LeaseGrantRequest(TTL=self._ttl_s))
        term = Term(last.term + 1)
        leading = pack(Leading(term, candidate.name, candidate.address))
        request = txn(
            [
                absent(self._keys.leader),
                compare_revision(self._keys.term, last.revision),
                absent(self._keys.sealed),
                absent(self._keys.copying),
            ],
            [
                put(self._keys.leader, leading, lease=granted.ID),
                put(self._keys.term, pack(int(term))),
            ],
        )
        try:
            reply = await self._connection.once(TXN, request, within_s=TRY_S)
        except BaseException as error:
            # Revoking the lease makes sure that a transaction still in flight cannot make us
            # leader.
            await self._revoke(granted.ID)
            if isinstance(error, OutcomeUnknown | NotFound):  # NotFound: the lease has run out
                return None
            raise
        if not reply.succeeded:
            await self._revoke(granted.ID)
            return None
        return Tenure(
            term=term,
            lease=granted.ID,
            revision=reply.header.revision,
            ttl_ns=granted.TTL * 1_000_000_000,
            sent_ns=sent_ns,
            held_ns=self._boot_ns(),
        )

    async def _renew(self, tenure: Tenure) -> None:
        """Not a `background.Loop`: it ends with the term, and a failure turns to another member."""
        try_s = min(TRY_S, tenure.ttl_ns / RENEWALS / 1e9)
        while not tenure.is_lost(self._boot_ns()):
            if not tenure.due(self._boot_ns()):
                await asyncio.sleep(TICK_S)
                continue
            member, sent_ns = self._connection.member, self._boot_ns()
            request = rpc.LeaseKeepAliveRequest(ID=tenure.lease)
            try:
                reply = await self._connection.exchange(member, RENEW, request, within_s=try_s)
            except MaarError as error:
                log_.warning("leadership not renewed term=%d cause=%s", tenure.term, error)
                self._connection.turn(member)
                await asyncio.sleep(TICK_S)
                continue
            if reply.TTL <= 0:
                tenure.over = True
            elif not tenure.is_lost(self._boot_ns()):
                tenure.note_renewal(sent_ns=sent_ns)

    async def _end(self) -> None:
        tenure, self._tenure = self._tenure, None
        renewing, self._renewing = self._renewing, None
        if renewing is not None:
            await cancel(renewing)
        if tenure is not None:
            tenure.over = True
            await self._revoke(tenure.lease)

    async def _revoke(self, lease: int) -> None:
        try:
            await self._connection.call(
                REVOKE, rpc.LeaseRevokeRequest(ID=lease), within_s=2 * TRY_S
            )
        except Rejected:
            pass  # it has run out already
        except MaarError as error:
            log_.warning("etcd lease not revoked, it will expire cause=%s", error)

    def _reads(self) -> list[Any]:
        keys = self._keys
        return [get(key) for key in (keys.leader, keys.term, keys.sealed, keys.copying)]


def check_leadership(leader: Any | None, leadership: int, term: Term) -> None:
    """TermLost unless the leader's key is the one that this term created."""
    if leader is None or leader.create_revision != leadership:
        raise TermLost(f"term {term} does not lead any more: its lease in etcd is gone")


def refuse_closed(sealed: Any | None, copying: Any | None) -> None:
    """Rejected when nobody may lead in this log."""
    if sealed is not None:
        raise Rejected(f"the log was sealed: {value(sealed, str, '')}")
    if copying is not None:
        raise Rejected("the log is being copied into; finish the copy, or remove it and begin anew")
