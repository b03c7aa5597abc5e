"""Whether a front says that it is ready, also when what it needs says nothing."""

from __future__ import annotations

import asyncio

from maar.app.health.readiness import STORE_ANSWER_S, Readiness
from maar.ports.calls import LocalPort
from support.clock.virtual_time import Gate, LoopClock, run_virtually
from support.stores.memory_store import MemoryStore


class Answers(LocalPort):
    """A role that has nothing to complain about."""

    async def ready(self) -> str:
        return ""

    async def metrics(self) -> str:
        return ""


class HangingStore(MemoryStore):
    def __init__(self) -> None:
        super().__init__()
        self.gate = Gate()
        self.asked = 0

    def create(self, key: str, body: bytes) -> None:
        self.asked += 1
        self.gate.wait()
        super().create(key, body)


def test_a_store_that_hangs_is_said_to_hang_and_asked_once() -> None:
    async def story() -> None:
        store = HangingStore()
        readiness = Readiness(
            {"metastore": Answers()}, store, LoopClock(), pushes=True, asks=False, placed=str
        )
        now = asyncio.get_running_loop().time
        began = now()
        for _ in range(20):  # a health check, each time it was answered
            assert "store: it has not answered a write for" in await readiness()
        assert now() - began == 20 * STORE_ANSWER_S
        assert "for 42 s" in await readiness()
        assert store.asked == 1
        store.gate.set()
        assert await readiness() == ""

    run_virtually(story())
