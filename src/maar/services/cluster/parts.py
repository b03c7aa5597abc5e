"""How a clustering is cut into tasks, each of a range of the order, and joined again.

Inputs are sorted, so a task that takes the same range of every input merges it alone: no row has to
move between tasks. Copies of a profile have the same service and time, and so meet in one task.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import msgspec

from maar.model.block import BlockMeta
from maar.model.errors import Corrupt
from maar.model.plan import Account, LeasedPlan, PlanPart, PlanResult, ProfilePlace

MEMORY_BYTES = 1 << 30  # of one task, if the plan does not say
INPUT_PER_MEMORY = 2  # bytes at rest that a task merges within each byte of its memory
PARTS_MAX = 1_000


class _Stretch(NamedTuple):
    """A service's profiles in one input, taken as spread evenly over their time."""

    first_us: int
    end_us: int  # excluded
    weight: int

    def before(self, time_us: int) -> int:
        """Its weight before a time."""
        length = self.end_us - self.first_us
        return self.weight * min(max(time_us - self.first_us, 0), length) // length


def cut(plan: LeasedPlan) -> tuple[LeasedPlan, ...]:
    """One part a slot, or more, so that each fits into the memory of its task; a plan that makes
    one block is one part.
    """
    size = sum(meta.size for meta in plan.inputs)
    fits = INPUT_PER_MEMORY * (plan.memory_bytes or MEMORY_BYTES)
    blocks = max(1, size // max(1, plan.target_block_bytes))
    wanted = min(PARTS_MAX, max(min(plan.slots, blocks), -(-size // fits)))
    found = places(plan.inputs, wanted)
    bounds = zip([None, *found], [*found, None], strict=True)
    share = size // (len(found) + 1)
    return tuple(
        msgspec.structs.replace(plan, part=PlanPart(number, first, end, share))
        for number, (first, end) in enumerate(bounds)
    )


def places(inputs: Iterable[BlockMeta], parts: int) -> list[ProfilePlace]:
    """Where parts 2, 3 … begin, so that all are about equally large by what the index knows."""
    services: dict[str, list[_Stretch]] = defaultdict(list)
    for meta in inputs:
        for each in meta.datasets:
            first_us, end_us = each.min_time_ns // 1000, each.max_time_ns // 1000 + 1
            services[each.service].append(_Stretch(first_us, end_us, each.size + 1))
    total = sum(each.weight for some in services.values() for each in some)
    wanted = [total * number // parts for number in range(1, parts)]
    found: set[ProfilePlace] = set()
    passed = 0
    for service in sorted(services):
        some = services[service]
        weight = sum(each.weight for each in some)
        while wanted and wanted[0] <= passed + weight:
            found.add(ProfilePlace(service, _time_at(some, wanted.pop(0) - passed)))
        passed += weight
    return sorted(found)


def _time_at(some: Sequence[_Stretch], weight: int) -> int:
    """The first time before which there is at least this weight."""
    low, high = min(each.first_us for each in some), max(each.end_us for each in some)
    while low < high:
        middle = (low + high) // 2
        if sum(each.before(middle) for each in some) >= weight:
            high = middle
        else:
            low = middle + 1
    return low


def touches(meta: BlockMeta, part: PlanPart) -> bool:
    """Whether a block may hold profiles of a part."""
    for each in meta.datasets:
        first, last = (
            ProfilePlace(each.service, time_ns // 1000)
            for time_ns in (each.min_time_ns, each.max_time_ns)
        )
        if (part.first is None or last >= part.first) and (part.end is None or first < part.end):
            return True
    return False


def join(plan: LeasedPlan, results: Sequence[PlanResult]) -> PlanResult:
    """One result of all parts; Corrupt when they do not account for every profile together."""
    kept = sum(each.account.kept for each in results)
    duplicates = sum(each.account.duplicates for each in results)
    deleted = sum(each.account.deleted for each in results)
    came = sum(meta.profiles for meta in plan.inputs)
    if kept + duplicates + deleted != came:
        raise Corrupt(
            f"Plan {plan.id} has {came} profiles, and its {len(results)} tasks account for "
            f"{kept} kept, {duplicates} duplicates and {deleted} deleted. Its output is not used; "
            "this is a bug in maar, please report it."
        )
    return PlanResult(
        kind=plan.kind,
        outputs=tuple(meta for each in results for meta in each.outputs),
        account=Account(kept, duplicates, 0, deleted),
        collisions=sum(each.collisions for each in results),
        cpu_ms=sum(each.cpu_ms for each in results),
        wall_ms=max(each.wall_ms for each in results),
    )
