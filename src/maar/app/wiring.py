"""What every role is built from: its store, its registry, its name, and what it tells of itself."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable

from prometheus_client import CollectorRegistry, ProcessCollector, generate_latest

from maar.adapters.object_store import open_store
from maar.app.config import Settings
from maar.ports.object_store import ObjectStore


def new_registry(role: str) -> CollectorRegistry:
    """Metrics of one role; the process's own are named by role, since one page shows them all."""
    registry = CollectorRegistry()
    ProcessCollector(namespace=f"maar_{role}", registry=registry)
    return registry


def node_name() -> str:
    return f"{socket.gethostname()}-{os.getpid()}"


def build_store(settings: Settings) -> ObjectStore:
    return open_store(settings.store_settings())


class Told:
    """What a role tells about itself to whoever asks by RPC."""

    def __init__(self, registry: CollectorRegistry, ready: Callable[[], str]) -> None:
        self._registry = registry
        self._ready = ready

    async def metrics(self) -> str:
        return generate_latest(self._registry).decode()

    async def ready(self) -> str:
        return self._ready()
