"""A clustering on a real Spark: several tasks, one lifeline, one result; and what queries see."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from pathlib import Path
from random import Random
from typing import cast

import msgspec
import pytest
from prometheus_client import CollectorRegistry

from maar.adapters.stores.open import open_store
from maar.block.format.segment import segment_meta, write_segment
from maar.model import keys
from maar.model.block import CLUSTERED, BlockMeta
from maar.model.ids import MAIN_STORE, FencingToken, Incarnation, PlanId, Shard, segment_id
from maar.model.plan import LeasedPlan, PlanResult, QueueKey
from maar.model.time import SECOND_NS, TimeRange
from maar.ports.calls import Caller, LocalPort
from maar.ports.plans.runner import AttemptFailed
from maar.ports.reader.index import IndexReader, IndexView, ViewRequest
from maar.ports.reader.query import DrawFlameGraph, FlameGraph, Matcher, Scope
from maar.ports.stores.object_store import ObjectStore, StoreSettings
from maar.query.service import DuckEngine, QuerySettings
from maar.runner.runner import SparkRunner
from maar.runner.settings import SparkSettings
from maar.services.cluster.rules import CLUSTER
from maar.services.compact.rules import COMPACT
from maar.services.compact.run import run as compact
from maar.services.kinds import KINDS
from support.lake.query_lake import CPU, TENANT, Known, random_profile

pytestmark = [pytest.mark.component, pytest.mark.long(30), pytest.mark.timeout(300)]

LIFE = Incarnation("0badcafe")
START_NS = 1_790_035_200 * SECOND_NS
SERVICES = ("cart", "checkout", "mail")


@pytest.fixture(scope="module")
def settings(tmp_path_factory: pytest.TempPathFactory) -> StoreSettings:
    return StoreSettings("main", (tmp_path_factory.mktemp("store")).as_uri())


@pytest.fixture(scope="module")
def store(settings: StoreSettings) -> ObjectStore:
    return open_store(settings)


@pytest.fixture(scope="module")
def runner(
    settings: StoreSettings, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[SparkRunner]:
    spark = SparkSettings(master="local[2]", driver_memory="512m")
    runner = SparkRunner(spark, settings, tmp_path_factory.mktemp("scratch"), open_store=open_store)
    try:
        runner.warm()
        yield runner
    finally:
        runner.close()


def known(seed: int, count: int) -> list[Known]:
    random = Random(seed)
    return [
        random_profile(
            random,
            time_ns=START_NS + random.randrange(3600) * SECOND_NS,
            service=random.choice(SERVICES),
        )
        for _ in range(count)
    ]


@pytest.fixture(scope="module")
def pushed() -> list[list[Known]]:
    """By shard; a few profiles were pushed to two of them."""
    shards = [known(seed, 40) for seed in range(6)]
    return [[*own, *before[:5]] for own, before in zip(shards, shards[-1:] + shards, strict=False)]


@pytest.fixture(scope="module")
def blocks(
    store: ObjectStore, pushed: list[list[Known]], tmp_path_factory: pytest.TempPathFactory
) -> list[BlockMeta]:
    scratch = tmp_path_factory.mktemp("compact")
    return [_block(store, number, some, scratch) for number, some in enumerate(pushed, start=1)]


def _block(store: ObjectStore, shard: int, some: Sequence[Known], scratch: Path) -> BlockMeta:
    written = write_segment([each.raw for each in some])
    block = segment_id(lease_time_ns=shard, entropy=shard)
    key = keys.segment(shard=Shard(shard), block=block, incarnation=LIFE)
    store.create(key, written.body)
    meta = segment_meta(
        written,
        block=block,
        key=key,
        shard=Shard(shard),
        store=MAIN_STORE,
        created_by="a test",
        created_at_ns=START_NS,
    )
    plan = LeasedPlan(
        id=PlanId(shard, 0),
        kind=COMPACT,
        token=FencingToken(LIFE, shard),
        key=QueueKey(MAIN_STORE, meta.tenant, Shard(shard), 0),
        inputs=(meta,),
        target_block_bytes=1 << 30,
        lease_ns=15 * SECOND_NS,
    )
    result = compact(plan, store=store, attempt="a", scratch=scratch, wall_ns=START_NS)
    (made,) = result.outputs
    return made


def clustering(blocks: Sequence[BlockMeta], number: int) -> LeasedPlan:
    return LeasedPlan(
        id=PlanId(number, 0),
        kind=CLUSTER,
        token=FencingToken(LIFE, number),
        key=QueueKey(MAIN_STORE, TENANT, Shard(0), 0, day=blocks[0].day),
        inputs=tuple(blocks),
        target_block_bytes=30_000,
        lease_ns=15 * SECOND_NS,
        slots=3,
    )


@pytest.fixture(scope="module")
def result(runner: SparkRunner, blocks: list[BlockMeta]) -> PlanResult:
    plan = clustering(blocks, 100)
    assert len(KINDS[CLUSTER].cut(plan)) == 3
    return runner.run(plan)


class Index(LocalPort):
    def __init__(self, blocks: Sequence[BlockMeta]) -> None:
        self._view = IndexView(1, tuple(blocks))

    async def view(self, request: ViewRequest) -> IndexView:
        del request
        return self._view


def flame_graph(store: ObjectStore, blocks: Sequence[BlockMeta], service: str) -> FlameGraph:
    index = cast(Caller[IndexReader], Index(blocks))
    engine = DuckEngine(QuerySettings(), index, store, CollectorRegistry())
    scope = Scope(
        TENANT,
        TimeRange(START_NS, START_NS + 3600 * SECOND_NS),
        (Matcher("service_name", "=", service),),
    )
    try:
        return asyncio.run(engine.call(DrawFlameGraph(scope, profile_type=CPU, max_nodes=1 << 20)))
    finally:
        engine.close()


def test_several_tasks_make_one_result_in_which_every_profile_is_once(
    result: PlanResult, pushed: list[list[Known]], store: ObjectStore
) -> None:
    came = [each.raw.id for some in pushed for each in some]
    assert result.account.kept == len(set(came)) == sum(meta.profiles for meta in result.outputs)
    assert result.account.duplicates == len(came) - len(set(came)) == 30
    assert {(meta.level, meta.shard) for meta in result.outputs} == {(CLUSTERED, 0)}
    attempts = {
        meta.files[0].locations[0].key.rpartition("/")[2].split("-", 3)[3]
        for meta in result.outputs
    }
    assert len(attempts) == 3, "each task wrote under keys of its own"
    assert len({meta.id for meta in result.outputs}) == len(result.outputs)
    for meta in result.outputs:
        assert store.size(meta.file("samples").locations[0].key) == meta.file("samples").size


@pytest.mark.parametrize("service", SERVICES)
def test_a_flame_graph_is_the_same_before_and_after(
    store: ObjectStore,
    blocks: list[BlockMeta],
    result: PlanResult,
    pushed: list[list[Known]],
    service: str,
) -> None:
    before = flame_graph(store, blocks, service)
    after = flame_graph(store, result.outputs, service)
    both = flame_graph(store, [*blocks, *result.outputs], service)
    assert before == after == both
    each = {one.raw.id: one for some in pushed for one in some if one.raw.service == service}
    assert after.total == sum(values[1] for one in each.values() for _, _, values in one.samples)


def test_one_task_that_fails_fails_the_plan_and_all_of_them_have_ended(
    runner: SparkRunner, blocks: list[BlockMeta]
) -> None:
    file = blocks[2].file("samples")
    elsewhere = msgspec.structs.replace(file.locations[0], key="lake/v1/samples/gone.parquet")
    gone = msgspec.structs.replace(file, locations=(elsewhere,))
    files = tuple(gone if each is file else each for each in blocks[2].files)
    damaged = msgspec.structs.replace(blocks[2], files=files)
    plan = clustering([*blocks[:2], damaged, *blocks[3:]], 200)
    with pytest.raises(AttemptFailed, match=damaged.id) as failed:
        runner.run(plan)
    assert failed.value.stopped
    assert failed.value.plan_at_fault
