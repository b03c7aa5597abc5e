"""The numbers for compaction, leases and bounds; they reach the state as a log entry (S13)."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
from msgspec import Meta, Struct

from maar.model.block import INGESTED
from maar.model.bounds import Age, Count, Pause
from maar.model.errors import InvalidInput
from maar.model.schedule import ScheduleRule
from maar.model.schedule_settings import ScheduleEntry, SchedulingSettings
from maar.model.services import (
    ClusterService,
    KindService,
    LogcompactService,
    RepairService,
    ServicesSettings,
)
from maar.model.time import DAY_NS, SECOND_NS

MINUTE_NS = 60 * SECOND_NS
HOUR_NS = 60 * MINUTE_NS
PERIOD_MIN_NS = HOUR_NS  # compaction takes a while, and a slip of the hand should not cost a lake
STALL_MAX_NS = 5 * SECOND_NS
BACKLOG_COUNT = 200  # in logs that do not say, too


class Level(Struct, frozen=True, array_like=True):
    """When a batch of blocks of one level closes: by count, by bytes or by age."""

    count: int
    bytes: int
    age_ns: int


class LogcompactRule(Struct, frozen=True, array_like=True):
    """When level 0 of a lane is deep, and how much of it one plan joins."""

    depth_count: int
    depth_age_ns: int
    plan_count: int
    plan_bytes: int


class CompactionSettings(Struct, frozen=True, kw_only=True):
    """When blocks are merged and by whom, and how long leftovers are kept; levels from 0.

    They reach the metastore's log as an entry when it starts, so every replica uses the same ones.
    What they mean in operation: [operating.md](operating.md).
    """

    level_counts: tuple[Count, ...] = (20, 10, 10)
    """A batch of blocks closes at this many; one number per level, from level 0."""
    level_bytes: tuple[Count, ...] = (256 << 20, 512 << 20, 1 << 30)
    """… or at this size."""
    level_ages_s: tuple[Age, ...] = (36.0, 12 * 60.0, 3 * 3600.0)
    """… or at this age, also when nothing new arrives."""
    backlog_count: Annotated[int, Meta(ge=0, le=1_000)] = BACKLOG_COUNT
    """While workers are behind, so that further batches of segments of a shard have closed before
    the first was taken, one plan takes all that waits: up to this many segments, and 96 MiB.
    What they have in common is then decoded and written once. 0: a plan is always one batch.
    """
    target_block_bytes: Count = 256 << 20
    """A block of this size is not merged further."""
    span_s: Pause = 3 * 3600.0
    """Blocks further apart in time than this are not merged with each other."""
    failure_limit: Count = 3
    """A plan that failed this often is divided, or excluded when it has one input left; `maar plans
    limit` raises it for a while.
    """
    excused_max: Count = 8
    """Failures that were not the plan's fault (a lost worker, an unavailable store) do not count;
    after so many in a row they do.
    """
    retry_s: Age = 2.0
    """A plan whose failure was reported pauses this long, times its failures."""
    probe_s: Pause = 60.0
    """An excluded plan is tried again after this; the pause doubles each time."""
    probe_max_s: Pause = 6 * 3600.0
    """The longest such pause."""
    least_share: Count = 8
    """Low levels go first, but of this many plans handed out, one goes to each higher level that
    waits.
    """
    plans_max: Count = 10_000
    """Plans on the schedule; beyond it, failed ones are parked."""
    parked_max: Count = 10_000
    """Parked plans; beyond it, new plans wait."""
    leftovers_s: Pause = 45 * 60.0
    """How long after its end an attempt's leftovers are searched for; longer than a plan of any
    kind may run (`services.compact.limit_s` and the others).
    """
    retire_delay_s: Age = 15 * 60.0
    """Replaced blocks stay readable at least this long."""
    registration_floor_lag_s: Age = 3600.0
    """A segment that is registered later than this is refused."""
    snapshot_entries: Count = 10_000
    """A snapshot of the metastore is due after this many log entries."""
    snapshot_bytes: Count = 64 << 20
    """… or this many bytes of them."""

    def __post_init__(self) -> None:
        if not len(self.level_counts) == len(self.level_bytes) == len(self.level_ages_s):
            raise ValueError(
                "level_counts, level_bytes and level_ages_s must have one number per level each"
            )
        if self.probe_max_s < self.probe_s:
            raise ValueError(
                f"probe_max_s = {self.probe_max_s:g} is less than probe_s = {self.probe_s:g}: "
                "the longest pause before an excluded plan is tried again cannot be shorter than "
                "the first"
            )
        if self.least_share < len(self.level_counts):
            raise ValueError(
                f"least_share = {self.least_share} leaves nothing for level 0: of so many plans "
                f"one goes to each higher level that waits, and there are "
                f"{len(self.level_counts)} levels; make it at least that"
            )

    @property
    def levels(self) -> tuple[Level, ...]:
        rules = zip(self.level_counts, self.level_bytes, self.level_ages_s, strict=True)
        return tuple(Level(count, size, _ns(age_s)) for count, size, age_s in rules)


class RetentionSettings(Struct, frozen=True, kw_only=True):
    """How long profiles are kept, unless a tenant has a period of its own."""

    default_days: Annotated[float, Meta(ge=0, le=100 * 365)] = 90.0
    """How long profiles are kept, and how old a pushed one may be; 0: for ever. `maar retention
    set` gives a tenant a period of its own. A shorter one takes at most a tenth of a tenant's
    blocks a day until an operator confirms it with `maar retention release`.
    """
    expired_delay_s: Age = 24 * 3600.0
    """How long blocks that retention took can be brought back with `maar retention undo`; then
    their objects are deleted, never before those of blocks that they replaced
    (`compaction.retire_delay_s`).
    """

    def __post_init__(self) -> None:
        if 0 < self.default_days * DAY_NS < PERIOD_MIN_NS:
            raise ValueError(
                f"default_days = {self.default_days:g} is less than an hour; profiles would go "
                "before they are merged. Use 0 to keep them for ever"
            )

    @property
    def default_ns(self) -> int:
        return int(self.default_days * DAY_NS)


def _ns(seconds: float) -> int:
    return int(seconds * SECOND_NS)


class KindTerms(Struct, frozen=True, array_like=True):
    """How plans of one kind are leased, and whether one that failed is removed."""

    kind: str
    lease_ns: int
    limit_ns: int  # a plan that runs longer is given up
    removable: bool = False
    delayed: bool = True  # the rollback delay holds for one that was leased, too


def kind_terms(services: ServicesSettings) -> tuple[KindTerms, ...]:
    """By the name of the kind, which is also that of its part of the settings."""
    parts = {name: getattr(services, name) for name in services.__struct_fields__}
    return tuple(
        KindTerms(
            name,
            _ns(part.lease_s),
            _ns(part.limit_s),
            getattr(part, "removable", False),
            part.rollback_delayed,
        )
        for name, part in sorted(parts.items())
        if isinstance(part, KindService)
    )


def other_terms(services: ServicesSettings) -> tuple[KindTerms, ...]:
    """Of all kinds but compaction, whose terms the policy has as `lease_ns` and `limit_ns`."""
    return tuple(terms for terms in kind_terms(services) if terms.kind != "compact")


def logcompact_rule(service: LogcompactService) -> LogcompactRule:
    age_ns = _ns(service.depth_age_s)
    return LogcompactRule(service.depth_count, age_ns, service.plan_count, service.plan_bytes)


class ClusterTerms(Struct, frozen=True, array_like=True):
    """When a tenant's day is clustered, and how much of it at once."""

    closed_after_ns: int  # a day's end
    wait_ns: int  # after that, for blocks that compaction still wants
    dirty_permille: int  # late bytes, of those that are clustered, that make a day due again
    dirty_age_ns: int
    bytes_max: int
    slots: int
    memory_bytes: int


