"""Requests that wait for the leader's loop, and how the fold's effects answer them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Generic, TypeVar

from maar.metastore.decide import execution as execute
from maar.metastore.decide.jobs import JobBook, Moment
from maar.metastore.records.effects import (
    AttemptEnded,
    Completed,
    Effect,
    Leased,
    Refused,
    Registered,
    Renewed,
)
from maar.metastore.records.entries import Entry
from maar.metastore.state.state import MetaState
from maar.metastore.views import reads
from maar.model.block import BlockMeta
from maar.model.errors import MaarError, Overloaded
from maar.model.ids import FencingToken, PlanId
from maar.model.time import LeaseTime
from maar.ports.plans.board import Answer, Kept, Outcome, PollReply, PollRequest
from maar.ports.writer.registrar import AddReply

WAITING_MAX = 10_000
TAKEN_AT_ONCE = 512  # requests, or blocks in them

T = TypeVar("T")


class Request(Generic[T]):
    def __init__(self) -> None:
        self.answer: asyncio.Future[T] = asyncio.get_running_loop().create_future()

    def settle(self, value: T) -> None:
        if not self.answer.done():  # the caller may have gone
            self.answer.set_result(value)

    def fail(self, error: BaseException) -> None:
        if not self.answer.done():
            self.answer.set_exception(error)


class Add(Request[AddReply]):
    def __init__(self, blocks: tuple[BlockMeta, ...]) -> None:
        super().__init__()
        self.blocks = blocks


class Poll(Request[PollReply]):
    def __init__(self, poll: PollRequest) -> None:
        super().__init__()
        self.poll = poll


class PinRequest(Request[None]):
    def __init__(self, reader: str) -> None:
        super().__init__()
        self.reader = reader


Prepare = Callable[[MetaState, LeaseTime], list[Entry]]
Reply = Callable[[Sequence[Effect], MetaState], T]


class Command(Request[T]):
    """Entries that an operator or a background task asks for, answered from the fold's effects.

    A MaarError that `prepare` or `reply` raises is the answer too.
    """

    def __init__(self, prepare: Prepare, reply: Reply[T]) -> None:
        super().__init__()
        self.prepare = prepare
        self.reply = reply


class Inbox:
    """A bounded queue; the loop takes all that has arrived, which makes a group commit."""

    def __init__(self) -> None:
        self._waiting: asyncio.Queue[Request[Any]] = asyncio.Queue(WAITING_MAX)

    def put(self, request: Request[Any]) -> bool:
        try:
            self._waiting.put_nowait(request)
        except asyncio.QueueFull:
            return False
        return True

    async def take(self, patience_s: float) -> list[Request[Any]]:
        """All waiting requests, or none after a timeout."""
        try:
            async with asyncio.timeout(patience_s):  # wait_for may miss a cancellation
                taken = [await self._waiting.get()]
        except TimeoutError:
            return []
        weight = _weight(taken[0])
        while weight < TAKEN_AT_ONCE and not self._waiting.empty():
            taken.append(self._waiting.get_nowait())
            weight += _weight(taken[-1])
        return taken

    def refuse(self, error: MaarError) -> None:
        while not self._waiting.empty():
            self._waiting.get_nowait().fail(error)


def _weight(request: Request[Any]) -> int:
    return max(1, len(request.blocks)) if isinstance(request, Add) else 1


def fail(requests: Iterable[Request[Any]], error: MaarError) -> None:
    for request in requests:
        request.fail(error)


def answer(
    requests: Sequence[Request[Any]],
    effects: Sequence[Effect],
    state: MetaState,
    *,
    book: JobBook,
    at: Moment,
) -> None:
    """Answer from what the fold did, never from what the leader intended (S6)."""
    registered = {e.block: e.refusal for e in effects if isinstance(e, Registered)}
    granted = [effect for effect in effects if isinstance(effect, Leased) and not effect.before]
    refused_readers = {e.what for e in effects if isinstance(e, Refused) and e.what}
    for request in requests:
        match request:
            case Add():
                refusals = tuple(registered[meta.id] for meta in request.blocks)
                request.settle(AddReply(refusals, state.lease_time))
            case Poll():
                mine = [e for e in granted if e.worker == request.poll.worker]
                mine = mine[: max(0, request.poll.capacity)]  # the rest is for its next poll
                granted = [e for e in granted if e not in mine]
                request.settle(_poll_reply(request.poll, mine, effects, state, book=book, at=at))
            case PinRequest():
                if request.reader in refused_readers:
                    request.fail(Overloaded("too many readers hold the index; ask again later"))
                else:
                    request.settle(None)
            case _:
                pass  # a command has entries of its own


def _poll_reply(
    poll: PollRequest,
    granted: list[Leased],
    effects: Sequence[Effect],
    state: MetaState,
    *,
    book: JobBook,
    at: Moment,
) -> PollReply:
    renewed = {(e.plan, e.token) for e in effects if isinstance(e, Renewed)}
    outcomes = _outcomes(effects)
    execution, plans = None, [lease.plan for lease in granted]
    if poll.execute is not None and poll.capacity > 0:
        execution = execute.answer(
            state,
            poll.execute,
            poll.worker,
            now=at.now,
            kinds=poll.kinds,
            at=at,
            ignore_windows=poll.ignore_windows,
        )
        plans = [poll.execute] if execution.answer is Answer.GRANTED else []
    return PollReply(
        granted=tuple(reads.leased_plan(state, plan) for plan in plans),
        kept=tuple(
            Kept(
                renewal.plan,
                renewal.token,
                reads.lease_ns(state, renewal.plan),
                book.stop(state, state.plans[renewal.plan], at),
            )
            for renewal in poll.renewals
            if (renewal.plan, renewal.token) in renewed
        ),
        outcomes=tuple(
            Outcome(report.plan, report.token, not refusal, refusal)
            for report in poll.reports
            for refusal in (outcomes[report.plan, report.token],)
        ),
        execution=execution,
    )


def _outcomes(effects: Iterable[Effect]) -> dict[tuple[PlanId, FencingToken], str]:
    """Reports are applied first, so the first effect on a token answers its report."""
    found: dict[tuple[PlanId, FencingToken], str] = {}
    for effect in effects:
        match effect:
            case Completed() | AttemptEnded():
                found.setdefault((effect.plan, effect.token), "")
            case Refused(plan=PlanId() as plan, token=FencingToken() as token):
                found.setdefault((plan, token), str(effect.why))
            case _:
                pass
    return found
