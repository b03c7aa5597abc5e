"""The API that the page reads, over a few samples in memory, on a loopback port."""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import uvicorn
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.middleware.base import BaseHTTPMiddleware
from starlette.requests import Request
from starlette.responses import FileResponse, JSONResponse, Response
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles

import maar.api

UI = Path(maar.api.__file__).parent / "ui"
CPU = "process_cpu:cpu:nanoseconds:cpu:nanoseconds"
MEMORY = "memory:inuse_space:bytes:space:bytes"
STATUS: dict[str, Any] = {
    "levels": [
        {"level": 0, "kind": "segment", "blocks": 12, "bytes": 3_400_000, "profiles": 240}
        | {"queued": 12, "oldest_queued_s": 8.0, "held": 0},
        {"level": 1, "kind": "block", "blocks": 3, "bytes": 9_100_000, "profiles": 964}
        | {"queued": 3, "oldest_queued_s": 41.0, "held": 0},
    ],
    "running": 0,
    "completed": 41,
    "profiles_added": 1204,
    "profiles_quarantined": 0,
}


@dataclass(frozen=True)
class Sample:
    service: str
    stack: str  # root first, joined by ';'
    value: int
    type: str = CPU
    labels: tuple[tuple[str, str], ...] = ()

    def all_labels(self) -> list[tuple[str, str]]:
        own = [("__profile_type__", self.type), ("service_name", self.service)]
        return sorted([*own, *self.labels])


@dataclass
class Node:
    total: int = 0
    self_value: int = 0
    children: dict[str, Node] = field(default_factory=dict)


@dataclass
class PageServer:
    """Tenants and their samples; a tenant in `broken` gets its sentence instead of any answer."""

    samples: dict[str, list[Sample]] = field(default_factory=dict)
    broken: dict[str, str] = field(default_factory=dict)
    status: dict[str, Any] = field(default_factory=lambda: dict(STATUS))
    asked: list[tuple[str, dict[str, Any]]] = field(default_factory=list)
    url: str = ""

    def app(self) -> Starlette:
        return Starlette(
            routes=[
                Route("/", self._index),
                Mount("/ui", StaticFiles(directory=UI)),
                Route("/querier.v1.QuerierService/{method}", self._query, methods=["POST"]),
                Route("/api/v1/top", self._top),
                Route("/api/v1/status", self._status),
            ],
            middleware=[Middleware(BaseHTTPMiddleware, dispatch=_strict)],
        )

    async def _index(self, _request: Request) -> Response:
        return FileResponse(UI / "index.html")

    async def _status(self, _request: Request) -> Response:
        return JSONResponse(self.status)

    async def _query(self, request: Request) -> Response:
        method, tenant = request.path_params["method"], request.headers["x-scope-orgid"]
        body = json.loads(await request.body())
        self.asked.append((method, body))
        if tenant in self.broken:
            return _refusal(self.broken[tenant])
        samples = self.samples.get(tenant, [])
        if method == "Series":
            return JSONResponse({"labelsSet": _series(samples, body)})
        chosen = _matching(samples, body["profileTypeID"], body["labelSelector"])
        if method == "SelectSeries":
            return JSONResponse({"series": _points(chosen, body)})
        assert method == "SelectMergeStacktraces"
        return JSONResponse({"flamegraph": _flamegraph(chosen)})

    async def _top(self, request: Request) -> Response:
        tenant, asked = request.headers["x-scope-orgid"], request.query_params
        if tenant in self.broken:
            return _refusal(self.broken[tenant])
        chosen = _matching(
            self.samples.get(tenant, []), asked["profileTypeID"], asked["labelSelector"]
        )
        totals: dict[str, list[int]] = {}
        for sample in chosen:
            frames = sample.stack.split(";")
            for name in set(frames):
                totals.setdefault(name, [0, 0])[1] += sample.value
            totals[frames[-1]][0] += sample.value
        rows = [(name, own, all_told) for name, (own, all_told) in totals.items()]
        rows.sort(key=lambda row: (-row[1], row[0]))
        total = sum(sample.value for sample in chosen)
        return JSONResponse({"total": total, "rows": rows[: int(asked["limit"])]})