def cluster_terms(cluster: ClusterService) -> ClusterTerms:
    return ClusterTerms(
        _ns(cluster.closed_after_s),
        _ns(cluster.wait_s),
        max(1, round(1000 * cluster.dirty_share)),
        _ns(cluster.dirty_age_s),
        cluster.bytes_max,
        cluster.slots,
        cluster.memory_bytes,
    )


class RepairTerms(Struct, frozen=True, array_like=True):
    """Whether single copies are read through by schedule, too."""

    scrub: bool


def repair_terms(repair: RepairService) -> RepairTerms:
    return RepairTerms(repair.scrub)


_COMPACTION, _RETENTION, _SERVICES = CompactionSettings(), RetentionSettings(), ServicesSettings()
_SCHEDULING = SchedulingSettings()


class Policy(Struct, frozen=True, array_like=True):
    """What the log records of the settings, in nanoseconds, and bounds of the state that are none.

    Append-only, like every record: new fields go last and have defaults.
    """

    levels: tuple[Level, ...] = _COMPACTION.levels
    target_block_bytes: int = _COMPACTION.target_block_bytes
    span_ns: int = _ns(_COMPACTION.span_s)
    lease_ns: int = _ns(_SERVICES.compact.lease_s)  # of compaction's plans
    stall_ns: int = STALL_MAX_NS  # lease time counts no more than this for a pause of the leader
    failure_limit: int = _COMPACTION.failure_limit
    retry_ns: int = _ns(_COMPACTION.retry_s)
    probe_ns: int = _ns(_COMPACTION.probe_s)
    probe_max_ns: int = _ns(_COMPACTION.probe_max_s)
    retire_delay_ns: int = _ns(_COMPACTION.retire_delay_s)
    registration_floor_lag_ns: int = _ns(_COMPACTION.registration_floor_lag_s)
    pin_ns: int = 2 * MINUTE_NS
    finished_ns: int = HOUR_NS  # a repeated report gets the same answer this long
    blocks_max: int = 5_000_000  # live, retired and remembered together
    plans_max: int = _COMPACTION.plans_max
    finished_max: int = 1_000
    attempts_max: int = 16  # the latest attempts of one plan
    pins_max: int = 10_000
    snapshot_entries: int = _COMPACTION.snapshot_entries
    snapshot_bytes: int = _COMPACTION.snapshot_bytes
    excused_max: int = _COMPACTION.excused_max
    least_share: int = _COMPACTION.least_share
    parked_max: int = _COMPACTION.parked_max
    leftovers_ns: int = _ns(_COMPACTION.leftovers_s)
    leftovers_max: int = 500_000  # ended attempts that may have left objects
    retention_ns: int = _RETENTION.default_ns
    retention_run_max: int = 1_000  # blocks that retention takes in one run
    tenants_max: int = 100_000  # with a retention of their own
    zones_max: int = 64  # with a ring
    writers_max: int = 1_000  # in one ring
    shards_max: int = 16_384  # of one ring
    expired_delay_ns: int = _ns(_RETENTION.expired_delay_s)
    limit_ns: int = _ns(_SERVICES.compact.limit_s)  # of compaction's plans
    kinds: tuple[KindTerms, ...] = other_terms(_SERVICES)
    rollback_delay_ns: int = _ns(_SERVICES.rollback_delay_s)
    execution_guard: bool = _SERVICES.execution_guard
    hold_max_ns: int = _ns(_SERVICES.hold_max_s)
    clean_interval_ns: int = _ns(_SERVICES.clean.interval_s)
    scopes_max: int = 10_000  # of plans whose failures or successes are remembered
    logcompact: LogcompactRule = logcompact_rule(_SERVICES.logcompact)
    cluster: ClusterTerms = cluster_terms(_SERVICES.cluster)
    predicates_max: int = 100  # deletions that are not carried out everywhere yet
    tombstones_max: int = 100_000  # copies in one store that are still to be deleted there
    repair: RepairTerms = repair_terms(_SERVICES.repair)
    ranges_max: int = 1_000_000  # of all tenants whose repairs are remembered

    schedules: tuple[ScheduleRule, ...] = ()  # as configured
    granularity_ns: int = _ns(_SCHEDULING.granularity_s)
    resource_slots: int = _SCHEDULING.resource_slots
    session_ns: int = _ns(_SCHEDULING.session_s)
    schedules_max: int = 20_000  # set by command
    run_policies_max: int = 1_000
    jobs_max: int = 200_000  # that the log knows something of
    backlog_count: int = BACKLOG_COUNT  # segments of a plan while workers are behind; 0: a batch

    def terms(self, kind: str) -> KindTerms:
        for terms in self.kinds:
            if terms.kind == kind:
                return terms
        return KindTerms(kind, self.lease_ns, self.limit_ns)

    def level(self, level: int) -> Level | None:
        """The rule for merging blocks of a level; None when they are never merged."""
        return self.levels[level] if 0 <= level < len(self.levels) else None


