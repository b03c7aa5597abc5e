"""A real S3-protocol server on a loopback port, for tests that speak HTTP to a store."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path

import httpx
import pytest

from maar.ports.stores.object_store import StoreSettings

_APART = """
import sys
from support.stores.s3_server import running
with running() as server:
    print(server.endpoint, flush=True)
    sys.stdin.read()
"""


class S3Server:
    """Gives out settings of fresh, empty buckets."""

    def __init__(self, endpoint: str) -> None:
        self.endpoint = endpoint
        self._names = count(1)

    def bucket(self, *, prefix: str = "lake", name: str = "main") -> StoreSettings:
        bucket = f"bucket-{next(self._names)}"
        httpx.put(
            f"{self.endpoint}/{bucket}", trust_env=False, verify=False, timeout=60
        ).raise_for_status()
        return StoreSettings(
            name=name,
            url=f"s3://{bucket}/{prefix}",
            options=(
                ("endpoint", self.endpoint),
                ("region", "us-east-1"),
                ("access_key_id", "test"),
                ("secret_access_key", "test"),
            ),
        )


@contextmanager
def running() -> Iterator[S3Server]:
    from moto.server import ThreadedMotoServer  # slow to import: only for tests that want it

    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    try:
        host, port = server.get_host_and_port()
        yield S3Server(f"http://{host}:{port}")
    finally:
        server.stop()


@contextmanager
def apart() -> Iterator[S3Server]:
    """The same in a process of its own, for tests that keep theirs busy."""
    server = subprocess.Popen(
        [sys.executable, "-c", _APART],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env=os.environ | {"PYTHONPATH": str(Path(__file__).parents[2])},
        text=True,
    )
    try:
        assert server.stdout is not None
        yield S3Server(server.stdout.readline().strip())
    finally:
        server.communicate(timeout=60)  # the end of its input is its own


@pytest.fixture(scope="session")
def s3_server() -> Iterator[S3Server]:
    """One server for the whole run; take a fresh bucket of it."""
    with running() as server:
        yield server