def _refusal(sentence: str) -> Response:
    return JSONResponse({"code": "invalid_argument", "message": sentence}, status_code=400)


async def _strict(
    request: Request, call_next: Callable[[Request], Awaitable[Response]]
) -> Response:
    response = await call_next(request)
    response.headers["Content-Security-Policy"] = "default-src 'self'"
    return response


def _series(samples: list[Sample], body: dict[str, Any]) -> list[dict[str, Any]]:
    chosen = [sample for sample in samples if all(_fits(sample, m) for m in body["matchers"])]
    wanted = set(body["labelNames"])
    sets = {
        tuple(pair for pair in sample.all_labels() if not wanted or pair[0] in wanted)
        for sample in chosen
    }
    return [
        {"labels": [{"name": name, "value": value} for name, value in labels]}
        for labels in sorted(sets)
    ]


def _fits(sample: Sample, selector: str) -> bool:
    quoted = re.findall(r'(\w+)=("(?:[^"\\]|\\.)*")', selector)
    return {(name, json.loads(value)) for name, value in quoted} <= set(sample.all_labels())


def _matching(samples: list[Sample], kind: str, selector: str) -> list[Sample]:
    return [sample for sample in samples if sample.type == kind and _fits(sample, selector)]


def _points(samples: list[Sample], body: dict[str, Any]) -> list[dict[str, Any]]:
    """The samples' sum, dealt out over the steps in a gentle wave."""
    total = sum(sample.value for sample in samples)
    if not total:
        return []
    step_ms = int(body["step"] * 1000)
    times = range(body["start"], body["end"] + 1, step_ms)
    weights = [8 + (index * 7) % 11 + (index % 13) for index in range(len(times))]
    return [
        {
            "labels": [],
            "points": [
                {"timestamp": str(time), "value": total * weight / sum(weights)}
                for time, weight in zip(times, weights, strict=True)
            ],
        }
    ]


def _flamegraph(samples: list[Sample]) -> dict[str, Any]:
    root = Node()
    for sample in samples:
        node = root
        node.total += sample.value
        for name in sample.stack.split(";"):
            node = node.children.setdefault(name, Node())
            node.total += sample.value
        node.self_value += sample.value
    names: dict[str, int] = {"total": 0}
    levels: list[dict[str, list[str]]] = []
    row = [("total", 0, root)]
    while row:
        values, end = [], 0
        for name, x, node in row:
            index = names.setdefault(name, len(names))
            values += [x - end, node.total, node.self_value, index]
            end = x + node.total
        levels.append({"values": [str(value) for value in values]})  # int64 in protobuf's JSON
        row = [below for _, x, node in row for below in _children(node, x)]
    return {"names": list(names), "levels": levels, "total": str(root.total), "maxSelf": "0"}


def _children(node: Node, x: int) -> Iterator[tuple[str, int, Node]]:
    start = x + node.self_value
    for name, child in sorted(node.children.items()):
        yield name, start, child
        start += child.total


@contextmanager
def serving(server: PageServer) -> Iterator[PageServer]:
    config = uvicorn.Config(
        server.app(), host="127.0.0.1", port=0, log_config=None, lifespan="off", ws="none"
    )
    runner = uvicorn.Server(config)
    ready = threading.Event()
    config.load()
    thread = threading.Thread(target=_run, args=(runner, ready), daemon=True)
    thread.start()
    assert ready.wait(10), "the page server did not start within 10 s"
    server.url = f"http://127.0.0.1:{runner.servers[0].sockets[0].getsockname()[1]}"
    try:
        yield server
    finally:
        runner.should_exit = True
        thread.join(10)


def _run(runner: uvicorn.Server, ready: threading.Event) -> None:
    startup = runner.startup

    async def start_and_tell(sockets: Any = None) -> None:
        await startup(sockets)
        ready.set()

    runner.startup = start_and_tell  # type: ignore[method-assign]
    runner.run()
