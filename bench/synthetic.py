"""Made-up profiles, segments and leased plans, the same for every benchmark that merges."""

from __future__ import annotations

import itertools
import os
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path
from random import Random

import httpx
import msgspec

from maar.block.format.segment import segment_meta, write_segment
from maar.model import keys
from maar.model.block import BlockMeta
from maar.model.ids import (
    MAIN_STORE,
    FencingToken,
    Incarnation,
    PlanId,
    Shard,
    TenantId,
    segment_id,
)
from maar.model.labels import labels_of
from maar.model.plan import LeasedPlan, QueueKey
from maar.model.profile import RawProfile, profile_id, profile_type
from maar.ports.stores.object_store import ObjectStore
from maar.pprof import gzip
from maar.pprof.encode import encode
from maar.pprof.plain import (
    PlainFunction,
    PlainLine,
    PlainLocation,
    PlainMapping,
    PlainProfile,
    PlainSample,
)
from maar.services.compact.rules import COMPACT

START_NS = 1_790_000_000_000_000_000
INCARNATION = Incarnation("be9cbe9c")
TENANT = TenantId("acme")
SHARD = Shard(1)
SERVICES = 4
LOAD_MAX = 0.5  # on a busy machine wall times say more about the neighbours

_numbers = itertools.count(1)


def pprof(random: Random, *, time_ns: int, samples: int = 160, locations: int = 1400) -> bytes:
    """A CPU profile as agents send them, not compressed."""
    functions = [
        PlainFunction(f"pkg{n % 40}.(*Type{n % 9}).method{n}", f"pkg{n % 40}.m{n}", f"src/f{n}.go")
        for n in range(locations // 2)
    ]
    return encode(
        PlainProfile(
            sample_types=[("samples", "count"), ("cpu", "nanoseconds")],
            samples=[
                PlainSample(
                    [random.randrange(locations) for _ in range(random.randrange(8, 40))],
                    [random.randrange(1, 50), random.randrange(1, 50) * 10_000_000],
                )
                for _ in range(samples)
            ],
            mappings=[PlainMapping(0x400000, 0x900000, 0, "/bin/app", "build-1")],
            locations=[
                PlainLocation(0, 0x400000 + 64 * n, (PlainLine(n % len(functions), n % 900),))
                for n in range(locations)
            ],
            functions=functions,
            time_ns=time_ns,
            duration_ns=10_000_000_000,
            period_type=("cpu", "nanoseconds"),
            period=10_000_000,
        )
    )


def profile(
    random: Random, number: int, *, samples: int = 160, locations: int = 1400
) -> RawProfile:
    """The nth profile, of one of four services."""
    service = f"service-{number % SERVICES}"
    time_ns = START_NS + number * 1_000_000_000
    raw = pprof(random, time_ns=time_ns, samples=samples, locations=locations)
    labels = labels_of([("service_name", service), ("__name__", "process_cpu"), ("pod", "a")])
    return RawProfile(
        id=profile_id(tenant=TENANT, labels=labels, time_ns=time_ns, client_id="", body=raw),
        tenant=TENANT,
        service=service,
        labels=labels,
        types=tuple(
            profile_type(
                name="process_cpu",
                sample_type=kind,
                sample_unit=unit,
                period_type="cpu",
                period_unit="nanoseconds",
            )
            for kind, unit in (("samples", "count"), ("cpu", "nanoseconds"))
        ),
        time_ns=time_ns,
        duration_ns=10_000_000_000,
        samples=samples,
        payload=gzip.compress(raw),
        raw_size=len(raw),
    )


def again(one: RawProfile, *, time_ns: int, tenant: TenantId = TENANT) -> RawProfile:
    """The same stacks at another time: another profile, as programs repeat themselves."""
    return msgspec.structs.replace(
        one,
        id=profile_id(
            tenant=tenant, labels=one.labels, time_ns=time_ns, client_id="", body=one.payload
        ),
        tenant=tenant,
        time_ns=time_ns,
    )


def segment(
    store: ObjectStore, profiles: Sequence[RawProfile], *, shard: Shard = SHARD
) -> BlockMeta:
    """Written to the store, as the segment writer does."""
    number = next(_numbers)
    written = write_segment(profiles)
    block = segment_id(lease_time_ns=number, entropy=number)
    key = keys.segment(shard=shard, block=block, incarnation=INCARNATION)
    store.create(key, written.body)
    return segment_meta(
        written,
        block=block,
        key=key,
        shard=shard,
        store=MAIN_STORE,
        created_by="bench",
        created_at_ns=START_NS,
    )


def lease(inputs: Sequence[BlockMeta]) -> LeasedPlan:
    """A plan of its own for each call, so that the same inputs can be merged many times."""
    number = next(_numbers)
    first = inputs[0]
    return LeasedPlan(
        id=PlanId(number, 0),
        kind=COMPACT,
        token=FencingToken(INCARNATION, number),
        key=QueueKey(first.store, first.tenant, first.shard, first.level),
        inputs=tuple(inputs),
        target_block_bytes=1 << 30,
        lease_ns=15_000_000_000,
    )


def tell_of_neighbours(load_before: float) -> None:
    if load_before > LOAD_MAX:
        print(f"# load was {load_before:.1f} before we began: others ran too, do not quote this")


def load_now() -> float:
    return os.getloadavg()[0]


def url_when_ready(server: subprocess.Popen[bytes], log: Path, *, patience_s: float) -> str:
    """Where a server that tells its address in its log answers, once all its roles do."""
    deadline = time.monotonic() + patience_s
    while time.monotonic() < deadline and server.poll() is None:
        said = log.read_text(errors="replace")
        url = said.partition("url=")[2].split()[0] if "url=" in said else ""
        try:
            if (
                url
                and httpx.get(f"{url}/ready", trust_env=False, verify=False, timeout=60).status_code
                == 200
            ):
                return url
        except httpx.HTTPError:
            pass  # not listening yet
        time.sleep(0.1)
    raise SystemExit(f"not ready within {patience_s:.0f} s:\n{log.read_text()[-4000:]}")
