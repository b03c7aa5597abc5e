"""Push path, HTTP to durable segment: MB/s of gzip bytes per core of server CPU.

    python bench/push.py [--seconds 4] [--rounds 5] [--connections 400] [--files P...] [--json]

The server is two real processes, the front (uvicorn, API, distributor, segment writer, a local
directory as the store, fsync on) and the metastore (SQLite log); a third process sends. Counted is
the CPU of both servers, from /proc, while the sender is at work. Four doors are taken in turn:

    push     Connect Push, the profile gzip
    agent    Connect Push as pyroscope-io 1.4 sends it: the profile raw, the request gzip
    ingest   POST /ingest?format=pprof, the profile gzip
    grpc     gRPC Push, the profile gzip; as many calls at once, over a few connections

The baseline, measured in the same run on the same bytes, is the least that any server must do to
know that it holds a profile: zlib and a protobuf parse, no HTTP, nothing stored. Where the CPU of
door `push` goes is said in shares of it. Each line: name value unit ratio baseline.
"""

from __future__ import annotations

import argparse
import asyncio
import gzip
import itertools
import json
import os
import random
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
import uuid
import zlib
from collections.abc import Callable, Coroutine
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

from prometheus_client import CollectorRegistry

from maar.adapters.rpc import MetastoreClient, serve_metastore
from maar.adapters.stores.open import open_store
from maar.adapters.system_clock import SystemClock
from maar.api.app import build_app
from maar.api.protocol.wire import PushRequest
from maar.api.settings import ApiSettings
from maar.app.http.gate import Gate
from maar.app.http.server import HttpServer
from maar.block.format.segment import write_segment
from maar.distributor.admit import PushedProfile, admit
from maar.distributor.rings import FollowedRings
from maar.distributor.service import Distributor, Router
from maar.distributor.settings import Limits, RouterSettings
from maar.model.errors import Unavailable
from maar.model.ids import ANONYMOUS, HOME, NodeId
from maar.model.labels import labels_of
from maar.model.profile import RawProfile, profile_id
from maar.model.ring import Ring, Writer, WriterState
from maar.placement.rules import Rules, TenantLimits
from maar.ports.metastore.log import Candidate
from maar.ports.stores.object_store import StoreSettings
from maar.ports.writer.membership import RingView
from maar.pprof.encode import encode
from maar.pprof.gzip import gunzip
from maar.pprof.plain import PlainFunction, PlainLine, PlainLocation, PlainProfile, PlainSample
from maar.pprof.schema import Profile
from maar.pprof.validate import validate
from maar.segment.service import SegmentService
from maar.segment.settings import SegmentSettings

TARGET = 24.0  # MB/s per core
TICKS = os.sysconf("SC_CLK_TCK")
DOORS = ("push", "agent", "ingest", "grpc")
CALLS_PER_CHANNEL = 25
SERVICES = 8
LABELS = {
    "__name__": "process_cpu",
    "region": "eu-1",
    "otel.scope.name": "com.grafana.pyroscope/python",
    "otel.scope.version": "1.4.0",
    "process.runtime.name": "cpython",
    "process.runtime.version": "3.11.9",
}
WORDS = [
    "handle",
    "request",
    "parse",
    "build",
    "index",
    "render",
    "query",
    "cache",
    "store",
    "flush",
    "merge",
    "decode",
    "encode",
    "lock",
    "queue",
    "worker",
    "session",
    "template",
    "cursor",
    "batch",
    "stream",
    "socket",
    "buffer",
    "token",
    "schema",
    "plan",
    "lease",
]


# ------------------------------------------------------------------ profiles


