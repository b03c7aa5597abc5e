"""Plans executed by processes that know nothing of each other, against a real server."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

import maar.spark
from maar.cli.client import Server
from maar.cli.output.failure import EXIT_INTERRUPTED
from maar.model.time import DAY_NS
from support.load.crowd import check_exactly_once, level0, profile
from support.processes import dying_executor
from support.processes.serving import Served, run_server, wait_for
from support.soak.checks import COUNTING, crashes
from support.spark.owned import owned_session
from support.stores.s3_server import S3Server

pytestmark = [pytest.mark.component, pytest.mark.long(120), pytest.mark.timeout(600)]

ROOT = Path(__file__).parents[2]
PATIENCE_S = 120.0
LEASE_S = 15  # whoever is killed still holds it when a busy machine has come to the next command
SETTINGS = (
    "compaction.level_ages_s=36000,36000,36000",  # nothing is due by itself
    f"services.compact.lease_s={LEASE_S}",
    f"services.logcompact.lease_s={LEASE_S}",
    "services.clean.interval_s=0",
    "segment.flush_interval_ms=50",
)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """All but a worker: whoever wants a plan executed has to do it himself."""
    directory = tmp_path_factory.mktemp("execution")
    with run_server(directory, *SETTINGS, roles="metastore,query,front") as running:
        yield running


@pytest.fixture(scope="module")
def spark() -> Iterator[SparkSession]:
    with owned_session(slots=1) as session:
        yield session


class Command:
    """A command in a process of its own, and what it says."""

    def __init__(self, server: Served, *arguments: str, program: str = "maar.cli.main") -> None:
        script = [program] if program.endswith(".py") else ["-m", program]
        self.process = subprocess.Popen(
            [sys.executable, *script, *arguments],
            env={
                **os.environ,
                "MAAR_SERVER": server.url,
                "MAAR_SERVER__DATA_DIR": str(server.directory / "executor"),
                "PYTHONPATH": str(ROOT / "tests"),
            },
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )

    def ended(self) -> tuple[int, str]:
        out, err = self.process.communicate(timeout=PATIENCE_S)
        assert not crashes(err, spared=COUNTING), err
        return self.process.returncode, out

    def told(self) -> tuple[int, dict[str, Any]]:
        code, out = self.ended()
        return code, json.loads(out)


def executing(server: Served, plan: str, master: str = "local[1]") -> Command:
    return Command(server, "plans", "execute", plan, "--spark-master", master, "--json")


def told(server: Served, *arguments: str) -> tuple[int, dict[str, Any]]:
    """A command that needs no Spark, in this process."""
    said = server.cli(*arguments, "--json")
    assert "Traceback" not in said.stderr, said.stderr
    return said.returncode, json.loads(said.stdout)


def lease_is_over(server: Served, plan: str) -> None:
    def expired() -> bool:
        would = server.get(f"/api/v1/plans/{plan}")["execution"]
        return bool(would["answer"] != "lease_live")

    wait_for(expired, PATIENCE_S, server.log)


def pushed(server: Served, *names: str) -> set[str]:
    """One segment each."""
    api = Server(server.url)
    try:
        for name in names:
            api.push([("service_name", "hardy")], profile(function=f"lane_{name}", value=1))
    finally:
        api.close()
    return {f"lane_{name}" for name in names}


def shard_of(server: Served) -> int:
    (shard,) = {block["shard"] for block in server.get("/api/v1/blocks", level=0)["blocks"]}
    return int(shard)


def scheduled(server: Served, kind: str = "compact") -> str:
    code, found = told(server, "plans", "schedule", kind, "--shard", str(shard_of(server)))
    assert (code, found["created"]) == (0, True), found
    return str(found["plan"])


def hanging_executor(server: Served, plan: str) -> tuple[Command, Path]:
    """An executor that wrote something and goes on for ever; and where that is."""
    program = str(dying_executor.__file__)
    soon = ("--set", "worker.drain_ms=1")
    hanging = Command(server, "plans", "execute", plan, *soon, program=program)
    assert hanging.process.stdout is not None
    word, _, key = hanging.process.stdout.readline().strip().partition(" ")
    assert word == dying_executor.WROTE, hanging.process.communicate(timeout=PATIENCE_S)
    return hanging, server.directory / "data" / "store" / key


def killed_executor(server: Served, plan: str) -> Path:
    """It dies by kill -9; what it left."""
    dying, left = hanging_executor(server, plan)
    dying.process.kill()
    dying.process.communicate(timeout=PATIENCE_S)
    return left


def test_of_two_executors_one_has_the_plan_and_the_other_is_told(server: Served) -> None:
    names = pushed(server, "a", "b", "c")
    plan = scheduled(server)
    both = [executing(server, plan) for _ in range(2)]
    ends = sorted((each.told() for each in both), key=lambda end: end[1]["outcome"] != "completed")
    assert (ends[0][0], ends[0][1]["outcome"]) == (0, "completed")
    assert ends[1][1]["outcome"] in ("lease_live", "already_completed")
    assert ends[1][0] == (0 if ends[1][1]["outcome"] == "already_completed" else 3)
    assert level0(server) == 0
    check_exactly_once(server, names)
    shown = told(server, "plans", "show", plan)[1]
    assert (shown["state"], len(shown["attempts"])) == ("completed", 1)


def test_a_killed_executor_keeps_its_lease_until_it_expires_and_is_rolled_back_by_the_next(
    server: Served, spark: SparkSession
) -> None:
    names = pushed(server, "d", "e")
    plan = scheduled(server)
    left = killed_executor(server, plan)
    assert left.exists()
    code, found = told(server, "plans", "execute", plan)  # it need not come to Spark
    assert (code, found["outcome"]) == (3, "lease_live")
    assert 0 < found["seconds_left"] <= LEASE_S
    code, dry = told(server, "clean", "--dry-run")
    assert (code, dry["executed"]) == (0, [])
    assert {"plan": plan, "why": "live_lease"} in dry["skipped"]
    lease_is_over(server, plan)
    assert maar.spark.execute(spark, plan, url=server.url)["outcome"] == "completed"
    assert not left.exists()
    shown = told(server, "plans", "show", plan)[1]
    assert [each["end"] for each in shown["attempts"]] == ["expired", "completed"]
    assert [(each["token"], each["state"]) for each in shown["rollbacks"]] == [
        (shown["attempts"][0]["token"], "completed")
    ]
    check_exactly_once(server, names)


def test_a_person_rolls_back_what_a_killed_executor_left_and_the_plan_can_be_executed(
    server: Served,
) -> None:
    pushed(server, "f", "g")
    plan = scheduled(server)
    left = killed_executor(server, plan)
    code, found = told(server, "plans", "rollback", plan)
    assert (code, found["outcome"], found["rollback"]) == (3, "lease_live", None)

    def expired() -> bool:
        return bool(told(server, "clean", "--dry-run")[1]["scheduled"])

    wait_for(expired, PATIENCE_S, server.log)
    before = server.get("/api/v1/plans")["plans"]
    assert told(server, "clean", "--dry-run")[1]["scheduled"] == [
        {"rollback": None, "target": plan}
    ]
    assert server.get("/api/v1/plans")["plans"] == before, "a dry run changes nothing"
    assert left.exists()
    code, found = told(server, "plans", "rollback", plan)
    assert (code, found["target"], found["outcome"]) == (0, plan, "completed")
    assert not left.exists()
    assert told(server, "plans", "rollback", plan) == (
        0,
        {"rollback": None, "target": plan, "outcome": "nothing_to_do"},
    )
    assert told(server, "plans", "show", plan)[1]["rollbacks"][0]["rollback"] == found["rollback"]


def test_ctrl_c_hands_the_plan_back(server: Served) -> None:
    plan = server.get("/api/v1/plans", state="requested")["plans"][0]["id"]  # of the test before
    hanging, left = hanging_executor(server, plan)
    hanging.process.send_signal(signal.SIGINT)
    assert hanging.ended()[0] == EXIT_INTERRUPTED
    shown = server.get(f"/api/v1/plans/{plan}")
    assert (shown["plan"]["lease"], shown["attempts"][-1]["end"]) == (None, "failed")
    assert not shown["attempts"][-1]["counted"], "nobody is to blame"
    assert left.exists()
    assert [each["target"] for each in told(server, "clean")[1]["executed"]] == [plan]
    assert not left.exists()


def test_a_removable_plan_whose_executor_was_killed_is_rolled_back_and_scheduled_anew(
    server: Served, spark: SparkSession
) -> None:
    (compaction,) = server.get("/api/v1/plans", state="requested")["plans"]
    found = maar.spark.execute(spark, compaction["id"], url=server.url)
    assert found["outcome"] == "completed"  # what the test before has left
    names = pushed(server, "l", "m", "n")
    plan = scheduled(server, "logcompact")
    left = killed_executor(server, plan)
    lease_is_over(server, plan)
    code, found = told(server, "plans", "execute", plan)
    assert (code, found["outcome"]) == (1, "must_be_rolled_back")
    assert {"plan": plan, "why": "too_young"} in told(server, "clean")[1]["skipped"]
    code, found = told(server, "plans", "rollback", plan)
    assert (code, found["outcome"]) == (0, "completed")
    assert not left.exists()
    code, found = told(server, "plans", "execute", plan)
    assert (code, found["outcome"]) == (1, "rolled_back")
    again = scheduled(server, "logcompact")
    assert again != plan
    assert maar.spark.execute(spark, again, url=server.url)["outcome"] == "completed"
    assert level0(server) == 1, "three segments became one"
    check_exactly_once(server, names)


def test_a_session_that_somebody_owns_executes_a_plan_and_stays(
    server: Served, spark: SparkSession
) -> None:
    names = pushed(server, "h")
    plan = server.get("/api/v1/plans", state="requested")["plans"]
    named = plan[0]["id"] if plan else scheduled(server)  # what the test before has left
    found = maar.spark.execute(spark, named, url=server.url)
    assert (found["plan"], found["outcome"]) == (named, "completed")
    again = maar.spark.execute(
        spark,
        named,
        metastore=f"unix:{server.directory}/metastore",
        store=(server.directory / "data" / "store").as_uri(),
    )
    assert again == {**found, "outcome": "already_completed"}
    assert spark.range(3).count() == 3
    check_exactly_once(server, names)


def test_two_orchestrators_that_fire_the_same_plans_both_end_well(server: Served) -> None:
    names = pushed(server, "i", "j")
    shard = str(shard_of(server))
    program = str(ROOT / "examples" / "orchestrator.py")
    arguments = ("--server", server.url, "--shards", f"{shard}-{shard}", "--run", "nightly")
    both = [Command(server, *arguments, program=program) for _ in range(2)]
    ends = [each.ended() for each in both]
    assert [code for code, _ in ends] == [0, 0], ends
    said = "".join(out for _, out in ends)
    assert said.count(": completed") == 1
    assert said.count("cleaned: ") == 2
    assert level0(server) == 0
    check_exactly_once(server, names)


def test_an_executor_is_told_the_bucket_and_brings_its_own_credentials(
    s3_server: S3Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bucket = s3_server.bucket()
    secrets = ("access_key_id", "secret_access_key")
    told_by_server = {
        "url": bucket.url,
        "allow_http": "true",
        **{name: text for name, text in bucket.options if name not in secrets},
    }
    for name in secrets:
        monkeypatch.setenv(f"MAAR_STORE__{name.upper()}", dict(bucket.options)[name])
    named = [f"store.{name}={text}" for name, text in told_by_server.items()]
    with run_server(tmp_path, *SETTINGS, *named, roles="metastore,query,front") as server:
        names = pushed(server, "k")
        plan = scheduled(server)
        assert set(server.get("/api/v1/executor")["store"]["options"]).isdisjoint(secrets)
        code, found = executing(server, plan).told()
        assert (code, found["outcome"]) == (0, "completed")
        check_exactly_once(server, names)


def test_a_closed_day_is_clustered_by_whoever_asks(tmp_path: Path, spark: SparkSession) -> None:
    one_level = ("compaction.level_counts=20", "compaction.level_bytes=1000000000")
    ages = "compaction.level_ages_s=36000"  # and blocks of level 1 are finished
    others = [text for text in SETTINGS if "level_ages" not in text]
    with run_server(tmp_path, *others, *one_level, ages, roles="metastore,query,front") as server:
        then_ns = time.time_ns() - 3 * DAY_NS
        for n in range(2):
            push_old(server, f"lane_old{n}", then_ns + n)
            plan = scheduled(server)
            assert maar.spark.execute(spark, plan, url=server.url)["outcome"] == "completed"
        day = time.strftime("%Y-%m-%d", time.gmtime(then_ns / 1e9))
        wish = ("plans", "schedule", "cluster", "--tenant", "anonymous", "--window")
        code, found = told(server, *wish, day)
        assert (code, found["created"]) == (0, True), found
        assert told(server, *wish, day)[1] == {**found, "created": False}
        other = executing(server, found["plan"], "local[2]")
        own = maar.spark.execute(spark, found["plan"], url=server.url)["outcome"]
        ends = sorted([own, other.told()[1]["outcome"]])
        assert ends in (["already_completed", "completed"], ["completed", "lease_live"])
        (block,) = server.get("/api/v1/blocks")["blocks"]
        assert (block["shard"], block["profiles"]) == (0, 2)
        today = time.strftime("%Y-%m-%d", time.gmtime())
        code, found = told(server, *wish, today)
        assert (code, found["plan"]) == (1, None)
        assert "is open for another" in found["why"]


def test_a_copy_that_an_executor_could_not_read_is_known_to_the_leader(
    tmp_path: Path, spark: SparkSession
) -> None:
    with run_server(tmp_path, *SETTINGS, roles="metastore,query,front") as server:
        for name in ("l", "m"):  # a block that is alone would not be read
            pushed(server, name)
            found = maar.spark.execute(spark, scheduled(server), url=server.url)
            assert found["outcome"] == "completed"
        block, _ = server.get("/api/v1/blocks")["blocks"]
        lost = block["files"][0]["locations"][0]["key"]
        (server.directory / "data" / "store" / lost).unlink()
        place = ("--shard", str(block["shard"]), "--tenant", block["tenant"], "--level", "1")
        code, wanted = told(server, "plans", "schedule", "compact", *place)
        assert code == 0, wanted
        found = maar.spark.execute(spark, wanted["plan"], url=server.url)
        assert found["outcome"] == "failed", found
        (store,) = told(server, "stores")[1]["stores"]
        assert store["damaged"] == 1, server.log()
        assert f"key={lost} why=missing" in server.log()


def push_old(server: Served, name: str, time_ns: int) -> None:
    api = Server(server.url)
    try:
        api.push([("service_name", "hardy")], profile(function=name, value=1, time_ns=time_ns))
    finally:
        api.close()
