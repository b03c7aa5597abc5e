"""Appends entries in one term: stamps them with lease time, appends, and applies what was stored.

There is never more than one append in flight. When its outcome is unknown, no other begins until a
linearizable read has settled it (S6).
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
from collections.abc import Callable, Iterable
from concurrent.futures import TimeoutError as FutureTimeoutError
from functools import partial

from maar.metastore.leader.stores import claim
from maar.metastore.records.effects import Effect
from maar.metastore.records.entries import (
    Entry,
    Genesis,
    PinsDropped,
    PinsTaken,
    PolicySet,
    StateHashed,
    Stored,
    TermStarted,
    VersionActivated,
    encode,
    encode_entry,
)
from maar.metastore.replica.follower import Follower
from maar.metastore.replica.timing import TIMING, Timing
from maar.metastore.state.state import MetaState
from maar.model import keys
from maar.model.errors import (
    AlreadyExists,
    HeadMoved,
    NotLeading,
    OutcomeUnknown,
    Retryable,
    TermLost,
    Unavailable,
)
from maar.model.ids import Incarnation
from maar.model.policy import Policy
from maar.model.time import LeaseTime, WallTime
from maar.ports.clock import Clock
from maar.ports.metastore.log import (
    ENTRY_BYTES_MAX,
    Head,
    Log,
    Term,
    follow,
    in_batches,
)
from maar.ports.stores.object_store import ObjectStore, exists

log_ = logging.getLogger("maar.metastore")

RESERVED = (  # a full log still accepts entries that a snapshot or readers need
    Genesis | TermStarted | VersionActivated | PolicySet | StateHashed | PinsTaken | PinsDropped
)
CONFIRM_S = 5.0  # a log that has not said by then who leads is asked again later
INLINE_BYTES_MAX = ENTRY_BYTES_MAX - 1024  # the envelope needs a little room


class Leader:
    """The appending side of one term; `follower` has the state and keeps it after the term."""

    def __init__(
        self,
        log: Log,
        store: ObjectStore,
        clock: Clock,
        follower: Follower,
        term: Term,
        *,
        timing: Timing = TIMING,
    ) -> None:
        self._log = log
        self._store = store
        self._clock = clock
        self._follower = follower
        self._replica = follower.replica
        self._timing = timing
        self._loop = asyncio.get_running_loop()
        self._held_at = self._loop.time()
        self.term = term
        self.settling = False

    @property
    def state(self) -> MetaState:
        return self._replica.state

    @property
    def head(self) -> Head:
        return self._replica.head

    @property
    def folded_bytes(self) -> int:
        return self._replica.folded_bytes

    def folded_bytes_at(self, index: int) -> int:
        """About how many bytes this replica had folded at an earlier entry."""
        began, now = self._follower.began_at, self.state.index
        return self.folded_bytes * max(0, index - began) // max(1, now - began)

    def now(self) -> LeaseTime:
        return self._follower.now()

    def hold(self) -> None:
        """Renew leadership because the loop makes progress; TermLost when it was lost."""
        self._log.hold(self.term)
        self._held_at = self._loop.time()

    def confirm(self) -> None:
        """Called before something is deleted: NotLeading unless this term certainly lasts (S15).

        It may be called in threads. Background tasks cannot prolong a term whose loop is stuck.
        """
        if self._loop.time() - self._held_at > self._timing.stuck_s:
            raise NotLeading("the leader's loop is stuck, so it may have lost leadership")
        try:
            self._log.hold(self.term)
        except TermLost as error:
            raise NotLeading(f"the metastore lost leadership: {error}") from error

    def confirm_deletes(self) -> None:
        """Called in threads, before objects are deleted: NotLeading unless the log itself names
        this term, and no incarnation has succeeded this one.

        `confirm` alone goes by this host: whoever was stopped while the log was restored elsewhere
        still leads its own old log, and only the store, which both share, can tell.
        """
        self.confirm()
        incarnation = self.state.incarnation
        if exists(self._store, keys.successor(incarnation)):
            raise NotLeading(
                f"the log {incarnation} was restored as another one, which may need what this one "
                "would delete"
            )
        asked = asyncio.run_coroutine_threadsafe(self._log.leadership(), self._loop)
        try:
            leadership = asked.result(CONFIRM_S)
        except FutureTimeoutError:
            asked.cancel()
            raise Unavailable("the log does not say who leads; ask again") from None
        if leadership is None or leadership.term != self.term:
            raise NotLeading("the metastore lost leadership: its log names another term")

    async def begin(
        self,
        name: str,
        policy: Policy,
        entropy: Callable[[int], bytes],
        activation: Callable[[int], list[Entry]],
        *,
        begin_anew: bool = False,
        log_url: str = "",  # for error messages
    ) -> None:
        """Apply what earlier leaders wrote, then append the entry that starts this term.

        Rejected when the store belongs to another log.
        """
        self.hold()
        await self._follower.catch_up(self.hold)
        await asyncio.to_thread(claim.check_first, self._store, self.state)
        opening: list[Entry] = []
        if not self.state.incarnation:
            if not begin_anew:
                look = partial(claim.check_unused, self._store, log_url=log_url)
                await asyncio.to_thread(look)
            opening.append(Genesis(Incarnation(entropy(4).hex())))
        opening.append(TermStarted(self.term, name))
        opening += activation(self.state.version)
        await self.commit(opening, now=self.now())
        settle = partial(claim.settle, self._store, self.state, begin_anew=begin_anew)
        await asyncio.to_thread(settle)
        self.hold()
        await self.set_policy(policy)

    async def set_policy(self, policy: Policy) -> None:
        """Append it, unless the log has it already."""
        if self.state.policy != policy:
            await self.commit([PolicySet(policy)], now=self.now())

    async def commit(self, entries: Iterable[Entry], *, now: LeaseTime) -> list[Effect]:
        """Append and apply; the effects say what each entry did. Raises when some were not stored.

        `now` is the time at which the entries were prepared, so that the fold sees what they
        presume.
        """
        wall = WallTime(self._clock.wall_ns())
        bodies = []
        entries = list(entries)
        reserve = all(isinstance(entry, RESERVED) for entry in entries)
        for index, entry in enumerate(entries, start=self.state.index + 1):
            body = encode_entry(entry)
            if len(body) > INLINE_BYTES_MAX:
                body = await self._store_apart(body, index)
            bodies.append(encode(self.state.version, now, wall, body))
        effects: list[Effect] = []
        for batch in in_batches(bodies):
            effects += await self._append(batch, reserve=reserve)
        return effects

    async def _append(self, bodies: list[bytes], *, reserve: bool) -> list[Effect]:
        before = self._replica.head
        records = follow(before, bodies, self.term)
        try:
            await self._log.append(bodies, term=self.term, head=before, reserve=reserve)
        except OutcomeUnknown as error:
            log_.warning("append outcome unknown after=%d cause=%s", before.index, error)
            if not await self._was_stored(records[-1].index, records[-1].hash):
                raise Unavailable("the log did not store the change; send it again") from error
        effects = await self._replica.fold(records)
        self.hold()
        return effects

    async def _was_stored(self, index: int, hash_: bytes) -> bool:
        """Ask the log until it answers; nothing else is appended meanwhile."""
        self.settling = True
        try:
            head = await self._head_at_last()
        finally:
            self.settling = False
        if head == self._replica.head:
            return False
        if head.index == index and head.hash == hash_:
            return True
        raise HeadMoved(f"somebody else wrote entry {head.index} of the log")

    async def _head_at_last(self) -> Head:
        give_up = self._loop.time() + self._timing.unsettled_s
        while True:
            try:
                return await self._log.head()
            except Retryable as error:
                log_.warning("append outcome still unknown cause=%s", error)
                if self._loop.time() > give_up:  # the next leader finds out what the log holds
                    raise TermLost(f"the log does not say what it stored: {error}") from error
                await asyncio.sleep(self._timing.settle_s)

    async def _store_apart(self, body: bytes, index: int) -> bytes:
        """An entry that says where the bytes of one are which is too large for the log (S12)."""
        digest = hashlib.sha256(body).digest()
        key = keys.stored_entry(incarnation=self.state.incarnation, index=index, sha256=digest)
        try:
            await asyncio.to_thread(self._store.create, key, body)
        except AlreadyExists:
            pass  # from an earlier try: the name contains the hash of exactly these bytes
        return encode_entry(Stored(key, len(body), digest))
