"""What a worker would make of segments that are joined, for tests of the metastore."""

from __future__ import annotations

from maar.model import keys
from maar.model.block import NO_DAY, BlockMeta, Dataset, File, Kind, Location
from maar.model.ids import NO_TENANT, FencingToken, PlanId, joined_segment_id
from maar.model.plan import Account, PlanResult
from maar.services.logcompact.rules import LOGCOMPACT


def join_segments(
    plan: PlanId, token: FencingToken, inputs: tuple[BlockMeta, ...], attempt: str = "a1"
) -> BlockMeta:
    """Each service of a tenant once, with the sums of what it has in the inputs."""
    first = inputs[0]
    block = joined_segment_id(plan=plan, oldest_input=min(meta.id for meta in inputs))
    stem = keys.stem(block=block, plan=plan, token=token, attempt=attempt)
    key = keys.joined_segment(shard=first.shard, stem=stem)
    profiles, size = sum(m.profiles for m in inputs), sum(m.size for m in inputs)
    return BlockMeta(
        version=1,
        id=block,
        kind=Kind.SEGMENT,
        level=0,
        tenant=NO_TENANT,
        shard=first.shard,
        store=first.store,
        day=NO_DAY,
        min_time_ns=min(m.min_time_ns for m in inputs),
        max_time_ns=max(m.max_time_ns for m in inputs),
        profiles=profiles,
        samples=sum(m.samples for m in inputs),
        size=size,
        files=(File("segment", size, b"c" * 16, 100, profiles, (Location(first.store, key),)),),
        datasets=_datasets(inputs),
        created_by=f"plan {plan}",
        created_at_ns=0,
        plan=plan,
        zone=first.zone,
    )


def joined_result(
    plan: PlanId, token: FencingToken, inputs: tuple[BlockMeta, ...], attempt: str = "a1"
) -> PlanResult:
    made = join_segments(plan, token, inputs, attempt)
    return PlanResult(LOGCOMPACT, (made,), Account(made.profiles, 0, 0))


def _datasets(inputs: tuple[BlockMeta, ...]) -> tuple[Dataset, ...]:
    parts = [each for meta in inputs for each in meta.datasets]
    made = []
    for place, name in enumerate(sorted({(each.tenant, each.service) for each in parts})):
        own = [each for each in parts if (each.tenant, each.service) == name]
        made.append(
            Dataset(
                *name,
                tuple(sorted({kind for each in own for kind in each.types})),
                min(each.min_time_ns for each in own),
                max(each.max_time_ns for each in own),
                sum(each.profiles for each in own),
                sum(each.size for each in own),
                place,
                1,
            )
        )
    return tuple(made)
