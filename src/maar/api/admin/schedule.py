"""/api/v1/schedule, /api/v1/policies, /api/v1/alarms: jobs, when they may run, what is wrong."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Annotated, Any

import msgspec
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from maar.api.guard import RequestGuard
from maar.model.errors import InvalidInput, NotFound
from maar.model.ids import TenantId
from maar.model.plan import JobId, PlanKind
from maar.model.schedule import (
    Alarm,
    LockLevel,
    RunPolicy,
    Schedule,
    ScheduleRule,
    minute_text,
    parse_minute,
    pattern,
)
from maar.model.schedule_settings import ScheduleEntry
from maar.model.time import SECOND_NS, WallTime
from maar.ports.calls import Caller
from maar.ports.metastore.metastore import Metastore
from maar.ports.operator.schedule import (
    AddRunPolicy,
    AskPolicies,
    ExplainJob,
    JobView,
    ListAlarms,
    ListJobs,
    ListRules,
    ListRunPolicies,
    RemoveRunPolicy,
    RemoveSchedule,
    SetSchedule,
)

ROWS_MAX = 100_000
Seconds = Annotated[float, msgspec.Meta(ge=0, le=1e10)]


class JobPattern(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Which jobs; what is left out is everything."""

    tenant: str = "*"
    kind: str = "*"
    type: str = "*"

    @property
    def jobs(self) -> JobId:
        return pattern(self.tenant, self.kind, self.type)


