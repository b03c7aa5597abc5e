"""A leader's decisions over a fold, without log, loop or clock: for tests of the scheduler."""

from __future__ import annotations

from dataclasses import dataclass, field

from maar.metastore.decide import prepare, schedule
from maar.metastore.decide.jobs import JobBook, Moment, moment
from maar.metastore.decide.schedule import Wish
from maar.metastore.decide.workers import WorkerRegistry
from maar.metastore.records.effects import Effect, Leased
from maar.metastore.records.entries import Entry, PlanCompleted
from maar.model.block import BlockMeta
from maar.model.ids import BlockId, PlanId, WorkerId
from maar.model.plan import ROLLBACK, Account, Plan, PlanResult
from maar.model.time import SECOND_NS, LeaseTime
from maar.ports.plans.board import PollRequest, Renewal, Report
from support.metastore.fold import Fold, result, segment

W1, W2, W3 = WorkerId("w1"), WorkerId("w2"), WorkerId("w3")


@dataclass
class LeaderDecisions:
    fold: Fold = field(default_factory=Fold)
    worker_registry: WorkerRegistry = field(default_factory=WorkerRegistry)
    book: JobBook = field(default_factory=JobBook)

    @property
    def now(self) -> LeaseTime:
        return LeaseTime(self.fold.now)

    @property
    def moment(self) -> Moment:
        return moment(self.fold.state, self.now)

    def look(self) -> list[Entry]:
        """The schedule looks at its jobs, and tells the log what it should know."""
        self.book.turn(self.fold.state, self.moment)
        entries = self.book.entries(self.fold.state, self.moment)
        self.put(entries)
        return entries

    def wait(self, seconds: float) -> None:
        self.fold.now += int(seconds * SECOND_NS)

    def put(self, entries: list[Entry]) -> list[Effect]:
        effects = [effect for entry in entries for effect in self.fold.put(entry)]
        self.book.follow(self.fold.state, effects)
        return effects

    def add(self, *numbers: int, shard: int = 1, size: int = 1000) -> list[BlockId]:
        metas = [segment(n, at=self.fold.now, shard=shard, size=size) for n in numbers]
        self.put(list(prepare.registrations(metas)))
        return [meta.id for meta in metas]

    def put_blocks(self, *metas: BlockMeta) -> None:
        self.put(list(prepare.registrations(metas)))

    def metas(self, *blocks: BlockId) -> tuple[BlockMeta, ...]:
        return self.fold.metas(blocks)

    def set_aside(self) -> list[Entry]:
        since = self.worker_registry.hearing_since
        entries = schedule.set_aside(self.fold.state, self.now, hearing_since=since)
        self.put(entries)
        return entries

    def keep_house(self) -> list[Entry]:
        since = self.worker_registry.hearing_since
        entries = prepare.housekeeping(self.fold.state, now=self.now, hearing_since=since)
        self.put(entries)
        return entries

    def hand_out(self, *wishes: Wish) -> list[Leased]:
        """What a round of polls gets; rollbacks that come first are finished at once."""
        self.set_aside()
        self.look()
        entries = schedule.assign(
            self.fold.state,
            wishes,
            now=self.now,
            worker_registry=self.worker_registry,
            book=self.book,
            at=self.moment,
        )
        leases = [effect for effect in self.put(entries) if isinstance(effect, Leased)]
        for rollback in (lease for lease in leases if lease.before):
            undone = PlanResult(ROLLBACK, (), Account(0, 0, 0))
            self.put([PlanCompleted(rollback.plan, rollback.token, undone)])
        return [lease for lease in leases if not lease.before]

    def poll(self, worker: WorkerId = W1, capacity: int = 1) -> list[Leased]:
        return self.hand_out(Wish(worker, capacity))

    def start_plans(self, worker: WorkerId = W1, capacity: int = 1) -> list[Leased]:
        """Handed out, and the work has begun."""
        leases = self.poll(worker, capacity)
        for lease in leases:
            self.renew(lease, started=True)
        return leases

    def renew(self, lease: Leased, *, started: bool = False) -> list[Effect]:
        renewal = Renewal(lease.plan, lease.token, started)
        poll = PollRequest(lease.worker, 0, (renewal,))
        return self.put(prepare.poll_entries(self.fold.state, [poll], now=self.now))

    def report(self, lease: Leased, report: Report) -> list[Effect]:
        poll = PollRequest(lease.worker, 0, (), (report,))
        return self.put(prepare.poll_entries(self.fold.state, [poll], now=self.now))

    def complete(self, lease: Leased, *, size: int = 1000) -> list[Effect]:
        inputs = self.fold.metas(self.plan(lease.plan).inputs)
        made = result(lease.plan, lease.token, inputs, size=size)
        return self.report(lease, Report(lease.plan, lease.token, made))

    def fail(self, lease: Leased, *, own: bool = True, cause: str = "broken") -> list[Effect]:
        return self.report(lease, Report(lease.plan, lease.token, None, cause, own))

    def plan(self, plan: PlanId) -> Plan:
        state = self.fold.state
        found = state.plans.get(plan) or state.parked.get(plan) or state.finished.get(plan)
        assert found is not None
        return found

    def pass_rest(self) -> None:
        """As much later as makes every failed plan eligible again."""
        self.fold.now += self.fold.policy.probe_ns