def synthetic(seed: int, *, samples: int, locations: int, depth: int, noise: int) -> bytes:
    """A pprof with the proportions of a real one; `noise` sets how well names compress."""
    chance = random.Random(seed)
    functions = []
    for number in range(locations):
        words = "_".join(chance.choices(WORDS, k=3))
        functions.append(
            PlainFunction(
                f"{words}_{chance.getrandbits(4 * noise):0{noise}x}",
                file=f"/srv/app/{chance.choice(WORDS)}/{chance.choice(WORDS)}_{number % 97}.py",
                start_line=chance.randrange(2000),
            )
        )
    rows = range(locations)
    spine = chance.sample(rows, depth)
    return encode(
        PlainProfile(
            sample_types=[("cpu", "nanoseconds")],
            samples=[
                PlainSample(
                    chance.choices(rows, k=depth // 3) + spine[: depth - depth // 3],
                    (10_000_000 * chance.randrange(1, 60),),
                )
                for _ in range(samples)
            ],
            locations=[
                PlainLocation(lines=(PlainLine(row, chance.randrange(1, 3000)),)) for row in rows
            ],
            functions=functions,
            period_type=("cpu", "nanoseconds"),
            period=10_000_000,
            time_ns=time.time_ns(),
            duration_ns=10_000_000_000,
        )
    )


def sample_profiles() -> list[bytes]:
    """Half like a 47 KiB profile of 162 samples, half like a 31 KiB one of 1,357."""
    wide = [synthetic(n, samples=162, locations=1402, depth=40, noise=5) for n in range(8)]
    long = [synthetic(n, samples=1357, locations=789, depth=9, noise=4) for n in range(8)]
    return wide + long


def from_files(paths: list[Path]) -> list[bytes]:
    """Real profiles, dated now, since old ones would be refused."""
    loaded = []
    for path in paths:
        message = Profile.FromString(gunzip(path.read_bytes(), limit=64 << 20))
        message.time_nanos = time.time_ns()
        loaded.append(message.SerializeToString())
    return loaded


# ------------------------------------------------------------------ servers


async def serve_meta(address: str, directory: Path) -> None:
    from maar.adapters.sqlite.log import SqliteLog
    from maar.app.processes.long_lived import long_lived
    from maar.metastore.service import MetastoreService
    from maar.model.policy import Policy

    store = open_store(StoreSettings("main", (directory / "store").as_uri()))
    log = SqliteLog.open(directory / "log")

    async def no_snapshot() -> int:
        raise Unavailable("there is nobody who makes one")

    service = MetastoreService(
        log,
        store,
        SystemClock(),
        Policy(),
        entropy=os.urandom,
        candidate=Candidate("bench"),
        take_snapshot=no_snapshot,
        registry=CollectorRegistry(),
        loading=long_lived,
    )
    await service.start()
    server = await serve_metastore(address, service, _Role())
    print("ready", flush=True)
    await _wait_signal()
    await server.stop()
    await service.stop()


class _Role:
    async def metrics(self) -> str:
        return ""

    async def ready(self) -> str:
        return ""


async def serve_front(address: str, directory: Path) -> None:
    registry = CollectorRegistry()
    metastore = MetastoreClient(address)
    store = open_store(StoreSettings("main", (directory / "store").as_uri()))
    segments = SegmentService(
        SegmentSettings(), store, metastore, SystemClock(), random.Random(), registry, "bench"
    )
    await segments.start()
    router = router_to(segments, registry)
    distributor = Distributor(Limits(), router, SystemClock(), registry)
    await distributor.start()

    async def nothing(*_: str) -> Any:
        return ""

    settings = ApiSettings()
    app = build_app(settings, [registry], nothing, nothing, distributor=distributor, asked=None)
    server = HttpServer(app, drain_s=1, gate=Gate(settings, registry))
    listener = socket.create_server(("127.0.0.1", 0), backlog=2048)
    life = asyncio.create_task(server.serve(sockets=[listener]))
    print(listener.getsockname()[1], flush=True)
    await _wait_signal()
    server.should_exit = True
    await life
    await router.close()
    await segments.stop()
    await metastore.close()


def router_to(segments: SegmentService, registry: CollectorRegistry) -> Router:
    """As in `maar serve`: a ring of one writer, in this process."""
    node, shards = NodeId("bench"), 4
    writer = Writer(node, "", "one", shards, WriterState.ACTIVE)
    rings = FollowedRings(HOME)
    rings.learn((RingView(Ring(HOME, 1, (writer,), (0,) * shards), (), True),))
    rules, limits = Rules(), TenantLimits()

    def no_network(address: str) -> Any:
        raise AssertionError(f"{address} is in this process")

    return Router(
        RouterSettings(),
        rings,
        lambda: rules,
        lambda _: limits,
        no_network,
        SystemClock(),
        random.Random(),
        registry,
        local=(node, segments),
    )


async def _wait_signal() -> None:
    """Wait for SIGTERM; uvicorn takes signals too, so look rather than listen."""
    stopped = asyncio.Event()
    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGTERM, stopped.set)
    await stopped.wait()


