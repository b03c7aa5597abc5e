"""What is in force for a job: its kind's default, then every rule whose pattern it matches.

The more exact pattern decides, the tenant before the kind and the kind before the type; and what
was set by command decides before what is configured.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from itertools import product

import msgspec

from maar.model.ids import TenantId
from maar.model.plan import JobId, PlanKind
from maar.model.schedule import ALL, Schedule, ScheduleRule


def by_pattern(rules: Iterable[ScheduleRule]) -> dict[JobId, ScheduleRule]:
    """Of two rules with one pattern the later one decides what both set."""
    found: dict[JobId, ScheduleRule] = {}
    for rule in rules:
        before = found.get(rule.jobs)
        found[rule.jobs] = _merge(before, rule) if before else rule
    return found


def _merge(before: ScheduleRule, after: ScheduleRule) -> ScheduleRule:
    return msgspec.structs.replace(before, **_given_fields(after))


def _given_fields(rule: ScheduleRule) -> dict[str, object]:
    given = msgspec.structs.asdict(rule)
    return {name: value for name, value in given.items() if name != "jobs" and value is not None}


def patterns(job: JobId) -> Iterator[JobId]:
    """Every pattern that a job matches, the least exact first. So it costs the same, however many
    rules there are.
    """
    for tenant, kind, type_ in product((ALL, job.tenant), (ALL, job.kind), (ALL, job.type)):
        yield JobId(TenantId(tenant), PlanKind(kind), type_)


def matches(pattern: JobId, job: JobId) -> bool:
    return (
        pattern.tenant in (ALL, job.tenant)
        and pattern.kind in (ALL, job.kind)
        and pattern.type in (ALL, job.type)
    )


def in_force(
    default: Schedule, job: JobId, *layers: Mapping[JobId, ScheduleRule]
) -> tuple[Schedule, tuple[JobId, ...]]:
    """The schedule of a job, and the patterns that had a say in it, the last one decides."""
    schedule = default
    by: list[JobId] = []
    for layer in filter(None, layers):
        for pattern in patterns(job):
            rule = layer.get(pattern)
            if rule is not None:
                schedule = _overlaid(schedule, rule)
                by.append(pattern)
    return schedule, tuple(by)


def _overlaid(schedule: Schedule, rule: ScheduleRule) -> Schedule:
    """Who sets another interval gets thresholds that fit it, unless the same rule sets those."""
    given = _given_fields(rule)
    if rule.interval_ns is not None and rule.interval_ns != schedule.interval_ns:
        schedule = with_interval(schedule, rule.interval_ns)
    return msgspec.structs.replace(schedule, **given)


def with_interval(schedule: Schedule, interval_ns: int) -> Schedule:
    """For seven days: due after one day when it is new, a warning at eight, an error at ten."""
    return msgspec.structs.replace(
        schedule,
        interval_ns=interval_ns,
        initial_delay_ns=interval_ns // 7,
        warning_ns=interval_ns * 8 // 7,
        error_ns=interval_ns * 10 // 7,
    )
