"""Two stores of a real server on a real Spark, harmed in every way: repair makes them whole again.

Afterwards every acknowledged profile is read, byte-equal, from each store alone.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from random import Random
from typing import Any

import pytest

from support.processes.serving import Served, run_server, wait_for

pytestmark = [pytest.mark.component, pytest.mark.long(25), pytest.mark.timeout(420)]

PATIENCE_S = 120.0
PROFILES = 8


class World:
    """A server, its two directories, and what was pushed."""

    def __init__(self, server: Served, stores: dict[str, Path]) -> None:
        self.server = server
        self.stores = stores
        self.pushed: dict[str, bytes] = {}  # by profile id, as `maar get` gives it

    def push(self, directory: Path, first: int) -> None:
        for number in range(first, first + PROFILES):
            file = directory / f"{number}.folded"
            stacks = (f"main;f{number};g{each} {each + 1}" for each in range(50 + number))
            file.write_text("\n".join(stacks))
            said = self.server.cli("push", str(file), "--service", f"s{number % 2}")
            assert said.returncode == 0, said
            name = said.stdout.split()[-1]
            self.pushed[name] = b""

    def remember(self) -> None:
        self.pushed = {name: self.get(name) for name in self.pushed}

    def get(self, name: str) -> bytes:
        out = self.server.directory / "got.pb.gz"
        said = self.server.cli("get", name, "-o", str(out))
        assert said.returncode == 0, said
        body = out.read_bytes()
        out.unlink()
        return body

    def told(self, *arguments: str) -> Any:
        said = self.server.cli(*arguments, "--json")
        assert said.returncode in (0, 1), (said, self.server.log()[-4000:])
        return json.loads(said.stdout)

    def blocks(self) -> list[Any]:
        return list(self.told("blocks")["blocks"])

    def settle(self) -> None:
        """Until all is merged that will be, and every store has all blocks."""

        def settled() -> bool:
            levels = self.told("status")["levels"]
            stores = self.told("stores")["stores"]
            whole = all(each["missing"] == 0 and each["blocks"] for each in stores)
            return bool(levels) and all(each["level"] > 1 for each in levels) and whole

        wait_for(settled, PATIENCE_S, self.server.log)

    def repair(self) -> Any:
        return self.told("repair", "run", "--wait")

    def files(self, store: str) -> list[Path]:
        """The listed files of all blocks in one store."""
        return [
            self.stores[store] / at["key"]
            for block in self.blocks()
            for file in block["files"]
            for at in file["locations"]
            if at["store"] == store
        ]

    @contextmanager
    def cut_off(self, store: str) -> Iterator[None]:
        away = self.stores[store].with_suffix(".away")
        self.stores[store].rename(away)
        try:
            yield
        finally:
            away.rename(self.stores[store])


def flip(path: Path) -> None:
    path.chmod(0o644)
    body = bytearray(path.read_bytes())
    body[len(body) // 2] ^= 8
    path.write_bytes(body)


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    stores = {name: tmp_path / "stores" / name for name in "ab"}
    for path in stores.values():
        path.mkdir(parents=True)
    with run_server(
        tmp_path,
        *(f"stores.{name}.url={path.as_uri()}" for name, path in stores.items()),
        'tenant_defaults.stores=["a", "b"]',
        "compaction.level_counts=[2,2,100]",
        "compaction.level_ages_s=[1,2,100000]",
        "services.repair.lease_s=15",  # a worker is killed: what it had goes on when that is over
        "spark.master=local[1]",
    ) as server:
        yield World(server, stores)


def test_harmed_stores_are_made_whole_again(world: World, tmp_path: Path) -> None:
    random = Random(7)
    world.push(tmp_path, 0)
    world.told("schedule", "set", "--kind", "repair", "--type", "incremental", "--interval", "1s")
    world.settle()
    world.remember()
    total = len(world.blocks())

    # Bits flip in one store and files vanish from the other, of the same blocks too.
    for path in random.sample(world.files("b"), 3):
        flip(path)
    for path in random.sample(world.files("a"), 2):
        path.unlink()
    found = world.repair()
    assert found["outcome"] == "completed"
    assert found["damaged"] >= 2
    assert found["copied"] == found["damaged"]
    assert found["lost"] == 0, "every file was whole somewhere"
    assert world.repair()["damaged"] == 0

    # The worker is killed in the middle of a repair; what it asked for goes on.
    world.told("repair", "run")
    os.kill(world.server.children()["worker"], signal.SIGKILL)
    found = world.repair()
    assert (found["outcome"], found["ranges"] >= 256) == ("completed", True)

    # A store is cut off for a while: nothing is lost, and it goes on when the store is back.
    with world.cut_off("b"):
        world.told("repair", "run")
        for name, body in list(world.pushed.items())[:2]:
            assert world.get(name) == body
    found = world.repair()
    assert (found["outcome"], found["lost"], found["damaged"]) == ("completed", 0, 0)

    # A store that is not home is wiped, its marker too: it is filled again.
    for each in world.stores["b"].iterdir():
        shutil.rmtree(each) if each.is_dir() else each.unlink()

    def is_filled() -> bool:
        world.repair()
        return all(path.exists() for path in world.files("b"))

    wait_for(is_filled, PATIENCE_S, world.server.log)
    world.settle()
    assert len(world.files("b")) == len(world.files("a"))

    # Every profile is there in each store alone.
    assert len(world.blocks()) <= total + 1
    for store in "ba":
        with world.cut_off(store):
            for name, body in world.pushed.items():
                assert world.get(name) == body
