"""What a bulk write may add to the index: blocks without inputs, in one entry.

It is never due, and no worker that polls is given one: only who opened it has its source. Its
outputs are finished blocks, of a level that compaction never queues: they have the size that their
source allows, and clustering merges the finished blocks of a day, of whatever level.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from maar.model.block import INGESTED, BlockMeta, BlockOutline, Kind
from maar.model.ids import MAIN_STORE, NO_ZONE, BlockId, TenantId, block_time_ns
from maar.model.keys import is_ingested
from maar.model.plan import Account, LeasedPlan, Plan, PlanKind, PlanResult, PlanSpec, QueueKey
from maar.model.refusal import Refusal
from maar.model.stores import NO_STORES, StoreSet
from maar.model.time import LeaseTime
from maar.services.rules import NO_SHARD, Board, KindRules, PlanScope

INGEST = PlanKind("ingest")
OUTPUTS_MAX = 2_000  # blocks of one plan: a result is one entry, and one request over HTTP


class Ingestion(KindRules):
    """A plan of one tenant that owns nothing; its outputs are as old as the plan."""

    kind = INGEST
    open_to_all = False
    commits = True
    answers_again = False  # its source is looked at anew: what is there already is not added again

    def due(self, _board: Board, _line: int, *, now: LeaseTime) -> Iterator[PlanSpec]:  # noqa: ARG002
        return iter(())

    def on_request(self, board: Board, scope: PlanScope, *, now: LeaseTime) -> PlanSpec | str:  # noqa: ARG002
        if not scope.tenant:
            return "a bulk write is of one tenant; name it"
        policy = board.policy
        removable = policy.terms(INGEST).removable
        return PlanSpec(INGEST, removable, key_of(scope, board.stores), (), policy.failure_limit)

    def is_about(self, _key: QueueKey, _scope: PlanScope) -> bool:
        """Two bulk writes of a tenant have different sources: only a request id tells that."""
        return False

    def misfit(self, board: Board, spec: PlanSpec) -> Refusal | None:
        whole = spec.key == key_of(PlanScope(spec.key.tenant), board.stores) and spec.key.tenant
        return Refusal.INPUT_KEY if spec.inputs or not whole else None

    def join(self, plan: LeasedPlan, results: Sequence[PlanResult]) -> PlanResult:
        """All parts in one result, so that all blocks show in one entry."""
        accounts = [each.account for each in results]
        return PlanResult(
            kind=plan.kind,
            outputs=tuple(meta for each in results for meta in each.outputs),
            account=Account(
                sum(each.kept for each in accounts),
                sum(each.duplicates for each in accounts),
                sum(each.quarantined for each in accounts),
            ),
            collisions=sum(each.collisions for each in results),
            cpu_ms=sum(each.cpu_ms for each in results),
            wall_ms=max((each.wall_ms for each in results), default=0),
        )

    def refusal(
        self,
        plan: Plan,
        _inputs: Mapping[BlockId, BlockOutline],
        result: PlanResult,
        _deletable: Mapping[TenantId, int],
    ) -> Refusal | None:
        """Every profile that it says it kept or quarantined is in a block of its own."""
        account = result.account
        held = [meta for meta in result.outputs if meta.kind is Kind.QUARANTINE]
        kept = sum(meta.profiles for meta in result.outputs if meta.kind is not Kind.QUARANTINE)
        sums = account.kept == kept and account.quarantined == sum(meta.profiles for meta in held)
        if not sums or account.duplicates < 0 or account.deleted:
            return Refusal.ACCOUNT
        fits = len(result.outputs) <= OUTPUTS_MAX
        fits = fits and all(_belongs(meta, plan) for meta in result.outputs)
        return None if fits else Refusal.OUTPUT

    def scope(self, _key: QueueKey) -> str:
        return "bulk write"


INGESTION = Ingestion()


def key_of(scope: PlanScope, stores: StoreSet = NO_STORES) -> QueueKey:
    """Whoever brings the source is of no zone: its blocks go to the first store."""
    first = next(iter(stores.names()), MAIN_STORE)
    return QueueKey(first, scope.tenant, NO_SHARD, 0)


def _belongs(meta: BlockMeta, plan: Plan) -> bool:
    """A block of the plan's tenant, as old as the plan, with the keys of a bulk write."""
    key = plan.key
    return (
        meta.kind in (Kind.BLOCK, Kind.QUARANTINE)
        and (meta.level, meta.shard) == (INGESTED, NO_SHARD)
        and (meta.store, meta.tenant, meta.plan) == (key.store, key.tenant, plan.id)
        and meta.zone in (NO_ZONE, key.zone)
        and block_time_ns(meta.id) == plan.scheduled_at
        and all(is_ingested(at.key) for file in meta.files for at in file.locations)
    )
