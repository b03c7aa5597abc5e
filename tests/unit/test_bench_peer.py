"""The model of the peer that benchmarks compare with keeps to what it says."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType

import pytest

BENCH = Path(__file__).parents[2] / "bench"
SECOND = 1_000_000_000


@pytest.fixture
def peer(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(BENCH))
    import synthetic_peer

    return synthetic_peer


def segments(peer: ModuleType, system: object, count: int, *, at_s: float, shard: int = 1) -> None:
    for _ in range(count):
        system.add(peer.Block(0, shard, 1, {"acme": (0, 1)}), int(at_s * SECOND))  # type: ignore[attr-defined]


def test_the_peer_hands_new_jobs_out_by_the_next_poll(peer: ModuleType) -> None:
    system = peer.Peer()
    segments(peer, system, 45, at_s=0)
    assert system.poll(1, [], SECOND) == []
    (first,) = system.poll(1, [], 6 * SECOND)
    (second,) = system.poll(4, [], 11 * SECOND)
    assert [len(first.blocks), len(second.blocks)] == [20, 20]
    assert system.poll(4, [], 16 * SECOND) == []
    assert len(system.live) == 45
    outputs = [peer.Block(1, 1, 1, {"acme": (0, 1)})]
    system.poll(0, [(first, outputs)], 17 * SECOND)
    assert len(system.live) == 45 - 20 + 1


def test_the_peer_closes_old_batches_only_when_something_arrives(peer: ModuleType) -> None:
    system = peer.Peer()
    for shard in (1, 2, 3):
        segments(peer, system, 5, at_s=0, shard=shard)
    for at_s in (60, 65, 3600):
        assert system.poll(9, [], at_s * SECOND) == []
    segments(peer, system, 1, at_s=3601, shard=3)  # its own, and the one touched longest ago
    system.poll(9, [], 3602 * SECOND)
    jobs = system.poll(9, [], 3607 * SECOND)
    assert sorted((job.blocks[0].shard, len(job.blocks)) for job in jobs) == [(1, 5), (3, 6)]
    segments(peer, system, 1, at_s=3610, shard=3)  # one more for each push
    system.poll(9, [], 3611 * SECOND)
    (late,) = system.poll(9, [], 3616 * SECOND)
    assert (late.blocks[0].shard, len(late.blocks)) == (2, 5)


def test_the_peer_fills_a_job_from_later_batches(peer: ModuleType) -> None:
    system = peer.Peer()
    segments(peer, system, 5, at_s=0)
    segments(peer, system, 1, at_s=40)  # closes six
    segments(peer, system, 20, at_s=41)
    system.poll(9, [], 42 * SECOND)
    (job,) = system.poll(9, [], 47 * SECOND)
    assert len(job.blocks) == 20
    assert system.poll(9, [], 52 * SECOND) == [], "six of the second batch wait for more, or age"
