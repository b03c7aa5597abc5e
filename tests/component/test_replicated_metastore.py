"""Three replicas over a real three-node etcd, under load and every fault that we can think of.

The short form of `make soak-metastore` and of bench/failover.py: the same code, each fault once.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from support.load.register_load import Load, Record
from support.replicas.processes import FAILOVER_S, replicas
from support.replicas.under_faults import FaultyReplicas

pytestmark = [pytest.mark.component, pytest.mark.serial, pytest.mark.timeout(280)]

BENCH = Path(__file__).parents[2] / "bench"
ZOMBIE_S = 6.0  # three times the election's lease
STALLED_S = 2 * FAILOVER_S  # a machine that is shared may stall once; bench/failover.py is exact

Tell = Callable[[dict[str, float]], None]


@pytest.fixture(scope="module")
def three(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FaultyReplicas]:
    with replicas(tmp_path_factory.mktemp("three")) as made:
        yield FaultyReplicas(made)


@pytest.fixture
def tell(capsys: pytest.CaptureFixture[str]) -> Tell:
    def said(gaps_s: dict[str, float]) -> None:
        with capsys.disabled():
            gaps = ", ".join(f"{what} {gap:.2f} s" for what, gap in gaps_s.items())
            print(f"\nuntil the next registration: {gaps}", end=" ")  # noqa: T201

    return said


def test_the_leader_is_killed_and_the_bench_says_for_how_long_nobody_answered(
    three: FaultyReplicas, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.syspath_prepend(str(BENCH))
    import failover

    asyncio.run(failover.measure(three, times=1, reads=20))
    said = capsys.readouterr().out
    found = dict(re.findall(r"^(\w+) ([0-9.]+) ", said, re.MULTILINE))
    assert found.keys() == {
        *(f"failover_{what}" for what in ("p50", "max")),
        *(f"read_follower_{what}" for what in ("p50", "p99")),
    }
    assert all(float(value) > 0 for value in found.values()), said
    assert float(found["failover_max"]) <= STALLED_S
    assert "# 0 errors reached those who registered, polled or read" in said
    assert re.search(rf"^failover_max .* lease_and_2_s_{FAILOVER_S:g}$", said, re.MULTILINE), said


def test_one_fault_after_the_other_is_survived_and_nobody_hears_of_it(
    three: FaultyReplicas, tell: Tell
) -> None:
    """A zombie appends nothing, an answer that is lost is settled; the checks follow the load."""

    async def story() -> tuple[dict[str, float], Record, list[str]]:
        async with three.under_load() as load:
            await load.goes_on(100)
            gaps = {
                "both leaders killed": await three.kill_both_leaders(load),
                "leader stopped": await three.stop_leader(load, seconds=ZOMBIE_S),
                "leader cut off": await three.cut_leader_off(load),
                "follower cut off": await three.cut_follower_off(load),
                "answers lost": await three.lose_answers(load),
            }
            errors = list(load.record.errors)
            gaps["everything killed"] = await three.kill_everything(load)
        return gaps, load.record, errors

    gaps, record, errors = asyncio.run(story())
    tell(gaps)
    assert errors == []
    assert gaps["both leaders killed"] <= STALLED_S + 2  # etcd lets all leases begin anew
    assert max(gaps["leader stopped"], gaps["leader cut off"]) <= STALLED_S
    assert len(record.granted) > 10
    assert len(record.indexes) > 100


def test_a_bit_is_flipped_in_the_store_of_one_etcd_member(three: FaultyReplicas) -> None:
    async def story() -> Load:
        await three.flip_a_bit()
        async with three.under_load() as load:
            await load.goes_on()
        return load

    assert asyncio.run(story()).record.errors == []
