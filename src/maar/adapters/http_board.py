"""The plan board of a server elsewhere, over its HTTP API: for executors that know only its URL.

One plan at a time is asked for by its id; plans are not handed out here as they are to a worker.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any, NamedTuple, TypeVar, cast
from urllib.parse import quote, urlencode

import httpx

from maar.model.block import NO_DAY, BlockMeta
from maar.model.errors import (
    InvalidInput,
    LeaseLost,
    MaarError,
    NotFound,
    Rejected,
    Unavailable,
    Unreachable,
)
from maar.model.ids import Incarnation, PlanId, StoreName, TenantId, Zone
from maar.model.keys import date_text
from maar.model.plain import plain, record
from maar.model.plan import LeasedPlan
from maar.model.time import SECOND_NS
from maar.ports.calls import Call
from maar.ports.operator.copies import ReportDamage
from maar.ports.operator.operator import PlanDetail
from maar.ports.plans.board import (
    Answer,
    CleanStep,
    CommitPart,
    ConfirmDeletes,
    Execution,
    Kept,
    Outcome,
    PartCommitted,
    PollReply,
    PollRequest,
    Renewal,
    Report,
    RollBackPlan,
    RollbackRef,
    RollbackReply,
    ScheduledPlan,
    SchedulePlan,
    ScheduleRollbacks,
    SkippedPlan,
)
from maar.ports.plans.executor import ExecutorPort
from maar.ports.stores.object_store import StoreSettings
from maar.ports.stores.stores import StorePlace, StorePlaces

R = TypeVar("R")

ANSWER_S = 10.0
CONNECT_S = 5.0
PLANS = "/api/v1/plans"
DAMAGE = "/api/v1/stores/damage"
LOST = "lost"


class ExecutorSetup(NamedTuple):
    """What a server tells whoever executes plans for it."""

    stores: StorePlaces
    metastore: str
    incarnation: Incarnation


class HttpBoard:
    """A Caller[ExecutorPort]; every failure is one of our errors."""

    def __init__(self, url: str, *, transport: httpx.AsyncBaseTransport | None = None) -> None:
        self._url = url.rstrip("/")
        try:
            self._http = httpx.AsyncClient(
                base_url=self._url,
                timeout=httpx.Timeout(ANSWER_S, connect=CONNECT_S),
                trust_env=False,
                verify=not self._url.lower().startswith("http://"),  # certificates are read slowly
                transport=transport,
            )
        except (httpx.InvalidURL, UnicodeEncodeError) as error:
            raise InvalidInput(f"{url!r} is not a server's address: {error}") from None

    async def close(self) -> None:
        await self._http.aclose()

    async def setup(self) -> ExecutorSetup:
        found = await self._ask("GET", "/api/v1/executor")
        places = tuple(_place(each) for each in found["stores"])
        return ExecutorSetup(
            StorePlaces(places, Zone(found["zone"])),
            found["metastore"],
            Incarnation(found["incarnation"]),
        )

    async def plan(self, plan: PlanId) -> PlanDetail:
        return record(PlanDetail, await self._ask("GET", f"{PLANS}/{plan}"))

    async def period_ns(self, tenant: TenantId) -> int:
        """How long a tenant's profiles are kept; 0: for ever."""
        found = await self._ask("GET", f"/api/v1/retention/{quote(tenant, safe='')}")
        return int(found["period_s"] * SECOND_NS)

    async def blocks_of(self, tenant: TenantId, service: str) -> tuple[BlockMeta, ...]:
        """All live blocks that hold profiles of a service, but those of which some was deleted:
        what they still hold of it is not there for anybody.
        """
        query = urlencode({"tenant": tenant, "service": service})
        found = await self._ask("GET", f"/api/v1/blocks?{query}")
        masked = set(found["masked"])
        return tuple(
            record(BlockMeta, each) for each in found["blocks"] if each["id"] not in masked
        )

    async def call(self, request: Call[ExecutorPort, R], /) -> R:
        answer: Any
        match request:
            case PollRequest():
                answer = await self._poll(request)
            case SchedulePlan():
                answer = await self._schedule(request)
            case RollBackPlan():
                answer = await self._roll_back(request)
            case ScheduleRollbacks():
                answer = await self._clean(request)
            case CommitPart():
                answer = await self._commit_part(request)
            case ConfirmDeletes():
                body = {"token": str(request.token), "keys": request.keys}
                found = _check_lease(await self.order(f"{PLANS}/{request.plan}/confirm", body))
                answer = tuple(found["keys"])
            case ReportDamage():
                copies = [plain(each) for each in request.copies]
                answer = await self.order(DAMAGE, {"copies": copies})
            case _:
                raise Rejected(f"{type(request).__name__} is not asked over HTTP")
        return cast(R, answer)

    # ── the lease protocol ─────────────────────────────────────────────────────────────────────

    async def _poll(self, request: PollRequest) -> PollReply:
        """Reports first, as the metastore takes them; each lease is a request of its own."""
        outcomes = [await self._report(report) for report in request.reports]
        kept = await asyncio.gather(*map(self._renew, request.renewals))
        granted, execution = None, None
        if request.execute is not None and request.capacity > 0:
            granted, execution = await self._grant(request.execute, request)
        return PollReply(
            granted=(granted,) if granted else (),
            kept=tuple(each for each in kept if each is not None),
            outcomes=tuple(outcomes),
            execution=execution,
        )

    async def _report(self, report: Report) -> Outcome:
        token = str(report.token)
        if report.result is not None:
            verb, body = "complete", {"token": token, "result": plain(report.result)}
        else:
            fault = report.plan_at_fault
            verb, body = "fail", {"token": token, "cause": report.failure, "plan_at_fault": fault}
        found = await self.order(f"{PLANS}/{report.plan}/{verb}", body)
        refusal = found["why"] if "code" in found else ""
        return Outcome(report.plan, report.token, not refusal, refusal)

    async def _renew(self, renewal: Renewal) -> Kept | None:
        verb = "start" if renewal.started else "renew"
        body = {"token": str(renewal.token)}
        found = await self.order(f"{PLANS}/{renewal.plan}/{verb}", body)
        if found.get("outcome") == LOST:
            return None
        lease_ns = int(found["lease_s"] * SECOND_NS)
        return Kept(renewal.plan, renewal.token, lease_ns, found.get("stop", ""))

    async def _grant(self, plan: PlanId, asked: PollRequest) -> tuple[LeasedPlan | None, Execution]:
        body: dict[str, Any] = {"worker": asked.worker, "kinds": asked.kinds}
        if asked.ignore_windows:
            body["ignore_windows"] = True
        found = await self.order(f"{PLANS}/{plan}/grant", body)
        if "outcome" not in found:
            return record(LeasedPlan, found["plan"]), Execution(plan, Answer.GRANTED)
        answer, result = Answer(found["outcome"]), None
        if answer is Answer.ALREADY_COMPLETED:
            result = (await self.plan(plan)).plan.result
        refused = Execution(
            plan,
            answer,
            found.get("why", ""),
            found.get("holder", ""),
            found.get("seconds_left", 0.0),
            tuple(PlanId.parse(text) for text in found.get("children", ())),
            result,
        )
        return None, refused

    async def _commit_part(self, request: CommitPart) -> PartCommitted:
        body = {
            "token": str(request.token),
            "result": plain(request.result),
            "empty": [(each.start, each.end) for each in request.empty],
        }
        found = await self.order(f"{PLANS}/{request.plan}/part", body)
        if found.get("outcome") == LOST:
            return PartCommitted(False, found["why"])
        down = tuple(map(StoreName, found.get("down", ())))
        return PartCommitted(True, refused=tuple(found["refused"]), stop=found["stop"], down=down)

    # ── the rest of the board ──────────────────────────────────────────────────────────────────

    async def _schedule(self, request: SchedulePlan) -> ScheduledPlan:
        wish = {
            "kind": request.kind,
            "tenant": request.tenant,
            "shard": request.shard,
            "level": request.level,
            "window": "" if request.day == NO_DAY else date_text(request.day),
            "request_id": request.request_id,
        }
        return record(ScheduledPlan, await self.order(PLANS, wish))

    async def _roll_back(self, request: RollBackPlan) -> RollbackReply:
        found = await self.order(f"{PLANS}/{request.plan}/rollback", {})
        if found["outcome"] == Answer.NOT_FOUND:
            raise NotFound(found["message"])
        return record(RollbackReply, found)

    async def _clean(self, request: ScheduleRollbacks) -> CleanStep:
        held = request.plan is not None
        body = {"plan": str(request.plan), "token": str(request.token)} if held else {}
        asked = body | {"dry_run": not held, "orphans": False}
        found = _check_lease(await self.order("/api/v1/clean", asked))
        return CleanStep(
            tuple(record(RollbackRef, each) for each in found["scheduled"] if each["rollback"]),
            tuple(record(SkippedPlan, each) for each in found["skipped"]),
            tuple(record(RollbackRef, each) for each in found["pending"]),
        )

    # ── HTTP ───────────────────────────────────────────────────────────────────────────────────

    async def order(self, path: str, body: Mapping[str, Any]) -> dict[str, Any]:
        """The object that a request is answered with, refused or not."""
        return await self._ask("POST", path, body)

    async def _ask(
        self, verb: str, path: str, body: Mapping[str, Any] | None = None
    ) -> dict[str, Any]:
        """The answer, also of a refusal that says what the outcome is."""
        try:
            reply = await self._http.request(verb, path, json=body)
        except httpx.UnsupportedProtocol:
            raise InvalidInput(f"{self._url!r} is not a server's address") from None
        except httpx.HTTPError as error:
            raise Unreachable(f"{self._url} does not answer ({error}); ask again") from error
        try:
            found: dict[str, Any] = reply.json()
        except ValueError:
            found = {"message": reply.text[:300]}
        if reply.is_success or "outcome" in found or "plan" in found:
            return found
        raise _error(reply.status_code, found.get("message", "no reason given"))


def _place(told: Mapping[str, Any]) -> StorePlace:
    options = tuple(sorted((str(name), str(text)) for name, text in told["options"].items()))
    settings = StoreSettings(told["name"], told["url"], options)
    return StorePlace(settings, told["region"], tuple(told["zones"]))


def _check_lease(found: dict[str, Any]) -> dict[str, Any]:
    """What was asked under a lease; LeaseLost when that is gone."""
    if found.get("outcome") == LOST:
        raise LeaseLost(found["why"])
    return found


def _error(status: int, message: str) -> MaarError:
    if status == 400:
        return InvalidInput(message, reason="request")
    if status == 404:
        return NotFound(message)
    if status == 429 or status >= 500:
        return Unavailable(message)
    return Rejected(message)
