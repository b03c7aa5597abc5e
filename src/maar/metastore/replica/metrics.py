"""The metastore's metrics: a gauge for everything bounded, a counter for everything applied.

The gauges are set on the leader's loop every two seconds, so nothing here visits every block.
Followers set the gauges of the state too; gauges that only a leader can know are empty there.
"""

from __future__ import annotations

from collections import Counter as Tally
from collections.abc import Sequence
from itertools import product

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from maar.metastore.decide.membership import STANDINGS
from maar.metastore.fold.deleting import retention, trust
from maar.metastore.fold.ring import count_moved
from maar.metastore.records.effects import (
    AlarmRaised,
    AttemptEnded,
    Completed,
    Effect,
    Expired,
    Leased,
    Parked,
    Refused,
    Registered,
    RingReplaced,
    RollbackScheduled,
    RolledBack,
)
from maar.metastore.replica.repair_metrics import RepairMetrics
from maar.metastore.replica.store_metrics import StoreMetrics
from maar.metastore.state.state import MetaState, sizes
from maar.metastore.views import reads
from maar.metastore.views.alarms import every_alarm
from maar.metastore.views.last_hour import LastHour
from maar.model.ids import PlanId, block_time_ns
from maar.model.schedule import AlarmLevel
from maar.model.time import SECOND_NS, LeaseTime, WallTime
from maar.ports.operator.operator import LevelStatus, ZoneStatus

OBSERVE_S = 2.0  # the gauges of the state are set this often
SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1.0, 5.0)
WAITED_SECONDS = (1, 2.5, 5, 10, 15, 20, 30, 45, 60, 120, 300, 900, 3600, 14_400)


