"""How plans of each kind are leased, and what happens to those that nobody finishes."""

from __future__ import annotations

from typing import Annotated, ClassVar

from msgspec import Meta, Struct

from maar.model.bounds import Age, Count

LeaseSeconds = Annotated[float, Meta(ge=0.1, le=3600)]
LimitSeconds = Annotated[float, Meta(gt=0, le=7 * 86_400)]


class KindService(Struct, frozen=True, kw_only=True):
    """What is set for every kind of plan."""

    rollback_delayed: ClassVar[bool] = True  # by `services.rollback_delay_s`, leased or not

    lease_s: LeaseSeconds = 15.0
    limit_s: LimitSeconds = 1800.0


class CompactService(KindService, frozen=True, kw_only=True):
    """Compaction's plans are never removable: they are tried until they are done."""

    lease_s: LeaseSeconds = 15.0
    """How long a worker that sends no renewals keeps a plan."""
    limit_s: LimitSeconds = 1800.0
    """A plan that runs longer counts as hung: it is given up, and its lease expires."""


class LogcompactService(KindService, frozen=True, kw_only=True):
    """Many segments of a shard become one, undecoded, while compaction is behind."""

    removable: bool = True
    """A plan that fails is rolled back and removed, and its segments wait for compaction again. If
    false, it is tried again, like one of compaction.
    """
    lease_s: LeaseSeconds = 15.0
    """How long a worker that sends no renewals keeps a plan."""
    limit_s: LimitSeconds = 900.0
    """A plan that runs longer counts as hung: it is given up, and its lease expires."""
    depth_count: Annotated[int, Meta(ge=2)] = 100
    """Level 0 of a shard is deep when at least so many segments wait that were not joined yet …"""
    depth_age_s: Age = 120.0
    """… and the oldest block there has waited longer than this."""
    plan_count: Annotated[int, Meta(ge=2, le=10_000)] = 500
    """A plan joins at most so many segments …"""
    plan_bytes: Annotated[int, Meta(ge=1, le=256 << 20)] = 16 << 20
    """… of so many bytes together. A query decodes all that a segment holds of a service at once,
    so it should stay small.
    """


class ClusterService(KindService, frozen=True, kw_only=True):
    """Clustering merges the finished blocks of a tenant's day, of all shards."""

    removable: bool = True
    """A clustering that failed after it had begun is rolled back, and its day is due again."""
    lease_s: LeaseSeconds = 15.0
    """How long a worker that sends no renewals keeps a clustering."""
    limit_s: LimitSeconds = 1800.0
    """A clustering that runs longer counts as hung."""
    closed_after_s: Age = 3600.0
    """A day is closed so long after its end, in UTC: its finished blocks can be clustered."""
    wait_s: Age = 6 * 3600.0
    """While compaction still wants blocks of a closed day, its clustering waits for them, but not
    longer than this; then they are left out.
    """
    dirty_share: Annotated[float, Meta(gt=0, le=1000)] = 0.2
    """A clustered day is due again when blocks that came later have this share of its bytes."""
    dirty_age_s: Age = 24 * 3600.0
    """… or when they have waited so long on average."""
    bytes_max: Count = 16 << 30
    """What one clustering takes at most; the rest of a larger day is clustered by itself."""
    slots: Annotated[int, Meta(ge=1, le=1000)] = 2
    """How many of a worker's slots a clustering takes: so many tasks run at once."""
    memory_bytes: Annotated[int, Meta(ge=64 << 20, le=1 << 40)] = 1 << 30
    """What one of its tasks may use, about; a large day is cut into more tasks."""


class EraseService(KindService, frozen=True, kw_only=True):
    """Erasing writes a block again without the profiles that were deleted of it."""

    lease_s: LeaseSeconds = 15.0
    """How long a worker that sends no renewals keeps a block."""
    limit_s: LimitSeconds = 1800.0
    """A rewriting that runs longer counts as hung."""


class IngestService(KindService, frozen=True, kw_only=True):
    """Bulk writes (`maar backfill`): visible whole or not at all."""

    rollback_delayed: ClassVar[bool] = False

    removable: bool = True
    """A bulk write that failed is rolled back and removed; the same command again begins anew. If
    false, what it wrote is undone by that command, or by the cleaning, and its plan stays.
    """
    lease_s: LeaseSeconds = 15.0
    """How long a bulk write that sends no renewals lives; then the next cleaning rolls it back."""
    limit_s: LimitSeconds = 1800.0
    """A bulk write that runs longer is given up. For a longer one raise `compaction.leftovers_s`
    too.
    """


class RepairService(KindService, frozen=True, kw_only=True):
    """Repair reads the copies of blocks again, and makes those anew that are not whole."""

    lease_s: LeaseSeconds = 600.0
    """How long a worker that sends no renewals keeps a session; it renews ten times as often."""
    limit_s: LimitSeconds = 1800.0
    """A session that runs longer counts as hung. What it repaired until then stays repaired."""
    scrub: bool = False
    """Whether tenants whose blocks lie in one store only are read through by schedule, too. Anybody
    can ask for it at any time: `maar repair run`.
    """


class RollbackService(KindService, frozen=True, kw_only=True):
    """Rollbacks delete what ended attempts wrote."""

    lease_s: LeaseSeconds = 15.0
    """How long a cleaner that sends no renewals keeps a rollback."""
    limit_s: LimitSeconds = 900.0
    """A rollback that runs longer counts as hung."""


class CleanService(KindService, frozen=True, kw_only=True):
    """Cleaning schedules rollbacks and executes them."""

    interval_s: Age = 60.0
    """How long after a cleaning the next one is due, if there is something to clean; 0: on demand
    only (cleaning by hand).
    """
    lease_s: LeaseSeconds = 15.0
    """How long a cleaner that sends no renewals keeps a cleaning."""
    limit_s: LimitSeconds = 900.0
    """A cleaning that runs longer counts as hung."""


class ServicesSettings(Struct, frozen=True, kw_only=True):
    """Plans of all kinds: who may execute them, and when failed ones are rolled back.

    They reach the metastore's log with the settings of compaction.
    """

    rollback_delay_s: Age = 600.0
    """Cleaning leaves a removable plan alone that was scheduled less than so long ago. A bulk write
    that was ever leased does not wait for this.
    """
    execution_guard: bool = True
    """Refuse to execute a plan that somebody holds a live lease on. Off, the newcomer takes the
    plan over, and the former holder can complete nothing any more.
    """
    hold_max_s: Age = 60.0
    """How long a removable plan that nobody works on keeps blocks from compaction, from the end of
    its lease; one that was never leased keeps them for `services.rollback_delay_s`.
    """
    compact: CompactService = CompactService()
    logcompact: LogcompactService = LogcompactService()
    cluster: ClusterService = ClusterService()
    erase: EraseService = EraseService()
    ingest: IngestService = IngestService()
    repair: RepairService = RepairService()
    rollback: RollbackService = RollbackService()
    clean: CleanService = CleanService()
