"""/api/v1/plans and /api/v1/clean: schedule, execute and roll back plans over HTTP.

Whoever executes a plan holds it by the lease protocol: grant, start, renew, and complete or fail,
each with the token of the grant. Refusals are answers like any other: the object that a success
would be, with its outcome, and beside it the code and message of every error.
"""

from __future__ import annotations

import asyncio
import secrets
from datetime import UTC, date, datetime
from typing import Annotated, Any

import msgspec
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from maar.api.errors import RETRY_AFTER_S
from maar.model.block import NO_DAY
from maar.model.errors import InvalidInput, LeaseLost, NotFound, Retryable
from maar.model.ids import FencingToken, PlanId, TenantId, WorkerId, tenant_id
from maar.model.plain import plain, record
from maar.model.plan import Account, PlanKind, PlanResult
from maar.model.refusal import Refusal
from maar.model.repair import RangeResult
from maar.model.time import SECOND_NS
from maar.model.token_range import TokenRange
from maar.ports.calls import Caller
from maar.ports.metastore.log_time import GetNow
from maar.ports.metastore.metastore import Metastore
from maar.ports.operator.operator import FoundOrphans, ListOrphans, SweepOrphans
from maar.ports.plans.board import (
    CleanStep,
    CommitPart,
    ConfirmDeletes,
    Outcome,
    PollReply,
    PollRequest,
    Renewal,
    Report,
    RollBackPlan,
    RollbackRef,
    RunPlanNow,
    SchedulePlan,
    ScheduleRollbacks,
)
from maar.ports.plans.outcome import (
    DONE,
    TAKEN,
    OutcomeName,
    PlanOutcome,
    refusal_of,
    report_refused,
)
from maar.ports.stores.stores import StorePlace, StorePlaces
from maar.services.clean.rules import CLEAN

RESULT_BYTES_MAX = 16 << 20  # it lists every object that a plan wrote
CLEANING_WAIT_S = 3.0  # for a cleaning that somebody else is at; most end in a moment
ASK_AGAIN_S = 0.1
KINDS_MAX = 100  # that somebody says that it carries out
KEYS_MAX = 1000  # objects to delete that are confirmed together
CALLER = WorkerId("http")  # who reports under a token and does not say
OPEN_TO_ALL = ("endpoint", "region", "allow_http")  # options of a store that are no secret

Name = Annotated[str, msgspec.Meta(min_length=1, max_length=200)]
Number = Annotated[int, msgspec.Meta(ge=0, le=1 << 31)]