def policy_of(
    compaction: CompactionSettings,
    retention: RetentionSettings,
    services: ServicesSettings = _SERVICES,
    scheduling: SchedulingSettings = _SCHEDULING,
    schedules: tuple[ScheduleEntry, ...] = (),
) -> Policy:
    """Every setting reaches the field of its name; one in seconds that of the name in `_ns`. What
    is of one kind of plan is made into that kind's terms.
    """
    given: dict[str, Any] = {}
    for settings in (compaction, retention, services, scheduling):
        given |= msgspec.structs.asdict(settings)
    for name in ("level_counts", "level_bytes", "level_ages_s", "default_days"):
        del given[name]
    shortest_ns = min(terms.lease_ns for terms in kind_terms(services))
    return check_policy(
        Policy(
            levels=compaction.levels,
            retention_ns=retention.default_ns,
            lease_ns=_ns(services.compact.lease_s),
            limit_ns=_ns(services.compact.limit_s),
            kinds=other_terms(services),
            clean_interval_ns=_ns(services.clean.interval_s),
            logcompact=logcompact_rule(services.logcompact),
            cluster=cluster_terms(services.cluster),
            repair=repair_terms(services.repair),
            schedules=tuple(entry.rule() for entry in schedules),
            # A pause of the leader must not end the leases that nobody could renew meanwhile.
            stall_ns=min(STALL_MAX_NS, shortest_ns // 3),
            **dict(
                _to_field(name, value)
                for name, value in given.items()
                if not isinstance(value, KindService)
            ),
        )
    )


def _to_field(name: str, value: Any) -> tuple[str, Any]:
    seconds = name.endswith("_s")
    return (f"{name.removesuffix('_s')}_ns", _ns(value)) if seconds else (name, value)


def check_policy(policy: Policy) -> Policy:
    """Refuse numbers with which nothing could ever run."""
    if len(policy.levels) >= INGESTED:
        raise InvalidInput(
            f"compaction has {len(policy.levels)} levels, and there can be {INGESTED - 1}: "
            f"levels from {INGESTED} on are those of backfilled and of clustered blocks"
        )
    for number, level in enumerate(policy.levels):
        if level.count < 1 or level.bytes < 1 or level.age_ns < 0:
            raise InvalidInput(
                f"compaction level {number} needs a count and bytes of at least 1 and an age "
                f"of at least 0, not {level.count}, {level.bytes} and {level.age_ns}"
            )
    for name in ("target_block_bytes", "lease_ns", "stall_ns", "failure_limit", "probe_ns"):
        if getattr(policy, name) < 1:
            raise InvalidInput(f"{name} must be at least 1, not {getattr(policy, name)}")
    bounds = (
        "blocks_max",
        "plans_max",
        "finished_max",
        "attempts_max",
        "pins_max",
        "leftovers_max",
        "tombstones_max",
    )
    for name in (*bounds, "zones_max", "writers_max", "shards_max"):
        if getattr(policy, name) < 1:
            raise InvalidInput(f"{name} bounds the state and must be at least 1")
    for name in ("leftovers_ns", "retention_ns", "expired_delay_ns"):
        if getattr(policy, name) < 0:
            raise InvalidInput(f"{name} is a time to keep something and cannot be negative")
    return policy