# ------------------------------------------------------------------ sender


def requests_for(door: str, profiles: list[bytes]) -> list[tuple[bytearray, int, int]]:
    """Whole HTTP requests, where in them the client's id is (or -1), and their gzip bytes."""
    made = []
    for number, raw in enumerate(profiles):
        packed = gzip.compress(raw, 6)
        service = f"bench-{number % SERVICES}"
        at = -1
        if door == "ingest":
            body = packed
            path = f"/ingest?name={service}%7Bregion%3Deu-1%7D&format=pprof&spyName=pyspy"
            extra = "content-type: binary/octet-stream\r\ncontent-encoding: gzip\r\n"
        else:
            mark = str(uuid.UUID(int=number))
            request = PushRequest()
            series = request.series.add()
            for name, value in {"service_name": service, **LABELS}.items():
                series.labels.add(name=name, value=value)
            series.samples.add(raw_profile=raw if door == "agent" else packed, ID=mark)
            body = request.SerializeToString()
            path = "/push.v1.PusherService/Push"
            extra = "content-type: application/proto\r\n"
            if door == "agent":
                body = gzip.compress(body, 6)
                extra += "content-encoding: gzip\r\n"
            else:
                at = body.find(mark.encode())
        if door == "grpc":
            made.append((bytearray(body), at, len(packed)))
            continue
        head = (
            f"POST {path} HTTP/1.1\r\nhost: localhost\r\n{extra}"
            f"user-agent: pyroscope-rs/pyspy/1.4.0 reqwest\r\naccept: */*\r\n"
            f"content-length: {len(body)}\r\n\r\n"
        ).encode()
        size = len(body) if door == "agent" else len(packed)
        made.append((bytearray(head + body), at + len(head) if at >= 0 else -1, size))
    return made


class Sender(asyncio.Protocol):
    """One connection in a closed loop: send, wait for the answer, send the next."""

    def __init__(self, requests: list[tuple[bytearray, int, int]], first: int) -> None:
        self._requests = requests
        self._next = first
        self._sent = 0
        self.bytes = self.answers = self.failures = 0
        self.stopping = False
        self.done = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: Any) -> None:
        self._transport = transport
        self._send()

    def _send(self) -> None:
        request, at, self._sent = self._requests[self._next % len(self._requests)]
        self._next += 1
        if at >= 0:
            request[at : at + 36] = str(uuid.uuid4()).encode()
        self._transport.write(bytes(request))

    def data_received(self, data: bytes) -> None:
        self.answers += 1
        if data.startswith(b"HTTP/1.1 200"):
            self.bytes += self._sent
        else:
            self.failures += 1
        if self.stopping:
            self._transport.close()
        else:
            self._send()

    def connection_lost(self, _error: Exception | None) -> None:
        if not self.done.done():
            self.done.set_result(None)


async def send(door: str, port: int, seconds: float, connections: int, files: list[Path]) -> None:
    """Push for a while and print what was acknowledged."""
    profiles = from_files(files) if files else sample_profiles()
    requests = requests_for(door, profiles)
    if door == "grpc":
        await send_by_grpc(requests, port, seconds, connections)
        return
    loop = asyncio.get_running_loop()
    senders = []
    for number in range(connections):
        _, sender = await loop.create_connection(
            lambda first=number: Sender(requests, first),  # type: ignore[misc]
            "127.0.0.1",
            port,
        )
        senders.append(sender)
    await asyncio.sleep(seconds)
    for sender in senders:
        sender.stopping = True
    await asyncio.gather(*(sender.done for sender in senders))
    totals = {
        name: sum(getattr(sender, name) for sender in senders)
        for name in ("bytes", "answers", "failures")
    }
    print(json.dumps(totals), flush=True)


