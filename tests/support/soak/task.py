"""One attempt at one plan, by the real compaction service, in a process that can be killed."""

from __future__ import annotations

import secrets
import time
from pathlib import Path
from random import Random

from maar.adapters.stores.local import LocalStore
from maar.adapters.stores.open import open_store
from maar.model.errors import Retryable, Unavailable
from maar.services.compact.run import run as compact
from support.soak.orders import Answer, Done, Failed, Task

WRITES = 7  # about: five tables, a manifest, an intent


def run(task: Task) -> Answer:
    attempt = f"soak-{secrets.token_hex(6)}"
    store = open_store(task.around.store)
    assert isinstance(store, LocalStore)
    try:
        result = compact(
            task.plan,
            store=_Dawdling(store, task, Random(attempt)),
            attempt=attempt,
            scratch=Path(task.around.scratch),
            wall_ns=time.time_ns(),
        )
    except Exception as error:  # noqa: BLE001  # inputs may be deleted under a task that lost them
        return Failed(f"{type(error).__name__}: {error}", own=not isinstance(error, Retryable))
    return Done(result)


class _Dawdling(LocalStore):
    """Pauses before every write, and writes nothing after the task's time."""

    def __init__(self, store: LocalStore, task: Task, random: Random) -> None:
        super().__init__(store.root, store.settings())
        self._task = task
        self._random = random

    def create(self, key: str, body: bytes) -> None:
        self._dawdle()
        super().create(key, body)

    def create_from_file(self, key: str, path: Path) -> None:
        self._dawdle()
        super().create_from_file(key, path)

    def _dawdle(self) -> None:
        time.sleep(self._random.uniform(0, 2 * self._task.pause_s / WRITES))
        if time.monotonic_ns() > self._task.write_until_ns:
            raise Unavailable("the task's time is over")
