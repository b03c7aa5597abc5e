"""What must hold when all is healed; each check gives sentences, and none is good news."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

import pyarrow.parquet as pq
from prometheus_client import CollectorRegistry

from maar.adapters.rpc import MetastoreClient
from maar.model import keys
from maar.model.block import SEGMENT_TABLE, BlockMeta, Kind
from maar.model.errors import NotFound
from maar.model.ids import ProfileId, TenantId
from maar.model.time import TimeRange
from maar.ports.operator.operator import Status
from maar.ports.reader.query import Matcher, RankFunctions, Scope
from maar.ports.stores.object_store import ObjectStore
from maar.query.service import DuckEngine, QuerySettings
from support.load.crowd import CPU
from support.oracles.log_audit import Audit
from support.soak.writer import SERVICE, TENANTS, Pushed, Writer

SHOWN_MAX = 10
TRACE = "Traceback (most recent call last):"
TRACE_LINES = 25
OF_SPARK = ("site-packages/py4j/", "site-packages/pyspark/")  # it complains when its JVM is killed
# Its thread that counts for tasks may be reading as the JVM leaves, and says so on stderr.
COUNTING = ("site-packages/pyspark/accumulators.py",)
OVER = ("completed", "cancelled", "rolled_back")


def busy(status: Status) -> str:
    """'' when nothing is left to do, else what is."""
    levels = sum(level.queued for level in status.levels)
    plans = {state: count for state, count in status.plans.items() if state not in OVER and count}
    left = {"queued": levels, "retired": status.retired, "leftovers": status.leftovers, **plans}
    return " ".join(f"{what}={count}" for what, count in left.items() if count)


def crashes(log: str, *, spared: Iterable[str] = OF_SPARK) -> list[str]:
    """Tracebacks of anybody but Spark's own driver side."""
    _, *traces = log.split(TRACE)
    shown = ["\n".join(trace.splitlines()[:TRACE_LINES]) for trace in traces]
    ours = [trace for trace in shown if not any(place in trace for place in spared)]
    return [
        f"somebody failed because of a bug, see the log: {trace.strip()[:200]}" for trace in ours
    ]


def log_faults(audit: Audit, status: Status, live: Iterable[BlockMeta]) -> list[str]:
    """Every plan was completed once, by the newest token, and the metastore agrees."""
    faults = list(audit.faults)
    faults += [f"plan {plan} was never completed" for plan in audit.unfinished_plans()]
    found = {meta.id: meta.profiles for meta in live}
    for block in audit.live.keys() - found.keys():
        faults.append(f"block {block} should be live, and is not")
    for block in found.keys() - audit.live.keys():
        faults.append(f"block {block} is live, and should not be")
    for block in found.keys() & audit.live.keys():
        if found[block] != audit.live[block]:
            faults.append(f"block {block} has {found[block]} profiles, not {audit.live[block]}")
    done = len(audit.winners) + len(audit.upkeep)
    if status.completed != done:
        faults.append(f"{status.completed} plans are said to be done, not {done}")
    for attempt in audit.ended - audit.swept:
        faults.append(f"attempt {attempt} was never swept")
    for block in audit.retired - audit.forgotten:
        faults.append(f"block {block} is retired and was never cleaned away")
    return faults


def leftovers(store: ObjectStore, live: Iterable[BlockMeta], *, strays_max: int) -> list[str]:
    """Every object is referenced, and every reference is an object of the right size.

    A push that was refused may have left its segment: as many strays as that are allowed.
    """
    wanted: dict[str, int | None] = {}
    for meta in live:
        for file in meta.files:
            for location in file.locations:
                wanted[location.key] = file.size
                if meta.kind is Kind.BLOCK:
                    wanted[keys.manifest_of(location.key)] = None
    found = {info.key: info.size for info in store.list("")}
    faults = [f"{key} is referenced and missing" for key in wanted.keys() - found.keys()]
    faults += [
        f"{key} has {found[key]} bytes, not {size}"
        for key, size in wanted.items()
        if key in found and size is not None and size != found[key]
    ]
    metastore = (keys.SNAPSHOTS, "markers/", "placement/")
    strays = [key for key in found.keys() - wanted.keys() if not key.startswith(metastore)]
    segments = [key for key in strays if key.startswith("segments/")]
    if len(segments) <= strays_max:
        strays = [key for key in strays if key not in segments]
    return faults + [f"{key} is a leftover" for key in sorted(strays)]


def find_lost_or_doubled(
    store: ObjectStore, live: Iterable[BlockMeta], writer: Writer
) -> list[str]:
    """By the ids that the live blocks hold: each acknowledged profile once."""
    try:
        stored = Counter(profile for meta in live for profile in ids_of(store, meta))
    except NotFound as error:
        return [str(error)]
    faults = [f"profile {one.hex()} is lost" for one in writer.acknowledged.keys() - stored.keys()]
    for one, times in stored.items():
        if one not in writer.acknowledged:
            faults.append(f"profile {one.hex()} was never pushed")
        elif times > 1 and one not in writer.repeated:
            faults.append(f"profile {one.hex()} is there {times} times")
    return faults


def ids_of(store: ObjectStore, meta: BlockMeta) -> list[ProfileId]:
    table = "profiles" if meta.kind is Kind.BLOCK else SEGMENT_TABLE
    key = meta.file(table).locations[0].key
    with store.open(key) as file:
        column = pq.ParquetFile(file).read(columns=["profile_id"])["profile_id"]
    return [ProfileId(value) for value in column.to_pylist()]


async def unread(
    metastore: MetastoreClient, store: ObjectStore, acknowledged: Iterable[Pushed]
) -> list[str]:
    """By what a reader is told: every function counts one, as it was pushed."""
    pushed: dict[TenantId, set[str]] = {tenant: set() for tenant in TENANTS}
    times = []
    for one in acknowledged:
        pushed[one.tenant].add(one.function)
        times.append(one.time_ns)
    span = TimeRange(min(times), max(times) + 1)
    settings = QuerySettings(timeout_s=600)  # a slow machine may take long; it must get there
    engine = DuckEngine(settings, metastore, store, CollectorRegistry(), reader="soak")
    faults = []
    try:
        for tenant, functions in pushed.items():
            scope = Scope(tenant, span, (Matcher("service_name", "=", SERVICE),))
            top = await engine.call(RankFunctions(scope, profile_type=CPU, limit=1_000_000))
            read = {row.function: row.self_value for row in top.rows if row.self_value}
            faults += [f"{name} of {tenant} is not found" for name in functions - read.keys()]
            faults += [
                f"{name} of {tenant} counts {value}, not 1"
                for name, value in read.items()
                if value != 1 or name not in functions
            ]
    finally:
        engine.close()
    return faults


def text_of(faults: list[str]) -> str:
    more = len(faults) - SHOWN_MAX
    return "\n".join(faults[:SHOWN_MAX] + ([f"and {more} more"] if more > 0 else []))