async def send_by_grpc(
    requests: list[tuple[bytearray, int, int]], port: int, seconds: float, calls: int
) -> None:
    import grpc.aio

    ends = time.monotonic() + seconds
    totals = {"bytes": 0, "answers": 0, "failures": 0}

    async def one_after_another(call: Any, first: int) -> None:
        for number in itertools.count(first):
            if time.monotonic() > ends:
                return
            request, at, size = requests[number % len(requests)]
            request[at : at + 36] = str(uuid.uuid4()).encode()
            totals["answers"] += 1
            try:
                await call(bytes(request), timeout=30)
                totals["bytes"] += size
            except grpc.aio.AioRpcError:
                totals["failures"] += 1

    options = (("grpc.use_local_subchannel_pool", 1), ("grpc.enable_http_proxy", 0))
    async with AsyncExitStack() as stack:
        loops: list[Coroutine[Any, Any, None]] = []
        for _ in range(max(1, calls // CALLS_PER_CHANNEL)):
            channel = await stack.enter_async_context(
                grpc.aio.insecure_channel(f"127.0.0.1:{port}", options=options)
            )
            call = channel.unary_unary("/push.v1.PusherService/Push")
            several = min(calls, CALLS_PER_CHANNEL)
            loops += [one_after_another(call, len(loops) + n) for n in range(several)]
        await asyncio.gather(*loops)
    print(json.dumps(totals), flush=True)


# ------------------------------------------------------------------ measurement


def cpu_seconds(pid: int) -> float:
    """User and system time of all threads of a process."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICKS


def per_profile(call: Callable[[], object], *, seconds: float = 0.3) -> float:
    """CPU seconds of one call, warm."""
    call()
    began, calls = time.process_time(), 0
    while time.process_time() - began < seconds:
        call()
        calls += 1
    return (time.process_time() - began) / calls


def steps(profiles: list[bytes]) -> dict[str, float]:
    """CPU seconds per profile of each step, measured alone on the same bytes."""
    count = len(profiles)
    packed = [gzip.compress(raw, 6) for raw in profiles]
    pairs = tuple({"service_name": "bench", **LABELS}.items())
    labels = labels_of(pairs)
    admitted: list[RawProfile] = [
        admit(
            PushedProfile(pairs, body, ""),
            tenant=ANONYMOUS,
            now_ns=time.time_ns(),
            limits=Limits(),
        )
        for body in packed
    ]
    batch = admitted * 8
    with tempfile.TemporaryDirectory() as directory:
        store = open_store(StoreSettings("main", Path(directory).as_uri()))
        body = write_segment(batch).body
        return {
            "gunzip": per_profile(lambda: [gunzip(one, limit=1 << 26) for one in packed]) / count,
            "validate": per_profile(lambda: [validate(raw) for raw in profiles]) / count,
            "hash": per_profile(
                lambda: [
                    profile_id(tenant=ANONYMOUS, labels=labels, time_ns=1, client_id="", body=raw)
                    for raw in profiles
                ]
            )
            / count,
            "labels": per_profile(lambda: labels_of(pairs)),
            "parquet": per_profile(lambda: write_segment(batch)) / len(batch),
            "store": per_profile(lambda: store.create(uuid.uuid4().hex, body)) / len(batch),
        }


def baseline(profiles: list[bytes]) -> float:
    """MB/s of gzip per core of zlib and a protobuf parse."""
    packed = [gzip.compress(raw, 6) for raw in profiles]
    seconds = per_profile(
        lambda: [Profile.FromString(zlib.decompress(one, 31)) for one in packed], seconds=0.5
    )
    return sum(map(len, packed)) / 1e6 / seconds


class Servers:
    def __init__(self, directory: Path) -> None:
        address = f"unix:{directory}/m.sock"
        self.meta = self._start("serve-meta", address, directory)
        self._line(self.meta)
        self.front = self._start("serve-front", address, directory)
        self.port = int(self._line(self.front))

    def _start(self, what: str, address: str, directory: Path) -> subprocess.Popen[str]:
        command = [sys.executable, __file__, f"--{what}", address, str(directory)]
        return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)

    def _line(self, process: subprocess.Popen[str]) -> str:
        assert process.stdout is not None
        line = process.stdout.readline()
        if not line:
            raise SystemExit("a server ended before it was ready")
        return line

    def cpu(self) -> tuple[float, float]:
        return cpu_seconds(self.front.pid), cpu_seconds(self.meta.pid)

    def stop(self) -> None:
        for process in (self.front, self.meta):
            process.terminate()
            process.wait(30)


def round_of(servers: Servers, door: str, options: argparse.Namespace) -> dict[str, float]:
    command = [sys.executable, __file__, "--send", door, str(servers.port)]
    command += ["--seconds", str(options.seconds), "--connections", str(options.connections)]
    if options.files:
        command += ["--files", *map(str, options.files)]
    before = servers.cpu()
    shown = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout
    after = servers.cpu()
    said = json.loads(shown)
    front, meta = after[0] - before[0], after[1] - before[1]
    return {
        "mb": said["bytes"] / 1e6,
        "profiles": said["answers"] - said["failures"],
        "failures": said["failures"],
        "front_cpu_s": front,
        "metastore_cpu_s": meta,
        "mb_per_core_s": said["bytes"] / 1e6 / (front + meta),
    }


def measure(options: argparse.Namespace) -> dict[str, Any]:
    profiles = from_files(options.files) if options.files else sample_profiles()
    with tempfile.TemporaryDirectory(prefix="maar-bench-") as text:
        servers = Servers(Path(text))
        try:
            for door in DOORS:  # warm, not counted
                round_of(servers, door, argparse.Namespace(**{**vars(options), "seconds": 1.0}))
            rounds: dict[str, list[dict[str, float]]] = {door: [] for door in DOORS}
            bare = []
            for _ in range(options.rounds):
                for door in DOORS:
                    rounds[door].append(round_of(servers, door, options))
                bare.append(baseline(profiles))
        finally:
            servers.stop()
    medians = {
        door: statistics.median(one["mb_per_core_s"] for one in rounds[door]) for door in DOORS
    }
    return {
        "mb_per_core_s": medians,
        "baseline_mb_per_core_s": statistics.median(bare),
        "target_mb_per_core_s": TARGET,
        "rounds": rounds,
        "where": where(rounds["push"], steps(profiles)),
    }


def where(rounds: list[dict[str, float]], alone: dict[str, float]) -> dict[str, float]:
    """Shares of the server's CPU per profile of door `push`; the rest is HTTP, asyncio, metrics."""
    per = statistics.median(
        (one["front_cpu_s"] + one["metastore_cpu_s"]) / one["profiles"] for one in rounds
    )
    meta = statistics.median(one["metastore_cpu_s"] / one["profiles"] for one in rounds)
    shares = {name: seconds / per for name, seconds in alone.items()}
    shares["metastore"] = meta / per
    shares["http and the rest"] = 1 - sum(shares.values())
    return {"ms per profile": per * 1e3, **shares}


def report(result: dict[str, Any]) -> None:
    bare = result["baseline_mb_per_core_s"]
    print(f"baseline {bare:.1f} MB/s/core 1.00 zlib+protobuf-parse-alone")
    for door, value in result["mb_per_core_s"].items():
        print(f"{door} {value:.1f} MB/s/core {value / bare:.2f} zlib+protobuf-parse-alone")
        verdict = "meets" if value >= TARGET else "MISSES"
        print(f"# door {door} {verdict} {TARGET:.0f} MB/s per core of server CPU")
    shares = dict(result["where"])
    whole = shares.pop("ms per profile")
    print(f"push_cpu {whole:.3f} ms/profile 1.00 itself")
    for name, share in sorted(shares.items(), key=lambda item: -item[1]):
        told = name.replace(" ", "_")
        print(f"push_cpu_{told} {whole * share:.3f} ms/profile {share:.2f} push_cpu")
    failures = sum(one["failures"] for rounds in result["rounds"].values() for one in rounds)
    if failures:
        print(f"# {failures:.0f} pushes were not acknowledged")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--seconds", type=float, default=4.0)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--connections", type=int, default=400)
    parser.add_argument("--files", type=Path, nargs="*", default=[])
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--serve-meta", nargs=2, help=argparse.SUPPRESS)
    parser.add_argument("--serve-front", nargs=2, help=argparse.SUPPRESS)
    parser.add_argument("--send", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve_meta:
        asyncio.run(serve_meta(options.serve_meta[0], Path(options.serve_meta[1])))
    elif options.serve_front:
        import uvloop

        uvloop.run(serve_front(options.serve_front[0], Path(options.serve_front[1])))
    elif options.send:
        door, port = options.send
        asyncio.run(send(door, int(port), options.seconds, options.connections, options.files))
    else:
        result = measure(options)
        print(json.dumps(result, indent=1)) if options.json else report(result)


if __name__ == "__main__":
    main()
