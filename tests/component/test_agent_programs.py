"""A real program under the real agent shows up with its cpu and memory profiles and its tags."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import httpx
import pytest

from maar.app.processes.run_with_parent import command_under
from support.processes.serving import Served, run_server, wait_for

pytestmark = [pytest.mark.component, pytest.mark.timeout(120)]

EXAMPLES = Path(__file__).parents[2] / "examples"
MEMORY = "memory:alloc_space:bytes:space:bytes"
CPU = "process_cpu:cpu:nanoseconds:cpu:nanoseconds"


def querier(server: Served, method: str, **request: Any) -> Any:
    now_ms = time.time_ns() // 1_000_000
    asked = {"start": now_ms - 600_000, "end": now_ms + 60_000, **request}
    url = f"{server.url}/querier.v1.QuerierService/{method}"
    return httpx.post(url, json=asked, trust_env=False, verify=False, timeout=30).json()


def values(server: Served, name: str) -> set[str]:
    matchers = ['{service_name="search"}']
    return set(querier(server, "LabelValues", name=name, matchers=matchers).get("names", ()))


def flamegraph_names(server: Served, profile_type: str) -> set[str]:
    selector = '{service_name="search",region="us"}'
    reply = querier(
        server, "SelectMergeStacktraces", profileTypeID=profile_type, labelSelector=selector
    )
    return set(reply.get("flamegraph", {}).get("names", ()))


def test_a_program_under_the_agent_shows_up_with_its_profiles_and_tags(tmp_path: Path) -> None:
    with run_server(tmp_path, roles="metastore,query,front") as server:
        program = subprocess.Popen(
            command_under(os.getpid(), sys.executable, str(EXAMPLES / "search.py"), server.url, "2")
        )
        try:
            wait_for(lambda: {CPU, MEMORY} <= values(server, "__profile_type__"), 40, server.log)
            wait_for(lambda: "/search" in values(server, "endpoint"), 20, server.log)
            wait_for(lambda: "rank_results" in str(flamegraph_names(server, CPU)), 20, server.log)
            assert values(server, "region") == {"us"}
            assert values(server, "version") == {"2.0.1"}
            assert values(server, "otel_scope_name") == {"com.grafana.pyroscope/python"}
            assert len(flamegraph_names(server, MEMORY)) > 1
        finally:
            program.kill()
            program.wait()
        assert server.stop(signal.SIGTERM) == 0
        assert "Traceback" not in server.log()
