"""How long nobody answers when the metastore's leader is killed, and what a follower's reads cost.

    python bench/failover.py [--times 20] [--reads 2000]

Three replicas are processes of their own over three members of etcd on this machine, under a load
of registrations, polls and views. Then, again and again, the leader is killed (-9) and started
again; reads are of a view of some hundred blocks, one after the other, while registrations go on.

    failover        seconds from the kill to the next acknowledged registration that was begun
                    after it, against the most that is allowed: the election's lease and 2 s
    read_follower   milliseconds of a view at a replica that follows, against one at the leader

Each line: name value unit ratio baseline.
"""

from __future__ import annotations

import argparse
import asyncio
import signal
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from maar.adapters.rpc import MetastoreClient
from maar.model.ids import TenantId
from maar.ports.reader.index import ViewRequest
from support.load.register_load import EVER
from support.replicas.processes import ELECTION_S, FAILOVER_S, replicas
from support.replicas.under_faults import FaultyReplicas


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--times", type=int, default=20)
    parser.add_argument("--reads", type=int, default=2000)
    given = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("it was ended"))  # takes the replicas along
    with (
        tempfile.TemporaryDirectory(prefix="maar-bench-") as directory,
        replicas(Path(directory)) as made,
    ):
        asyncio.run(measure(FaultyReplicas(made), times=given.times, reads=given.reads))


async def measure(three: FaultyReplicas, *, times: int, reads: int) -> None:
    async with three.under_load() as load:
        leader = await three.replicas.leader()
        follower = three.replicas.followers(leader)[0]
        tenant, _ = load.groups[0]
        at_leader = await read(leader.address, tenant, reads)
        at_follower = await read(follower.address, tenant, reads)
    gaps = []
    async with three.under_load() as load:
        for _ in range(times):
            gaps.append(await three.kill_leader(load))
            await load.goes_on()
    print(f"# {times} kills of the leader, an election's lease of {ELECTION_S:g} s;")
    print(f"# {len(load.record.errors)} errors reached those who registered, polled or read")
    limit = f"lease_and_2_s_{FAILOVER_S:g}"
    for name, value in (("p50", at(gaps, 0.5)), ("max", max(gaps))):
        print(f"failover_{name} {value:.3f} s {value / FAILOVER_S:.2f} {limit}")
    for name, share in (("p50", 0.5), ("p99", 0.99)):
        ours, theirs = at(at_follower, share) * 1e3, at(at_leader, share) * 1e3
        print(f"read_follower_{name} {ours:.2f} ms {ours / theirs:.2f} at_leader_{theirs:.2f}")


async def read(address: str, tenant: TenantId, count: int) -> list[float]:
    """Seconds of each view."""
    client = MetastoreClient(address)
    took = []
    try:
        for _ in range(count):
            began = time.perf_counter()
            await client.call(ViewRequest(tenant, EVER))
            took.append(time.perf_counter() - began)
    finally:
        await client.close()
    return took


def at(values: list[float], share: float) -> float:
    return sorted(values)[min(len(values) - 1, int(len(values) * share))]


if __name__ == "__main__":
    main()
