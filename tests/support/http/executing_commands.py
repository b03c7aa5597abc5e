"""Commands that execute plans, answered by a front in this process, in virtual time."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from maar.adapters.http_board import HttpBoard
from maar.adapters.stores.open import open_store
from maar.app.execution import Tell
from maar.cli import executing
from maar.cli.commands import execution
from maar.metastore.leader.stores.claim import mark
from maar.model.ids import Incarnation
from maar.model.plan import LeasedPlan, PlanResult
from maar.ports.stores.object_store import ObjectStore, StoreSettings
from maar.ports.stores.stores import ignore
from support.clock.virtual_time import Gate, VirtualPolicy
from support.http.command_line import Say, speaker
from support.http.front import Front
from support.metastore.board import FoldBoard
from support.metastore.fold import result
from support.worker.stand_ins import ThreadRunner

LIFE = Incarnation("1234abcd")  # of the metastore in memory

Work = Callable[[LeasedPlan, Gate], PlanResult]


def merge(plan: LeasedPlan, _cancelled: Gate) -> PlanResult:
    return result(plan.id, plan.token, plan.inputs)


class Engines:
    """Those that commands have started."""

    def __init__(self) -> None:
        self.work: Work = merge
        self.started: list[ThreadRunner] = []
        self.tell: Tell = ignore  # as the last one was given it

    def start(self, _settings: Any, _stores: Any, slots: int, tell: Tell) -> ThreadRunner:
        assert slots == 1
        self.tell = tell
        self.started.append(ThreadRunner(lambda plan, gate: self.work(plan, gate), slots=1))
        return self.started[-1]


@pytest.fixture
def store(tmp_path: Path) -> ObjectStore:
    store = open_store(StoreSettings("main", (tmp_path / "store").as_uri()))
    mark(store, LIFE)
    return store


@pytest.fixture
def front(store: ObjectStore) -> Front:
    return Front(store=store.settings())


@pytest.fixture
def board(front: Front) -> FoldBoard:
    return front.metastore.board


@pytest.fixture
def engines(monkeypatch: pytest.MonkeyPatch) -> Engines:
    engines = Engines()
    monkeypatch.setattr(execution, "engine", engines.start)
    return engines


@pytest.fixture
def in_virtual_time() -> Iterator[None]:
    """Commands run a loop of their own."""
    asyncio.set_event_loop_policy(VirtualPolicy())
    yield
    asyncio.set_event_loop_policy(None)


@pytest.fixture
def say(
    in_virtual_time: None,
    front: Front,
    engines: Engines,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> Say:
    def here(_server: str) -> HttpBoard:
        return HttpBoard("http://maar", transport=httpx.ASGITransport(front.app))

    monkeypatch.setattr(executing, "open_board", here)
    return speaker(front, monkeypatch, capsys)


def answer_to(say: Say, *arguments: str) -> tuple[int, dict[str, Any]]:
    code, out, _ = say(*arguments, "--json")
    return code, json.loads(out)
