"""A leader that is stopped between its confirmation and its deletes, while its log is restored.

It is a process of its own, this file as a script: only a real one can be stopped by a signal.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import msgspec
import pytest
from prometheus_client import CollectorRegistry

sys.path.insert(0, str(Path(__file__).parent.parent))  # when it runs as a script

from maar.adapters.sqlite.log import SqliteLog
from maar.adapters.stores.local import LocalStore
from maar.adapters.system_clock import SystemClock
from maar.metastore.replica.timing import Timing
from maar.metastore.service import MetastoreService
from maar.model import keys
from maar.model.errors import NotFound, Unavailable
from maar.model.ids import Incarnation, WorkerId
from maar.model.plan import Account, PlanResult
from maar.model.time import SECOND_NS
from maar.ports.metastore.log import Candidate
from maar.ports.plans.board import PollRequest, Report
from maar.ports.stores.object_store import StoreSettings
from maar.services.compact.rules import COMPACT
from support.lake.fold_and_store import announce, put
from support.metastore.fold import SMALL, entropy, output, segment

pytestmark = [pytest.mark.component, pytest.mark.timeout(120)]

POLICY = msgspec.structs.replace(SMALL, stall_ns=10**9 * SECOND_NS, retire_delay_ns=0)
W = WorkerId("w")
PATIENCE_S = 60.0
CONFIRMS_S = 0.3  # how long a confirmation takes, so that somebody can stop it on its way
STOPPED_S = 1.5  # longer than a confirmation counts


class Watched(LocalStore):
    """Tells the first time that its log was seen to have no successor, and then takes its time."""

    told = False

    def size(self, key: str) -> int:
        try:
            return super().size(key)
        except NotFound:
            if key.endswith("/successor") and not self.told:
                self.told = True
                (self.root.parent / "asked").touch()
                time.sleep(CONFIRMS_S)
            raise


def store_in(directory: Path) -> Watched:
    root = directory / "store"
    return Watched(root, StoreSettings("main", root.as_uri()))


async def clean(directory: Path) -> None:
    """Replace three segments, have them cleaned, and tell what became of that."""
    store = store_in(directory)

    async def no_snapshot() -> int:
        raise Unavailable("there is nobody who makes one")

    service = MetastoreService(
        SqliteLog.open(directory / "log"),
        store,
        SystemClock(),
        POLICY,
        entropy=entropy(random.Random(7)),
        candidate=Candidate("stopped"),
        take_snapshot=no_snapshot,
        registry=CollectorRegistry(),
        timing=Timing(clean_s=0.02),
    )
    await service.start()
    now = await service.now()
    (directory / "incarnation").write_text(now.incarnation)
    metas = [segment(number, at=now.lease_time) for number in (1, 2, 3)]
    for meta in metas:
        put(store, meta)
    await service.add_blocks(tuple(metas))
    (plan,) = (await service.poll(PollRequest(W, 1, kinds=(COMPACT,)))).granted
    made = output(plan.id, plan.token, plan.inputs, profiles=30)
    announce(store, made, plan.id, plan.token, "a1")
    put(store, made)
    result = PlanResult(COMPACT, (made,), Account(30, 0, 0))
    await service.poll(PollRequest(W, 0, reports=(Report(plan.id, plan.token, result),)))
    while not ((status := await service.status()).blocked or not status.retired):
        await asyncio.sleep(0.01)
    told = {"retired": status.retired, "blocked": status.blocked}
    (directory / "told").write_text(json.dumps(told))
    os._exit(0)  # its log belongs to nobody any more


@pytest.mark.parametrize("restored", [False, True])
def test_a_leader_that_was_stopped_while_its_log_was_restored_deletes_nothing(
    tmp_path: Path, restored: bool
) -> None:
    with subprocess.Popen([sys.executable, __file__, str(tmp_path)]) as process:
        try:
            give_up = time.monotonic() + PATIENCE_S
            while not (tmp_path / "asked").exists():
                assert process.poll() is None
                assert time.monotonic() < give_up, "it never asked whether it may delete"
                time.sleep(0.01)
            process.send_signal(signal.SIGSTOP)
            store = store_in(tmp_path)
            if restored:
                life = Incarnation((tmp_path / "incarnation").read_text())
                store.create(keys.successor(life), b"00000002")
            time.sleep(STOPPED_S)
            process.send_signal(signal.SIGCONT)
            process.wait(timeout=PATIENCE_S)
        finally:
            process.kill()
    told = json.loads((tmp_path / "told").read_text())
    left = len(list(store.list(keys.SEGMENTS)))
    if restored:
        assert (told["retired"], left) == (3, 3)
        assert "restored as another one" in told["blocked"][0]
    else:
        assert (told, left) == ({"retired": 0, "blocked": []}, 0), "it asked again, and may go on"


if __name__ == "__main__":
    asyncio.run(clean(Path(sys.argv[1])))