class JobScheduleBody(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What is set for the jobs of a pattern; what is left out is left as it is."""

    tenant: str = "*"
    kind: str = "*"
    type: str = "*"
    interval_s: Seconds | None = None
    initial_delay_s: Seconds | None = None
    warning_s: Seconds | None = None
    error_s: Seconds | None = None
    backoff_s: Seconds | None = None
    unwind_ratio: Annotated[float, msgspec.Meta(ge=0, le=100)] | None = None
    lock_level: LockLevel | None = None
    size_target: Annotated[int, msgspec.Meta(ge=0)] | None = None
    weight: Annotated[int, msgspec.Meta(ge=1, le=100)] | None = None

    def rule(self) -> ScheduleRule:
        return ScheduleEntry(**msgspec.structs.asdict(self)).rule()


class PolicyBody(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """When the jobs of a pattern do not run; from 00:00 to 00:00: never."""

    tenant: str = "*"
    kind: str = "*"
    type: str = "*"
    start: str = "00:00"
    end: str = "00:00"
    zone: str = "UTC"
    note: str = ""

    def policy(self) -> RunPolicy:
        jobs = pattern(self.tenant, self.kind, self.type)
        return RunPolicy(
            0, jobs, parse_minute(self.start), parse_minute(self.end), self.zone, self.note
        )


class ScheduleRoutes:
    def __init__(self, guard: RequestGuard, metastore: Caller[Metastore]) -> None:
        self._guard = guard
        self._metastore = metastore

    # ── jobs ──

    async def jobs(self, _tenant: TenantId, request: Request) -> Response:
        asked = request.query_params
        limit = _number(asked.get("limit", "1000"), most=ROWS_MAX)
        wish = ListJobs(asked.get("tenant", ""), asked.get("kind", ""), limit)
        found = await self._metastore.call(wish)
        rules = await self._metastore.call(ListRules())
        return JSONResponse(
            {
                "schedules": [job_text(each) for each in found],
                "set": [rule_text(rule) for rule in rules],
            }
        )

    async def explain(self, _tenant: TenantId, request: Request) -> Response:
        job = _job(request)
        sentences = await self._metastore.call(ExplainJob(job))
        return JSONResponse({**_parts(job), "sentences": list(sentences)})

    async def set(self, _request: Request, asked: JobScheduleBody) -> Any:
        rule = asked.rule()
        await self._metastore.call(SetSchedule(rule))
        return rule_text(rule)

    async def remove(self, _request: Request, asked: JobPattern) -> Any:
        await self._metastore.call(RemoveSchedule(asked.jobs))
        return _parts(asked.jobs)

    async def pause(self, _request: Request, asked: PolicyBody) -> Any:
        paused = msgspec.structs.replace(asked, start="00:00", end="00:00", zone="UTC")
        return policy_text(await self._metastore.call(AddRunPolicy(paused.policy())))

    async def resume(self, _request: Request, asked: JobPattern) -> Any:
        """Remove the pauses of exactly this pattern."""
        found = await self._metastore.call(ListRunPolicies())
        pauses = [each for each in found if each.pauses and each.jobs == asked.jobs]
        if not pauses:
            raise NotFound("nothing is paused by exactly these; `maar policy list` shows pauses")
        for policy in pauses:
            await self._metastore.call(RemoveRunPolicy(policy.id))
        return {**_parts(asked.jobs), "removed": [policy.id for policy in pauses]}

    # ── run policies ──

    async def policies(self, _tenant: TenantId, _request: Request) -> Response:
        found = await self._metastore.call(ListRunPolicies())
        return JSONResponse({"policies": [policy_text(policy) for policy in found]})

    async def add(self, _request: Request, asked: PolicyBody) -> Any:
        return policy_text(await self._metastore.call(AddRunPolicy(asked.policy())))

    async def remove_policy(self, request: Request, _asked: Any) -> Any:
        policy = _number(request.path_params["id"], most=1 << 62)
        await self._metastore.call(RemoveRunPolicy(policy))
        return {"id": policy}

    async def test(self, _tenant: TenantId, request: Request) -> Response:
        at = request.query_params.get("at_ms", "")
        wall = WallTime(_number(at, most=1 << 50) * 1_000_000) if at else None
        job = _job(request)
        found = await self._metastore.call(AskPolicies(job, wall))
        by = [policy_text(policy) for policy in found.by]
        told = {"allowed": found.allowed, "by": by, "why": found.why, "wait_s": found.wait_s}
        return JSONResponse(told)

    # ── alarms ──

    async def alarms(self, _tenant: TenantId, _request: Request) -> Response:
        found = await self._metastore.call(ListAlarms())
        return JSONResponse({"alarms": [alarm_text(alarm) for alarm in found]})


def _job(request: Request) -> JobId:
    tenant, kind, type_ = (
        request.query_params.get(name, "") for name in ("tenant", "kind", "type")
    )
    return JobId(TenantId(tenant), PlanKind(kind), type_)


def _number(text: str, *, most: int) -> int:
    if text.isascii() and text.isdigit() and int(text) <= most:
        return int(text)
    raise InvalidInput(f"{text[:60]!r} is not a number up to {most}", reason="request")


def _parts(job: JobId) -> dict[str, str]:
    return {"tenant": job.tenant, "kind": job.kind, "type": job.type}


def time_text(wall: WallTime | None) -> str | None:
    """As scripts read it."""
    if wall is None:
        return None
    try:
        moment = datetime.fromtimestamp(wall / SECOND_NS, UTC)
    except (OverflowError, ValueError, OSError):  # further away than a calendar reaches
        return None
    return moment.isoformat(timespec="seconds").replace("+00:00", "Z")


def _seconds(schedule: Schedule | ScheduleRule) -> dict[str, Any]:
    told: dict[str, Any] = {}
    for name, value in msgspec.structs.asdict(schedule).items():
        if name.endswith("_ns"):
            told[f"{name.removesuffix('_ns')}_s"] = None if value is None else value / SECOND_NS
        elif name == "unwind_permille":
            told["unwind_ratio"] = None if value is None else value / 1000
        elif name != "jobs":
            told[name] = value
    return told


def job_text(view: JobView) -> dict[str, Any]:
    return {
        **_parts(view.job),
        "state": view.state,
        "priority": view.priority,
        "last_success": time_text(view.last_success),
        "next": time_text(view.next),
        "why": view.why,
        "running": view.running,
        "age_s": round(view.age_s, 3),
        "done": view.done,
        "parts": view.parts,
        "schedule": _seconds(view.schedule),
    }


def rule_text(rule: ScheduleRule) -> dict[str, Any]:
    given = {name: value for name, value in _seconds(rule).items() if value is not None}
    return {**_parts(rule.jobs), **given}


def policy_text(policy: RunPolicy) -> dict[str, Any]:
    return {
        "id": policy.id,
        **_parts(policy.jobs),
        "start": minute_text(policy.start),
        "end": minute_text(policy.end),
        "zone": policy.zone,
        "pauses": policy.pauses,
        "note": policy.note,
    }


def alarm_text(alarm: Alarm) -> dict[str, Any]:
    return {
        **_parts(alarm.id),
        "level": alarm.level.name.lower(),
        "since": time_text(alarm.since_wall),
        "note": alarm.note,
    }
