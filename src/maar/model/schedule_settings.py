"""The schedule as it is configured: numbers for all jobs, and rules for those of a pattern."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, Struct

from maar.model.bounds import Age
from maar.model.schedule import ALL, LockLevel, ScheduleRule, check_rule, pattern
from maar.model.time import SECOND_NS

Span = Annotated[float, Meta(ge=0, le=10 * 365 * 86_400)]


class SchedulingSettings(Struct, frozen=True, kw_only=True):
    """The schedule of repair, clustering and cleaning.

    They reach the metastore's log when it starts. What they mean: [scheduling.md](scheduling.md).
    """

    granularity_s: Annotated[float, Meta(ge=1, le=86_400)] = 3600.0
    """A job's priority grows by its weight for every so many seconds that it is late."""
    resource_slots: Annotated[int, Meta(ge=1, le=1000)] = 1
    """How many sessions may use a store (or a region, see `lock_level`) at the same time."""
    session_s: Annotated[float, Meta(ge=1, le=3600)] = 300.0
    """A session that lasts longer is asked to stop after its present task."""


class ScheduleEntry(Struct, frozen=True, kw_only=True):
    """When jobs are due, each rule a table `[[schedules]]`. What a rule does not set is left as a
    less exact rule, or the kind of job, has it. `maar schedule set`
    decides before these.
    """

    tenant: str = ALL
    """Whose jobs; `*`: everybody's."""
    kind: str = ALL
    """`repair`, `cluster` or `clean`; `*`: all of them."""
    type: str = ALL
    """Of repair: `vnode` or `incremental`; `*`: both."""
    interval_s: Span | None = None
    """How long after a success the next is due; 0: only when somebody asks."""
    initial_delay_s: Span | None = None
    """A job that is new is not due before. Not set: a seventh of the interval."""
    warning_s: Span | None = None
    """An alarm, when the last success is so long ago. Not set: 8/7 of the interval."""
    error_s: Span | None = None
    """A worse alarm. Not set: 10/7 of the interval."""
    backoff_s: Span | None = None
    """How long a session that failed waits to be tried again."""
    unwind_ratio: Annotated[float, Meta(ge=0, le=100)] | None = None
    """After each session the job rests so many times as long as the session worked."""
    lock_level: LockLevel | None = None
    """`store`: a session occupies the stores that it touches; `region`: their regions too."""
    size_target: Annotated[int, Meta(ge=0)] | None = None
    """Bytes of a sub-range of a repair; 0: ranges are not divided."""
    weight: Annotated[int, Meta(ge=1, le=100)] | None = None
    """How fast its priority grows: 1 is low, 3 is high, 100 is that of an operator who waits."""

    def __post_init__(self) -> None:
        self.rule()

    def rule(self) -> ScheduleRule:
        return check_rule(
            ScheduleRule(
                jobs=pattern(self.tenant, self.kind, self.type),
                interval_ns=_ns(self.interval_s),
                initial_delay_ns=_ns(self.initial_delay_s),
                warning_ns=_ns(self.warning_s),
                error_ns=_ns(self.error_s),
                backoff_ns=_ns(self.backoff_s),
                unwind_permille=permille(self.unwind_ratio),
                lock_level=self.lock_level,
                size_target=self.size_target,
                weight=self.weight,
            )
        )


def _ns(seconds: Age | None) -> int | None:
    return None if seconds is None else int(seconds * SECOND_NS)


def permille(ratio: float | None) -> int | None:
    return None if ratio is None else round(1000 * ratio)
