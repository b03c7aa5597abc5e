"""The metastore's request handlers: which replica may answer what.

Reads of the index are answered by any replica, from a state that holds everything acknowledged
before the question. Requests that change something are answered by the leader's term; other
replicas name the leader.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence

import msgspec

from maar.block.read.damage import damages, is_readable
from maar.metastore.decide import execution, operator_commands, repairs, rollbacks, wishes
from maar.metastore.fold.deleting import deletion, losing, retention, trust
from maar.metastore.leader.inbox import Add, PinRequest, Poll
from maar.metastore.leader.schedule import LeaderSchedule
from maar.metastore.leader.stores import committing
from maar.metastore.leader.term import LeaderTerm
from maar.metastore.member import Replica
from maar.metastore.records.effects import Effect
from maar.metastore.replica.follower import Follower
from maar.metastore.state.state import MetaState
from maar.metastore.views import explain, reads
from maar.metastore.views import repairs as repairs_told
from maar.metastore.views import stores as store_views
from maar.metastore.views.alarms import every_alarm
from maar.model.block import BlockMeta, Kind
from maar.model.errors import NotLeading, Rejected, Retryable, Unavailable
from maar.model.ids import BlockId, NodeId, PlanId, StoreName, TenantId, Zone
from maar.model.plan import JobId, Plan
from maar.model.predicate import DeletionRequest, Mask
from maar.model.repair import RepairType
from maar.model.ring import Ring
from maar.model.schedule import Alarm, RunPolicy, ScheduleRule
from maar.model.time import LeaseTime, WallTime
from maar.model.trouble import Trouble
from maar.ports.calls import LocalPort
from maar.ports.metastore.log_time import Now
from maar.ports.metastore.replica import PinIndex, Vote
from maar.ports.operator.copies import REPORTED_MAX, StoreStatus
from maar.ports.operator.dead_letters import Letter, LetterRetried, LettersPage
from maar.ports.operator.deletions import Deletion, PendingDeletion
from maar.ports.operator.operator import (
    Explanation,
    FoundOrphans,
    ListPlans,
    Loss,
    PlanDetail,
    Status,
)
from maar.ports.operator.repairs import RepairsStatus, RepairTold
from maar.ports.operator.retention import Expiring, RetentionStatus, Undone
from maar.ports.operator.schedule import JobView, Ruling
from maar.ports.operator.store_removal import RemovedStore
from maar.ports.plans.board import (
    CleanStep,
    CommitPart,
    ConfirmDeletes,
    Execution,
    PartCommitted,
    PollReply,
    PollRequest,
    RollbackReply,
    ScheduledPlan,
    SchedulePlan,
    ScheduleRollbacks,
)
from maar.ports.reader.index import IndexView, ViewRequest
from maar.ports.writer.membership import Beat, BeatReply, RingView
from maar.ports.writer.registrar import AddReply

log_ = logging.getLogger("maar.metastore")

HANDOVER_S = 1.0  # how long a request waits for a leader when there is none
CHUNKS_INLINE_MAX = 8  # more are searched in a thread


class MetastoreService(Replica, LocalPort):
    """Implements ports.metastore.Metastore and MetastoreReplica."""

    # ── what any replica answers ───────────────────────────────────────────────────────────────

    async def _current(self) -> Follower:
        """Wait until the state holds everything acknowledged before this call (linearizable)."""
        self._check_fit()
        follower = self._follower
        assert follower is not None
        head = await self._log.head()
        if follower.replica.head.index < head.index:
            try:
                async with asyncio.timeout(self._timing.catch_up_s):
                    await follower.wait_for_index(head.index)
            except TimeoutError:
                raise Unavailable("the metastore is behind its log; ask again") from None
        self._check_fit()
        if follower is not self._follower:
            raise Unavailable("the metastore has reloaded its state; ask again")
        return follower

    def _check_fit(self) -> None:
        if why := self._unfit():
            raise Unavailable(why)

    async def view(self, request: ViewRequest) -> IndexView:
        if request.reader:
            await self._pin(request.reader)
        while True:
            state = (await self._current()).state
            index, stamp = state.index, reads.stamp_of(state.blocks)
            letters = reads.undelivered_blocks(state, request.letters)
            hides = deletion.of_tenant(state, request.tenant)
            if request.known == stamp and not hides:
                return IndexView(index, (), letters, stamp=stamp)
            chunks = reads.chunks_for(state.blocks, request)
            hidden = deletion.of_letters(state, letters, request.tenant)
            if len(chunks) <= CHUNKS_INLINE_MAX:
                blocks = reads.select(chunks, request)
            else:
                blocks = await asyncio.to_thread(reads.select, chunks, request)
            if not hides:
                return IndexView(index, blocks, letters, stamp=stamp)
            # Which entry brought a segment is known as long as it is live: if one was merged while
            # we looked in a thread, we look again.
            if all(meta.kind is not Kind.SEGMENT or meta.id in state.blocks for meta in blocks):
                return IndexView(index, blocks, letters, hidden | reads.hidden_masks(state, blocks))

    async def _pin(self, reader: str) -> None:
        """Pin at the leader, wherever it is; an index that is read afterwards is protected."""
        try:
            await self.pin(reader)
        except NotLeading as error:
            if not error.leader:
                raise
            try:
                async with asyncio.timeout(self._timing.pin_s):
                    await self._connect(error.leader).call(PinIndex(reader))
            except TimeoutError:
                raise Unavailable(f"the leader, {error.leader}, does not answer") from None

    async def blocks(
        self, *, level: int = -1, tenant: str = "", limit: int = 1000
    ) -> tuple[BlockMeta, ...]:
        chunks = reads.all_chunks((await self._current()).state.blocks, tenant)
        return await asyncio.to_thread(reads.newest, chunks, level=level, limit=limit)

    async def block(self, block: BlockId) -> BlockMeta:
        return reads.block((await self._current()).state, block)

    async def plans(self, wanted: ListPlans) -> tuple[Plan, ...]:
        return reads.plans((await self._current()).state, wanted)

    async def plan(self, plan: PlanId) -> PlanDetail:
        current = await self._current()
        return reads.plan(current.state, plan, now=current.now())

    async def explain(self, block: BlockId) -> Explanation:
        current = await self._current()
        return explain.explain(current.state, block, now=current.now())

    async def retention(self) -> RetentionStatus:
        current = await self._current()
        wall, clocks = self._deps.wall(), self._peers.clocks()
        return retention.status(current.state, now=current.now(), wall=wall, clocks=clocks)

    async def expiring(self, *, tenant: str = "", limit: int = 1000) -> tuple[Expiring, ...]:
        current, wall = await self._current(), self._deps.wall()
        state, now = current.state, current.now()
        return tuple(
            await asyncio.to_thread(
                retention.expiring, state, now=now, wall=wall, tenant=tenant, limit=limit
            )
        )

    # ── what the leader answers ────────────────────────────────────────────────────────────────

    async def _leader(self) -> LeaderTerm:
        """This replica's leader term; else NotLeading, which says who leads."""
        self._check_fit()
        if self._current_term() is None:
            await self._somebody_leads()
            self._check_fit()
        if (leader_term := self._current_term()) is not None:
            return leader_term
        if not (address := self._elsewhere()):
            raise NotLeading("no replica of the metastore leads just now; ask again")
        raise NotLeading(
            f"this replica of the metastore does not lead; ask {address}", leader=address
        )

    async def _somebody_leads(self) -> None:
        """An election may be under way: most end before a caller would have asked again."""
        try:
            async with asyncio.timeout(HANDOVER_S):
                while not (self._unfit() or self._current_term() or self._elsewhere()):
                    await self._turned.wait()
        except TimeoutError:
            pass

    def _elsewhere(self) -> str:
        """The address of another that leads."""
        leader = self._follower.leader if self._follower else None
        return leader.address if leader else ""

    async def _confirmed_leader(self) -> LeaderTerm:
        """For answers outside the leader's loop: after a pause, the term may be over unnoticed."""
        leader_term = await self._leader()
        leader_term.confirm()
        return leader_term

    async def now(self) -> Now:
        leader = (await self._confirmed_leader()).leader
        return Now(leader.state.incarnation, leader.now(), leader.state.index)

    async def add_blocks(self, blocks: tuple[BlockMeta, ...]) -> AddReply:
        return await (await self._leader()).ask(Add(blocks))

    async def poll(self, request: PollRequest) -> PollReply:
        leader_term = await self._leader()
        reply = await leader_term.ask(Poll(request))
        found = committing.to_write(leader_term.leader.state, request, reply)
        for each in found:  # before the reply: a report that is not answered is repeated
            await asyncio.to_thread(committing.write, self._store, each)
        return reply

    async def schedule_plan(self, request: SchedulePlan) -> ScheduledPlan:
        leader_term = await self._leader()
        return await leader_term.command(
            lambda state, now: wishes.entries(state, request, now=now),
            lambda effects, state: wishes.answer(
                effects, state, request, now=leader_term.leader.now()
            ),
        )

    async def run_now(self, plan: PlanId) -> Execution:
        leader_term = await self._leader()
        return await leader_term.command(
            lambda state, now: execution.run_now_entries(state, plan, now=now),
            lambda _, state: execution.run_now_answer(
                state, plan, now=leader_term.leader.now(), workers=leader_term.able(plan)
            ),
        )

    async def roll_back(self, plan: PlanId) -> RollbackReply:
        leader_term = await self._leader()
        return await leader_term.command(
            lambda state, now: rollbacks.by_hand(
                state, plan, now=now, hearing_since=leader_term.hearing_since
            ),
            lambda _, state: rollbacks.by_hand_reply(state, plan, now=leader_term.leader.now()),
        )

    async def schedule_rollbacks(self, request: ScheduleRollbacks) -> CleanStep:
        leader_term = await self._leader()
        if request.plan is None:
            leader_term.confirm()
            return rollbacks.dry_run(leader_term.leader.state, now=leader_term.leader.now())
        return await leader_term.command(
            lambda state, now: rollbacks.clean_entries(
                state, request, now=now, hearing_since=leader_term.hearing_since
            ),
            lambda effects, state: rollbacks.clean_step(
                effects, state, now=leader_term.leader.now()
            ),
        )

    async def commit_part(self, request: CommitPart) -> PartCommitted:
        term = await self._leader()

        def reply(effects: Sequence[Effect], state: MetaState) -> PartCommitted:
            stop, down = term.why_stop(request.plan), term.store_keeper.down
            told = repairs.commit_reply(effects, state, request, stop=stop, down=down)
            if told.accepted:
                term.damage.settle(repairs.suspects(state, request.plan))
            return told

        return await term.command(
            lambda state, now: repairs.commit_entries(
                state, request, now=now, interval_ns=term.interval_ns(request.plan)
            ),
            reply,
        )

    async def repairs(self, *, tenant: str = "") -> RepairsStatus:
        """By the leader: it knows which stores are down."""
        term = await self._confirmed_leader()
        return repairs_told.status(term.leader.state, tenant=tenant, at=term.moment())

    async def ask_repair(self, job: JobId, *, wanted: bool, dry_run: bool) -> RepairTold:
        repairs.check(job)
        if dry_run:
            state, ranges = (await self._current()).state, 0
            if job.type == RepairType.VNODE:
                ranges = await asyncio.to_thread(repairs_told.to_read(state, job).ranges)
            return repairs_told.dry_run(state, job, ranges)
        return await (await self._leader()).command(
            lambda state, _: repairs.ask_entries(state, job, wanted=wanted),
            lambda effects, state: repairs_told.after(effects, state, job),
        )

    async def asked_repair(self, job: JobId) -> RepairTold:
        return repairs_told.last_asked((await self._current()).state, job)

    async def confirm_deletes(self, request: ConfirmDeletes) -> tuple[str, ...]:
        """Not by a leader whose log was restored elsewhere: the new one may have adopted what an
        attempt wrote that this one undoes.
        """
        leader_term = await self._leader()
        deletable = await leader_term.command(
            lambda state, now: rollbacks.confirm_entries(state, request, now=now),
            lambda effects, state: rollbacks.deletable(effects, state, request),
        )
        await asyncio.to_thread(leader_term.leader.confirm_deletes)
        return deletable

    async def pin(self, reader: str) -> int:
        leader_term = await self._leader()
        if not leader_term.is_pinned(reader):
            await leader_term.ask(PinRequest(reader))
        return leader_term.leader.state.index

    async def vote(self, vote: Vote) -> None:
        await self._leader()
        self._state_votes().hear(vote)

    async def snapshot(self) -> int:
        """Make a snapshot now, even if little was written since the last; return its index."""
        leader_term = await self._leader()
        return await leader_term.snapshots.take(leader_term.leader)

    async def status(self) -> Status:
        leader_term = await self._leader()
        state = (await self._current()).state
        first = await self._log.first()
        leader_term.confirm()
        return leader_term.status(state, log_first=first)

    async def beat(self, beat: Beat) -> BeatReply:
        return await (await self._confirmed_leader()).rings.beat(beat)

    async def rings(self) -> tuple[RingView, ...]:
        return (await self._confirmed_leader()).rings.views()

    async def report_damage(self, copies: tuple[Trouble, ...]) -> None:
        leader_term = await self._confirmed_leader()
        leader_term.hear_damage(copies[:REPORTED_MAX])

    async def stores(self, *, tenant: str = "") -> tuple[StoreStatus, ...]:
        leader_term = await self._confirmed_leader()
        state = leader_term.leader.state
        reported = [(each.store, each.tenant) for each in leader_term.damage.bad(state)]
        here, given = self._stores.names(), leader_term.given_stores()
        return store_views.statuses(state, reported, here=here, given=given, tenant=tenant)

    async def remove_writer(self, zone: Zone, node: NodeId) -> Ring:
        return await (await self._leader()).rings.remove(zone, node)

    async def letters(self, *, limit: int = 100) -> LettersPage:
        return await (await self._leader()).letters.list_letters(limit=limit)

    async def letter(self, name: str) -> Letter:
        return await (await self._leader()).letters.one(name)

    async def retry_letter(self, name: str) -> LetterRetried:
        return await (await self._leader()).letters.retry(name)

    async def requeue(self, plan: PlanId) -> Plan:
        return await (await self._leader()).command(
            lambda state, _: operator_commands.requeue(state, plan),
            lambda effects, state: operator_commands.plan_after(effects, state, plan),
        )

    async def exclude(self, plan: PlanId, *, note: str) -> Plan:
        return await (await self._leader()).command(
            lambda state, _: operator_commands.exclude(state, plan, note=note),
            lambda effects, state: operator_commands.plan_after(effects, state, plan),
        )

    async def raise_limit(self, failure_limit: int, *, for_ns: int) -> LeaseTime:
        return await (await self._leader()).command(
            lambda state, now: operator_commands.raise_limit(
                state, failure_limit, for_ns=for_ns, now=now
            ),
            lambda _, state: state.raised.until,
        )

    async def loss(self, block: BlockId) -> Loss:
        """Check the block's objects in a thread, since a block may have gigabytes."""
        leader_term = await self._leader()
        meta = await self.block(block)
        state = leader_term.leader.state
        before = losing.sources(state, block)
        found = await asyncio.to_thread(lambda: tuple(damages(self._stores, meta)))
        there = await asyncio.to_thread(
            lambda: tuple(each.id for each in before if is_readable(self._stores, each))
        )
        return Loss(meta, found, losing.owner(state, block), there if found else ())

    async def lose(self, block: BlockId, *, note: str, force: bool = False) -> Loss:
        """Give the block up. What it had replaced may come back, so deletion waits meanwhile."""
        leader_term = await self._leader()
        async with leader_term.cleaner.removal:
            return await self._lose(leader_term, block, note=note, force=force)

    async def _lose(
        self, leader_term: LeaderTerm, block: BlockId, *, note: str, force: bool
    ) -> Loss:
        """Only in the term whose cleaner waits: the next term's cleaner does not wait."""
        loss = await self.loss(block)
        if not loss.damages and not force:
            raise Rejected(
                f"block {block} is intact: every object exists with its checksum. Force it if "
                "its profiles are to go all the same"
            )
        if not force and await asyncio.to_thread(is_readable, self._stores, loss.block):
            raise Rejected(
                f"block {block} can be read: each of its files has a whole copy, and repair makes "
                "the others anew. Force it if its profiles are to go all the same"
            )
        wrong = "; ".join(map(str, loss.damages)) or "it is whole, and was given up by force"
        said = f"{note.strip()}: {wrong}" if note.strip() else wrong
        asked = asyncio.ensure_future(
            leader_term.command(
                lambda state, _: losing.order(state, block, note=said, returning=loss.returning),
                lambda effects, _: losing.check_effects(effects, block),
            )
        )
        try:
            await asyncio.shield(asked)
        finally:
            await asyncio.wait([asked])  # even if our caller has gone: the entry may be in the log
        log_.warning(
            "block given up block=%s profiles=%d returning=%d cause=%s",
            *(block, loss.block.profiles, len(loss.returning), said),
        )
        return loss

    async def find_orphans(self, *, limit: int = 100) -> FoundOrphans:
        return await (await self._confirmed_leader()).orphans.find(limit=limit)

    async def sweep_orphans(self, *, limit: int = 100) -> FoundOrphans:
        return await (await self._confirmed_leader()).orphans.sweep_now(limit=limit)

    async def delete_profiles(self, mask: Mask, *, dry_run: bool, request_id: str = "") -> Deletion:
        """The entry, then the object that a restore finds, then the reply."""
        leader_term = await self._confirmed_leader()
        deletion.check(mask, request_id)
        found = await leader_term.eraser.count(mask)
        if dry_run:
            return found
        counts = found.profiles, found.blocks, found.at_most
        request = DeletionRequest(request_id, *counts) if request_id else None
        predicate, pending = await leader_term.command(
            lambda state, _: deletion.order(state, mask, request),
            lambda effects, state: (
                made := deletion.predicate_of(effects, state, mask, request),
                made.id in state.predicates,
            ),
        )
        try:
            if pending:
                await leader_term.eraser.keep(predicate)
        except Retryable as error:
            raise Unavailable(
                f"deletion {predicate.id} is in force, but not in the store yet, so that a log "
                f"that is restored might not know it ({error}); to ask again is harmless"
            ) from error
        if (said := predicate.request) is not None:
            return Deletion(predicate.id, said.profiles, said.blocks, said.at_most)
        return msgspec.structs.replace(found, predicate=predicate.id)

    async def remove_store(
        self, store: StoreName, *, lost: bool, seen: str, keep: bool
    ) -> RemovedStore:
        keeper = (await self._confirmed_leader()).store_keeper
        if keep:
            return await keeper.keep(store)
        return await keeper.remove(store, lost=lost, seen=seen)

    async def deletions(self) -> tuple[PendingDeletion, ...]:
        return (await self._confirmed_leader()).eraser.pending()

    async def set_retention(self, tenant: TenantId, *, period_ns: int | None) -> RetentionStatus:
        leader_term = await self._leader()
        await leader_term.append(
            lambda state, _: retention.order(state, tenant, period_ns=period_ns)
        )
        return await self.retention()

    async def hold_retention(self, *, why: str) -> RetentionStatus:
        leader_term = await self._leader()
        await leader_term.append(lambda *_: trust.hold_entries(why))
        return await self.retention()

    async def release_retention(self) -> RetentionStatus:
        leader_term = await self._leader()
        await leader_term.append(lambda *_: trust.release_entries())
        return await self.retention()

    async def undo_retention(self, *, tenant: str = "", why: str = "") -> Undone:
        return await (await self._leader()).cleaner.undo(tenant=tenant, why=why)

    # ── the schedule ───────────────────────────────────────────────────────────────────────────

    async def jobs(self, *, tenant: str, kind: str, limit: int) -> tuple[JobView, ...]:
        found = LeaderSchedule(await self._confirmed_leader())
        return await found.jobs(tenant=tenant, kind=kind, limit=limit)

    async def explain_job(self, job: JobId) -> tuple[str, ...]:
        return LeaderSchedule(await self._confirmed_leader()).explain(job)

    async def rules(self) -> tuple[ScheduleRule, ...]:
        return tuple((await self._current()).state.schedules.values())

    async def set_schedule(self, rule: ScheduleRule) -> None:
        await LeaderSchedule(await self._leader()).set(rule)

    async def remove_schedule(self, jobs: JobId) -> None:
        await LeaderSchedule(await self._leader()).remove(jobs)

    async def run_policies(self) -> tuple[RunPolicy, ...]:
        return tuple((await self._current()).state.run_policies.values())

    async def add_policy(self, policy: RunPolicy) -> RunPolicy:
        return await LeaderSchedule(await self._leader()).add_policy(policy)

    async def remove_policy(self, policy: int) -> None:
        await LeaderSchedule(await self._leader()).remove_policy(policy)

    async def test_policy(self, job: JobId, *, at: WallTime | None) -> Ruling:
        return LeaderSchedule(await self._confirmed_leader()).test_policy(job, at=at)

    async def alarms(self) -> tuple[Alarm, ...]:
        return every_alarm((await self._current()).state)