class ScheduleBody(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A plan to schedule; what its kind does not go by is left out."""

    kind: Name
    tenant: str = ""
    shard: Number = 0
    level: Number = 0
    window: str = ""  # a UTC day, YYYY-MM-DD
    request_id: str = ""


class GrantBody(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Who wants to execute a plan: a name of its own for each process, since whoever asks again
    under the same name gets the same lease.
    """

    worker: Name
    kinds: Annotated[tuple[Name, ...], msgspec.Meta(max_length=KINDS_MAX)] = ()  # (): any
    ignore_windows: bool = False  # of the schedule; pauses and resources are respected


class HeldLease(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The lease under which somebody speaks."""

    token: str


class Completion(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    token: str
    result: dict[str, Any]


class Failure(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Why an attempt failed, and whether the plan itself was at fault; its tasks have ended."""

    token: str
    cause: str
    plan_at_fault: bool = True


class RunNowBody(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The plan's own id says it all."""


class PartDone(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What one task of a session did."""

    token: str
    result: dict[str, Any]
    empty: tuple[tuple[int, int], ...] = ()  # ranges without blocks, which are done with it


class RollbackBody(msgspec.Struct, frozen=True):
    """The plan's own id says it all; what else comes with it, such as a token, does not matter."""


class ConfirmBody(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Objects that a rollback is about to delete."""

    token: str
    keys: Annotated[tuple[str, ...], msgspec.Meta(max_length=KEYS_MAX)]


class CleanBody(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A cleaning; with plan and token, the first step of one that the caller holds."""

    dry_run: bool = False
    schedule_only: bool = False
    rollbacks_only: bool = False
    plan: str = ""
    token: str = ""
    orphans: bool = True  # whether to look for them, which may take some seconds


def _store(place: StorePlace) -> dict[str, Any]:
    options = {name: value for name, value in place.settings.options if name in OPEN_TO_ALL}
    told = {"name": place.name, "url": place.settings.url, "options": options}
    return {**told, "region": place.region, "zones": place.zones}


class PlanCommands:
    """Thin wrappers over the plan board, which decides."""

    def __init__(
        self, metastore: Caller[Metastore], stores: StorePlaces | None, addresses: str
    ) -> None:
        self._metastore = metastore
        self._stores = stores
        self._addresses = addresses

    async def executor(self, _tenant: TenantId, _request: Request) -> Response:
        """What an executor needs to know; credentials it has of its own."""
        if self._stores is None:
            raise NotFound("this server does not know the store")
        now = await self._metastore.call(GetNow())
        return JSONResponse(
            {
                "store": _store(self._stores.home),
                "stores": [_store(place) for place in self._stores.places],
                "zone": self._stores.zone,
                "metastore": self._addresses,
                "incarnation": now.incarnation,
            }
        )

    # ── schedule ───────────────────────────────────────────────────────────────────────────────

    async def schedule(self, _request: Request, asked: ScheduleBody) -> Any:
        found = await self._metastore.call(
            SchedulePlan(
                PlanKind(asked.kind),
                tenant_id(asked.tenant) if asked.tenant else "",
                asked.shard,
                asked.level,
                day_of(asked.window) if asked.window else NO_DAY,
                asked.request_id,
            )
        )
        if found.plan is None:
            nothing = {"plan": None, "kind": found.kind, "why": found.why}
            return _refusal(409, found.why, nothing)
        return {
            "plan": str(found.plan),
            "kind": found.kind,
            "state": found.state,
            "created": found.created,
        }

    # ── execute: the lease protocol ────────────────────────────────────────────────────────────

    async def grant(self, request: Request, asked: GrantBody) -> Any:
        plan = _plan(request)
        kinds = tuple(map(PlanKind, asked.kinds))
        wish = PollRequest(
            WorkerId(asked.worker),
            1,
            kinds=kinds,
            execute=plan,
            ignore_windows=asked.ignore_windows,
        )
        reply = await self._metastore.call(wish)
        if not reply.granted:
            assert reply.execution is not None
            return _outcome(refusal_of(reply.execution))
        (leased,) = reply.granted
        return {
            "token": str(leased.token),
            "lease_s": leased.lease_ns / SECOND_NS,
            "plan": plain(leased),
        }

    async def run_now(self, request: Request, _asked: RunNowBody) -> Any:
        """Asks a worker: the next one with room that carries out such plans gets it."""
        found = await self._metastore.call(RunPlanNow(_plan(request)))
        return _outcome(refusal_of(found))

    async def renew(self, request: Request, asked: HeldLease) -> Any:
        return await self._renew(_plan(request), asked.token, started=False)

    async def start(self, request: Request, asked: HeldLease) -> Any:
        return await self._renew(_plan(request), asked.token, started=True)

    async def _renew(self, plan: PlanId, text: str, *, started: bool) -> Any:
        token = FencingToken.parse(text)
        renewal = Renewal(plan, token, started)
        reply = await self._metastore.call(PollRequest(CALLER, 0, renewals=(renewal,)))
        if not reply.kept:
            return _lost_lease(plan, str(Refusal.STALE_TOKEN))
        lease_s, stop = reply.kept[0].lease_ns / SECOND_NS, reply.kept[0].stop
        told = {"plan": str(plan), "token": str(token), "lease_s": lease_s}
        return {**told, "stop": stop} if stop else told

    async def complete(self, request: Request, asked: Completion) -> Any:
        plan, result = _plan(request), record(PlanResult, asked.result)
        outcome = await self._report(Report(plan, FencingToken.parse(asked.token), result))
        if not outcome.accepted:
            return _outcome(report_refused(plan, outcome.refusal))
        return PlanOutcome(plan, OutcomeName.COMPLETED, outputs=result.outputs).as_json()

    async def fail(self, request: Request, asked: Failure) -> Any:
        plan, token = _plan(request), FencingToken.parse(asked.token)
        report = Report(plan, token, None, asked.cause, asked.plan_at_fault)
        outcome = await self._report(report)
        if not outcome.accepted:
            return _outcome(report_refused(plan, outcome.refusal))
        return PlanOutcome(plan, OutcomeName.FAILED, cause=asked.cause).as_json()

    async def _report(self, report: Report) -> Outcome:
        reply = await self._metastore.call(PollRequest(CALLER, 0, reports=(report,)))
        return reply.outcomes[0]

    async def commit_part(self, request: Request, asked: PartDone) -> Any:
        plan, token = _plan(request), FencingToken.parse(asked.token)
        result = record(RangeResult, asked.result)
        empty = tuple(TokenRange(*each) for each in asked.empty)
        found = await self._metastore.call(CommitPart(plan, token, result, empty))
        if not found.accepted:
            return _lost_lease(plan, found.refusal)
        told = {"plan": str(plan), "refused": list(found.refused), "stop": found.stop}
        return {**told, "down": list(found.down)}

    # ── roll back and clean ────────────────────────────────────────────────────────────────────

    async def roll_back(self, request: Request, _asked: RollbackBody) -> Any:
        """Schedules it; whoever is granted the rollback carries it out, or the cleaner does."""
        plan = _plan(request)
        try:
            found = await self._metastore.call(RollBackPlan(plan))
        except NotFound as error:
            missing = {"rollback": None, "target": str(plan), "outcome": "not_found"}
            return _refusal(404, str(error), missing)
        told = plain(found)
        if found.outcome == "lease_live":
            return _refusal(409, f"somebody executes plan {plan} under a live lease", told)
        return told

    async def confirm(self, request: Request, asked: ConfirmBody) -> Any:
        plan, token = _plan(request), FencingToken.parse(asked.token)
        try:
            keys = await self._metastore.call(ConfirmDeletes(plan, token, asked.keys))
        except LeaseLost as error:
            return _lost_lease(plan, str(error))
        return {"plan": str(plan), "token": str(token), "keys": list(keys)}

    async def clean(self, _request: Request, asked: CleanBody) -> Any:
        if asked.schedule_only and asked.rollbacks_only:
            raise InvalidInput("schedule_only and rollbacks_only leave nothing", reason="request")
        if asked.plan:
            plan, token = PlanId.parse(asked.plan), FencingToken.parse(asked.token)
            try:
                step = await self._metastore.call(ScheduleRollbacks(plan, token))
            except LeaseLost as error:
                return _lost_lease(plan, str(error))
            return await self._clean_answer(step, asked)
        if asked.dry_run or asked.rollbacks_only:
            step = await self._metastore.call(ScheduleRollbacks(None, None))
            return await self._clean_answer(step, asked)
        return await self._schedule_rollbacks(asked)

    async def _schedule_rollbacks(self, asked: CleanBody) -> Any:
        """The first step, under the lease of a cleaning of our own; the rollbacks are plans that
        the resident cleaner carries out, or whoever else is granted them.
        """
        worker = WorkerId(f"http-{secrets.token_hex(4)}")
        loop = asyncio.get_running_loop()
        until = loop.time() + CLEANING_WAIT_S
        while not (reply := await self._grant_cleaning(worker)).granted:
            assert reply.execution is not None
            outcome = refusal_of(reply.execution)
            passes = outcome.outcome in (OutcomeName.LEASE_LIVE, OutcomeName.ALREADY_COMPLETED)
            if not passes or loop.time() >= until:
                return await self._answer_of_another(outcome, asked)
            await asyncio.sleep(ASK_AGAIN_S)
        (held,) = reply.granted
        start = Renewal(held.id, held.token, started=True)
        await self._metastore.call(PollRequest(worker, 0, renewals=(start,)))
        step = await self._metastore.call(ScheduleRollbacks(held.id, held.token))
        result = PlanResult(CLEAN, (), Account(0, 0, 0))
        await self._report(Report(held.id, held.token, result))
        return await self._clean_answer(step, asked)

    async def _grant_cleaning(self, worker: WorkerId) -> PollReply:
        """The resident cleaner may take it between the two steps; it is done in a moment."""
        made = await self._metastore.call(SchedulePlan(CLEAN))
        assert made.plan is not None
        return await self._metastore.call(PollRequest(worker, 1, execute=made.plan))

    async def _answer_of_another(self, outcome: PlanOutcome, asked: CleanBody) -> Any:
        """Another cleaning has it; what is pending already can be executed all the same."""
        step = await self._metastore.call(ScheduleRollbacks(None, None))
        step = msgspec.structs.replace(step, scheduled=())
        told = {
            **await self._clean_answer(step, asked),
            "plan": str(outcome.plan),
            "outcome": outcome.outcome,
        }
        if outcome.outcome in DONE:
            return told
        return _refusal(_status(outcome), outcome.why, told)

    async def _clean_answer(self, step: CleanStep, asked: CleanBody) -> dict[str, Any]:
        return _clean_answer(step, asked, await self._orphans(asked))

    async def _orphans(self, asked: CleanBody) -> FoundOrphans:
        """A whole cleaning sweeps them too; else they are only counted."""
        if not asked.orphans:
            return FoundOrphans(0, 0, (), False)
        whole = not (asked.dry_run or asked.schedule_only or asked.rollbacks_only)
        try:
            return await self._metastore.call(SweepOrphans() if whole else ListOrphans())
        except Retryable as error:  # the rollbacks are scheduled all the same
            return FoundOrphans(0, 0, (), False, (f"orphans were not looked for: {error}",))


def day_of(window: str) -> int:
    try:
        day = datetime.strptime(window, "%Y-%m-%d").replace(tzinfo=UTC).date()
    except ValueError:
        raise InvalidInput(
            f"window={window[:60]!r} is not a day; one looks like 2026-11-15", reason="request"
        ) from None
    return (day - date(1970, 1, 1)).days


def _plan(request: Request) -> PlanId:
    return PlanId.parse(request.path_params["id"])


def _clean_answer(step: CleanStep, asked: CleanBody, orphans: FoundOrphans) -> dict[str, Any]:
    """A dry run says what would be; rollbacks that are not made yet have no id."""
    scheduled = () if asked.rollbacks_only else step.scheduled
    would = (*step.pending, *scheduled) if asked.dry_run and not asked.schedule_only else ()
    return {
        "scheduled": [_ref(each, asked) for each in scheduled],
        "executed": [_ref(each, asked) for each in would],
        "skipped": plain(step.skipped),
        "orphans": {"objects": orphans.objects, "bytes": orphans.bytes},
        "orphan_search": {
            "first": plain(orphans.first),
            "complete": orphans.complete,
            "kept": list(orphans.kept),
        },
        "pending": plain(step.pending),
    }


def _ref(each: RollbackRef, asked: CleanBody) -> dict[str, Any]:
    made = each.rollback.index > 0 or not asked.dry_run
    return {"rollback": str(each.rollback) if made else None, "target": str(each.target)}


def _lost_lease(plan: PlanId, why: str) -> Response:
    return _outcome(PlanOutcome(plan, OutcomeName.LOST, why=why))


def _outcome(outcome: PlanOutcome) -> Response:
    if outcome.outcome in TAKEN:
        return JSONResponse(outcome.as_json())
    return _refusal(_status(outcome), outcome.why, outcome.as_json())


def _status(outcome: PlanOutcome) -> int:
    match outcome.outcome:
        case OutcomeName.NOT_FOUND:
            return 404
        case OutcomeName.BUSY:
            return 503
        case _:
            return 409


CODES = {404: "not_found", 409: "failed_precondition", 503: "unavailable"}


def _refusal(status: int, message: str, told: dict[str, Any]) -> Response:
    # What was lost or refused stays so, whoever says the same again.
    again = status == 503 or told.get("outcome") == OutcomeName.LEASE_LIVE
    headers = {"Retry-After": f"{RETRY_AFTER_S:.0f}"} if again else None
    body = {**told, "code": CODES[status], "message": message}
    return JSONResponse(body, status, headers=headers)