class MetastoreMetrics:
    def __init__(self, registry: CollectorRegistry) -> None:
        def gauge(name: str, text: str, *labels: str) -> Gauge:
            return Gauge(f"maar_metastore_{name}", text, labels, registry=registry)

        def counter(name: str, text: str, *labels: str) -> Counter:
            return Counter(f"maar_metastore_{name}", text, labels, registry=registry)

        def histogram(name: str, text: str, buckets: Sequence[float]) -> Histogram:
            return Histogram(f"maar_metastore_{name}", text, buckets=buckets, registry=registry)

        self.repairs = RepairMetrics(registry)
        self.stores = StoreMetrics(registry)
        self.blocks = gauge("blocks", "Live blocks", "level", "kind")
        self.bytes = gauge("blocks_bytes", "Bytes of live blocks", "level", "kind")
        self.queued = gauge("queued_blocks", "Blocks that wait for a plan", "level")
        self.queued_bytes = gauge("queued_bytes", "Bytes of them", "level")
        self.oldest = gauge("oldest_queued_seconds", "Age of the oldest of them", "level")
        self.held = gauge("held_blocks", "Blocks held by excluded and parked plans", "level")
        self.last_hour_blocks = gauge(
            "last_hour_blocks", "Blocks that a query for all data of the last hour reads", "level"
        )
        self.last_hour_files = gauge("last_hour_files", "Objects that it has to open", "level")
        self.plans = gauge("plans", "Plans that are known", "state")
        self.joined = gauge(
            "joined_segments", "Segments that plans joined and that wait for compaction"
        )
        self.failure_limit = gauge("failure_limit", "Failures at which a plan is set aside, now")
        self.retired = gauge("retired_blocks", "Blocks replaced and not yet deleted")
        self.dead = gauge(
            "dead_attempts", "Ended attempts that have left objects to be rolled back"
        )
        self.rollbacks = gauge("pending_rollbacks", "Rollbacks that wait to be executed")
        self.alarms = gauge("alarms", "Alarms that are not over", "kind", "level")
        self.sessions = counter(
            "sessions_total", "Sessions of the schedule that have ended", "kind", "successful"
        )
        self.alarms_raised = counter(
            "alarms_raised_total", "Alarms that began or escalated", "level"
        )
        self.deletions = gauge("pending_deletions", "Deletions not carried out everywhere yet")
        self.deleted = gauge("deleted_profiles", "Profiles deleted since genesis")
        self.rollbacks_scheduled = counter("rollbacks_scheduled_total", "Rollbacks scheduled")
        self.rolled_back = counter(
            "rolled_back_plans_total", "Removable plans that were rolled back", "kind"
        )
        self.completed = counter("completed_plans_total", "Plans that were completed", "kind")
        self.leftovers = gauge("leftover_attempts", "Ended attempts that may have left objects")
        self.items = gauge("state_items", "Items in each bounded collection", "collection")
        self.head = gauge("head_index", "Index of the last applied entry")
        self.leads = gauge("leads", "1 while this replica leads")
        self.term = gauge("term", "Term of the last leader that this replica knows of")
        self.behind = gauge("behind_entries", "Entries of the log that are not applied yet")
        self.behind_s = gauge("behind_seconds", "Seconds since everything in the log was applied")
        self.doubts = gauge("in_doubt", "1 while this replica waits for votes on its state")
        self.stopped = gauge("stopped", "1 when this replica has stopped and needs an operator")
        self.terms = counter("terms_total", "Times that this replica became leader")
        self.lost = counter(
            "terms_lost_total", "Times that this replica lost leadership while running"
        )
        self.loads = counter(
            "loads_total", "Times that this replica loaded its state from snapshot and log"
        )
        self.snapshot = gauge("snapshot_index", "Index of the newest verified snapshot")
        self.lease_time = gauge("lease_time_seconds", "The log's own time")
        self.blocked = gauge("clean_blocked_blocks", "Retired blocks whose outputs are missing")
        self.leftovers_held = gauge("clean_blocked_attempts", "Ended attempts that cannot be swept")
        self.ahead = gauge(
            "retention_clock_ahead_seconds",
            "How far the leader's clock is ahead of the newest profiles",
        )
        self.trouble = gauge("retention_trouble", "1 while retention cannot trust the clock")
        self.paused = gauge("retention_paused", "1 while retention takes nothing")
        self.retention_held = gauge(
            "retention_held", "1 while retention is on hold by an operator or the clock"
        )
        self.expired_waiting = gauge(
            "expired_waiting_blocks", "Blocks that retention took and that can be brought back"
        )
        self.effects = counter("effects_total", "What entries did", "effect")
        self.refusals = counter("refusals_total", "Items of entries that were refused", "why")
        self.ended = counter(
            "attempts_ended_total",
            "Attempts that did not succeed, and whether that counts against the plan",
            "end",
            "counted",
        )
        self.reassigned = counter(
            "reassignments_total", "Plans handed out again after an attempt that did not succeed"
        )
        self.evicted = counter("evictions_total", "Failed plans that had to leave a full schedule")
        self.expired = counter("expired_blocks_total", "Blocks that retention took")
        self.cleaned = counter("cleaned_blocks_total", "Retired blocks whose objects are deleted")
        self.orphans = counter("orphans_swept_total", "Orphans that were deleted", "kind")
        self.orphans_bytes = counter("orphans_swept_bytes_total", "Bytes of them", "kind")
        self.orphans_left = gauge("orphans_left", "Reasons why orphans are not deleted")
        self.writers = gauge("ring_writers", "Segment writers of a zone", "zone", "state")
        self.shards = gauge("ring_shards", "Shards of a zone's ring", "zone")
        self.incomplete = gauge(
            "ring_incomplete", "1 while it is not yet known which writers are dead", "zone"
        )
        self.ring_changes = counter("ring_changes_total", "Ring changes", "zone")
        self.moved = counter("ring_moved_shards_total", "Shards that got another owner", "zone")
        self.letters_waiting = gauge("letters_waiting", "Dead letters that are to be delivered")
        self.letters_oldest = gauge("letters_oldest_seconds", "Age of the oldest of them")
        self.letters_held = gauge("letters_held", "Dead letters that cannot be delivered")
        self.letters_foreign = gauge("letters_foreign", "Dead letters of other logs in this store")
        self.letters_drain_age = gauge(
            "letters_drain_age_seconds", "Seconds since the last complete scan began; -1: none yet"
        )
        self.letters_delivered = counter("letters_delivered_total", "Dead letters delivered")
        self.beats = counter("beats_total", "Heartbeats of segment writers", "outcome")
        self.adopting = gauge(
            "adopting", "1 while a restored log has not searched the whole store yet"
        )
        self.adopted = gauge("adopted_blocks", "Blocks that restored logs found in the store")
        self.given_up = gauge("lost_blocks", "Blocks that operators gave up, since the log began")
        self.missed = gauge("missed_blocks", "Blocks that restored logs did not find in the store")
        self.snapshot_failures = counter("snapshot_failures_total", "Snapshots that failed")
        self.first_compaction = histogram(
            "first_compaction_seconds",
            "Seconds from a segment's creation to the completion of its first compaction",
            WAITED_SECONDS,
        )
        self.cycle = histogram("cycle_seconds", "From taking requests to answering them", SECONDS)
        self._last_hour = LastHour()

    def count(self, effects: Sequence[Effect], state: MetaState) -> None:
        """`state` is as the effects left it."""
        self.repairs.count(effects, state)
        for kind, number in Tally(map(type, effects)).items():
            self.effects.labels(kind.__name__).inc(number)
        for effect in effects:
            match effect:
                case Registered():
                    pass  # the most frequent by far
                case Refused():
                    self.refusals.labels(effect.why.name.lower()).inc()
                case AttemptEnded():
                    self._count_session(effect.plan, state, successful="no")
                    counted = "yes" if effect.counted else "no"
                    self.ended.labels(effect.end.name.lower(), counted).inc()
                case Leased():
                    plan = state.plans.get(effect.plan)
                    self.reassigned.inc(plan is not None and len(plan.attempts) > 1)
                case Parked():
                    self.evicted.inc()
                case Completed():
                    self._count_completed(effect, state)
                case RollbackScheduled():
                    self.rollbacks_scheduled.inc()
                case AlarmRaised():
                    self.alarms_raised.labels(effect.alarm.level.name.lower()).inc()
                case RolledBack():
                    self.rolled_back.labels(effect.kind).inc()
                case Expired():
                    self.expired.inc(effect.blocks)
                case RingReplaced():
                    zone = effect.after.zone
                    self.ring_changes.labels(zone).inc()
                    self.moved.labels(zone).inc(count_moved(effect.before, effect.after))
                case _:
                    pass

    def _count_session(self, session: PlanId, state: MetaState, *, successful: str) -> None:
        plan = state.finished.get(session) or state.plans.get(session)
        if plan is not None and plan.job is not None:
            self.sessions.labels(plan.kind, successful).inc()

    def _count_completed(self, effect: Completed, state: MetaState) -> None:
        plan = state.finished.get(effect.plan)
        if plan is None or effect.again:
            return
        self._count_session(effect.plan, state, successful="yes")
        self.completed.labels(plan.kind).inc()
        if not state.kinds[plan.kind].takes_fresh(plan.key):
            return
        for block in effect.retired:
            waited_ns = state.lease_time - block_time_ns(block)
            self.first_compaction.observe(waited_ns / SECOND_NS)

    def observe(
        self,
        state: MetaState,
        now: LeaseTime,
        wall: WallTime,
        clocks: trust.Clocks = trust.ALONE,
    ) -> None:
        standings = reads.standings(state)
        self._observe_levels(reads.levels(state, now, standings.held))
        for member, count in standings.plans.items():
            self.plans.labels(member.name.lower()).set(count)
        for name, count in sizes(state).items():
            self.items.labels(name).set(count)
        self.joined.set(state.queue.count_joined())
        self.failure_limit.set(max(state.policy.failure_limit, state.raised_limit(now)))
        self.retired.set(len(state.retired))
        self.leftovers.set(len(state.leftovers))
        self.dead.set(len(state.leftovers.dead))
        self.rollbacks.set(len(state.plans.rollbacks))
        self.deletions.set(len(state.predicates))
        rung = Tally((alarm.id.kind, alarm.level) for alarm in every_alarm(state))
        scheduled = (kind for kind in state.kinds if state.kinds[kind].scheduled)
        for kind, level in product(scheduled, AlarmLevel):
            self.alarms.labels(kind, level.name.lower()).set(rung[kind, level])
        self.deleted.set(state.tally.profiles_deleted)
        self.adopting.set(bool(state.adopting))
        self.adopted.set(state.tally.blocks_adopted)
        self.given_up.set(state.tally.blocks_lost)
        self.missed.set(state.tally.blocks_missed)
        self.head.set(state.index)
        self.term.set(state.term)
        self.lease_time.set(now / SECOND_NS)
        self.ahead.set(retention.ahead(state, now=now, wall=wall) / SECOND_NS)
        found = retention.status(state, now=now, wall=wall, clocks=clocks)
        self.trouble.set(bool(found.trouble))
        self.paused.set(bool(found.paused))
        self.retention_held.set(found.held)
        self.expired_waiting.set(found.expired)
        self.repairs.observe(state, now)
        if self._last_hour.go_on(state.blocks, now=now, wall=wall):
            self._observe_last_hour()

    def stop_leading(self) -> None:
        """Clear gauges that only a leader knows, when this replica no longer leads."""
        self.leads.set(0)
        self.observe_zones(())
        letters = (self.letters_waiting, self.letters_oldest, self.letters_held)
        cleaning = (self.blocked, self.leftovers_held, self.orphans_left)
        for gauge in (*cleaning, *letters, self.letters_foreign):
            gauge.set(0)
        self.letters_drain_age.set(-1)

    def _observe_levels(self, levels: Sequence[LevelStatus]) -> None:
        """Reset gauges of levels that are empty now."""
        for gauge in (self.blocks, self.bytes, self.queued, self.queued_bytes, self.oldest):
            gauge.clear()
        self.held.clear()
        for level in levels:
            number = str(level.level)
            self.blocks.labels(number, level.kind).set(level.blocks)
            self.bytes.labels(number, level.kind).set(level.bytes)
            if level.kind != "quarantine":
                self.queued.labels(number).set(level.queued)
                self.queued_bytes.labels(number).set(level.queued_bytes)
                self.oldest.labels(number).set(level.oldest_queued_s)
                self.held.labels(number).set(level.held)

    def observe_zones(self, zones: Sequence[ZoneStatus]) -> None:
        """Reset gauges of zones that are gone, and of states that no writer is in."""
        for gauge in (self.writers, self.shards, self.incomplete):
            gauge.clear()
        for zone in zones:
            self.shards.labels(zone.zone).set(zone.shards)
            self.incomplete.labels(zone.zone).set(not zone.complete)
            for state in STANDINGS:
                self.writers.labels(zone.zone, state).set(zone.writers.get(state, 0))

    def _observe_last_hour(self) -> None:
        self.last_hour_blocks.clear()
        self.last_hour_files.clear()
        for level, opened in self._last_hour.counts.items():
            self.last_hour_blocks.labels(str(level)).set(opened.blocks)
            self.last_hour_files.labels(str(level)).set(opened.files)
