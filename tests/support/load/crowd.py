"""Small known profiles, a crowd that pushes them, and the check that each shows exactly once."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence

from maar.cli.client import Server
from maar.cli.output.failure import CommandFailed
from maar.pprof.encode import encode
from maar.pprof.plain import (
    PlainFunction,
    PlainLine,
    PlainLocation,
    PlainMapping,
    PlainProfile,
    PlainSample,
)
from support.processes.serving import Served

CPU = "process_cpu:cpu:nanoseconds:cpu:nanoseconds"
FAST = (
    "compaction.level_ages_s=2,4,600",
    "services.compact.lease_s=5",
    "compaction.snapshot_entries=20",
    "segment.flush_interval_ms=100",
    "spark.slots=1",  # side by side they run in test_spark_runner.py
)


def profile(
    *,
    function: str = "work",
    value: int = 7,
    time_ns: int = 0,
    more_samples: Sequence[PlainSample] = (),
) -> bytes:
    """A pprof with what `get` must bring back: inlined lines, a mapping, labels, a comment."""
    return encode(
        PlainProfile(
            sample_types=[("cpu", "nanoseconds")],
            samples=[
                PlainSample([0, 1], (value,), labels=()),
                PlainSample([1], (0,), labels=()),
                *more_samples,
            ],
            mappings=[PlainMapping(start=0x1000, limit=0x9000, file="/bin/app", build_id="abc")],
            locations=[
                PlainLocation(mapping=0, address=0x1234, lines=(PlainLine(0, 3), PlainLine(1, 9))),
                PlainLocation(mapping=0, address=0x2000, lines=(PlainLine(1, 12),)),
            ],
            functions=[
                PlainFunction(function, f"sys_{function}", "app.c", 1),
                PlainFunction("main", "main", "app.c", 7),
            ],
            period_type=("cpu", "nanoseconds"),
            period=10_000_000,
            comments=["made by hand"],
            time_ns=time_ns or time.time_ns(),
            duration_ns=1_000_000_000,
        )
    )


class Pushers:
    """Pushes small profiles without end; remembers which were acknowledged."""

    def __init__(self, url: str) -> None:
        self.acknowledged: set[str] = set()
        self._url = url
        self._stop = threading.Event()
        self._threads = [threading.Thread(target=self._run, args=(n,)) for n in range(3)]

    def __enter__(self) -> Pushers:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join(60)

    def has_grown(self, count: int) -> bool:
        return len(self.acknowledged) >= count

    def _run(self, lane: int) -> None:
        number = 0
        while not self._stop.is_set():
            number += 1
            name = f"lane{lane}_{number}"
            self._push(name, profile(function=name, value=1))

    def _push(self, name: str, body: bytes) -> None:
        """Until it is acknowledged, as an agent would; the same bytes are the same profile."""
        while not self._stop.is_set():
            api = Server(self._url)
            try:
                api.push([("service_name", "hardy")], body)
                self.acknowledged.add(name)
                return
            except CommandFailed:
                time.sleep(0.1)
            finally:
                api.close()


def level0(server: Served) -> int:
    return len(server.get("/api/v1/blocks", level=0)["blocks"])


def check_exactly_once(server: Served, acknowledged: set[str], *, service: str = "hardy") -> None:
    now_ms = time.time_ns() // 1_000_000
    top = server.get(
        "/api/v1/top",
        profileTypeID=CPU,
        labelSelector=f'{{service_name="{service}"}}',
        start=now_ms - 3_600_000,
        end=now_ms + 60_000,
        limit=100_000,
    )
    found = {name: own for name, own, _ in top["rows"] if name.startswith("lane")}
    assert not acknowledged - set(found), "acknowledged, but gone"
    assert set(found.values()) <= {1}, "a profile counts once"
