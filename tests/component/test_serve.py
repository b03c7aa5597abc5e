"""`maar serve` from end to end: what a user does, what a killer does, and what is left after."""

from __future__ import annotations

import asyncio
import contextlib
import gzip
import json
import os
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from maar.adapters.rpc import MetastoreClient
from maar.adapters.stores.open import open_store
from maar.app.processes.watcher import session_members
from maar.app.roles import marker
from maar.cli.client import Server
from maar.cli.output.failure import CommandFailed
from maar.model.ids import MAIN_STORE, Incarnation
from maar.ports.metastore.log_time import GetNow
from maar.ports.stores.object_store import StoreSettings
from maar.pprof.plain import PlainLabel, PlainSample
from support.etcd.cluster import running
from support.load.crowd import CPU, FAST, Pushers, check_exactly_once, level0, profile
from support.network.ports import free_port
from support.oracles.pprof_reader import canonical
from support.processes.serving import Served, living, processes, run_server, wait_for

pytestmark = [pytest.mark.component, pytest.mark.long(90), pytest.mark.timeout(280)]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    metastore = f"roles.metastore=127.0.0.1:{free_port()}"
    with run_server(tmp_path_factory.mktemp("serve"), *FAST, metastore) as running:
        yield running


def ok(server: Served, *arguments: str) -> str:
    result = server.cli(*arguments)
    assert result.returncode == 0, result.stderr
    return result.stdout


def as_json(server: Served, *arguments: str) -> Any:
    return json.loads(ok(server, *arguments, "--json"))


def total_of(server: Served, service: str, *more: str) -> int:
    graph = as_json(server, "query", "flamegraph", "--service", service, *more)
    return int(graph["total"])


def fetched(server: Served, identity: str, file: Path, *more: str) -> Any:
    ok(server, "get", identity, "-o", str(file), *more)
    return canonical(gzip.decompress(file.read_bytes()))


def test_a_pushed_profile_comes_back_equal_before_and_after_compaction(
    server: Served, tmp_path: Path
) -> None:
    raw, packed = tmp_path / "raw.pb", tmp_path / "packed.pb.gz"
    raw.write_bytes(profile(function="raw"))
    packed.write_bytes(gzip.compress(profile(function="packed")))
    folded = tmp_path / "stacks.txt"
    folded.write_text("main;parse 3\nmain;print 1\n")
    push = ("push", str(raw), str(packed), str(folded), "--service", "shop")
    ids = ok(server, *push, "--label", "region=eu", "--tenant", "acme").split()
    assert len(ids) == 3
    assert ok(
        server, *push[:2], "--service", "shop", "--label", "region=eu", "--tenant", "acme"
    ) == (f"{ids[0]}\n"), "the same again is the same profile"

    def check() -> None:
        mine = ("--tenant", "acme")
        for file, identity in ((raw, ids[0]), (packed, ids[1])):
            body = file.read_bytes()
            body = gzip.decompress(body) if body[:2] == b"\x1f\x8b" else body
            assert fetched(server, identity, tmp_path / "back", *mine) == canonical(body)
        assert total_of(server, "shop", *mine) == 7 + 7 + 4 * 10_000_000
        assert total_of(server, "shop") == 0, "another tenant sees nothing"

    check()
    wait_for(lambda: _compacted(server, tenant="acme", profiles=3), 180, server.log)
    check()


def _compacted(server: Served, *, tenant: str, profiles: int) -> bool:
    """All of a tenant's profiles are in blocks, the pushed-twice one once."""
    blocks = server.get("/api/v1/blocks")["blocks"]
    found = sum(b["profiles"] for b in blocks if b["level"] >= 1 and b["tenant"] == tenant)
    return found == profiles and not any(b["level"] == 0 for b in blocks)


def test_people_get_trees_and_tables_and_scripts_get_json(server: Served, tmp_path: Path) -> None:
    file = tmp_path / "stacks.txt"
    file.write_text("main;parse 3\nmain;print 1\n")
    ok(server, "push", str(file), "--service", "tables", "--label", "region=eu")
    tree = ok(server, "query", "flamegraph", "--service", "tables")
    assert "75.0%" in tree
    assert "parse" in tree
    table = ok(server, "query", "top", "--service", "tables", "--label", "region=eu")
    assert table.splitlines()[1].split()[-1] == "parse"
    assert "parse" in ok(server, "query", "top"), "without a service, of the fleet"
    assert ok(server, "query", "flamegraph", "--service", "tables", "--type", "cpu") == tree
    assert total_of(server, "tables", "--selector", '{region=~"us.*"}') == 0
    assert as_json(server, "query", "types", "--service", "tables") == {"types": [CPU]}
    assert "region" in as_json(server, "query", "labels")["labels"]
    assert as_json(server, "query", "labels", "region", "--service", "tables") == {"values": ["eu"]}
    (series,) = as_json(server, "query", "series", "--service", "tables")["series"]
    assert series["service_name"] == "tables"
    for command in ("status", "blocks", "plans"):
        assert ok(server, command)
        assert as_json(server, command)


def test_tags_that_old_agents_send_on_samples_can_be_asked_for_at_every_level(
    server: Served,
) -> None:
    """pyroscope-io 0.8 puts its tags on samples, not into the application's name."""
    tagged = PlainSample([0], (5,), labels=(PlainLabel("endpoint", text="/pay"),))
    body = profile(function="old", more_samples=[tagged])
    response = httpx.post(
        f"{server.url}/ingest?name=old.app&format=pprof&sampleRate=100&spyName=pyspy",
        content=gzip.compress(body),
        headers={"Content-Encoding": "gzip", "X-Scope-OrgID": "vintage"},
        trust_env=False,
        verify=False,
        timeout=60,
    )
    assert response.status_code == 200, response.text
    mine = ("--tenant", "vintage")

    def check() -> None:
        assert as_json(server, "query", "labels", "endpoint", *mine) == {"values": ["/pay"]}
        assert total_of(server, "old.app", *mine, "--selector", '{endpoint="/pay"}') == 5
        assert total_of(server, "old.app", *mine) == 5 + 7

    check()
    wait_for(lambda: _compacted(server, tenant="vintage", profiles=1), 180, server.log)
    check()


def test_status_tells_of_plans_and_a_plan_of_its_attempts(server: Served, tmp_path: Path) -> None:
    file = tmp_path / "stacks.txt"
    file.write_text("main;parse 3\n")
    ok(server, "push", str(file), "--service", "planned")
    wait_for(lambda: server.get("/api/v1/status")["completed"] > 0, 180, server.log)
    status = as_json(server, "status")
    assert status["profiles_added"] > 0
    plan = as_json(server, "plans", "--state", "completed")["plans"][0]
    shown = ok(server, "plans", "show", plan["id"])
    assert plan["inputs"][0] in shown
    assert plan["attempts"][0]["token"] in shown


def test_the_log_is_folded_into_a_snapshot_by_another_process(server: Served) -> None:
    with contextlib.closing(Server(server.url)) as api:
        for number in range(12):
            api.push([("service_name", "many")], profile(function=f"f{number}"))
    wait_for(lambda: server.get("/api/v1/status")["snapshot_index"] > 0, 60, server.log)


def test_refusals_are_sentences_with_exit_codes(server: Served, tmp_path: Path) -> None:
    broken, good = tmp_path / "broken.pb.gz", tmp_path / "good.pb"
    broken.write_bytes(gzip.compress(profile())[:60])
    good.write_bytes(profile())
    result = server.cli("push", str(broken), str(good), "--service", "x")
    assert result.returncode == 1
    assert "broken.pb.gz" in result.stderr
    assert len(result.stdout.split()) == 1, "the good file is pushed all the same"
    for arguments, code in (
        (("get", "0" * 32), 1),
        (("get", "nonsense"), 2),
        (("plans", "show", "999999.0"), 1),
        (("query", "flamegraph", "--from", "now", "--until", "now-1h"), 2),
        (("query", "flamegraph", "--type", "nonsense"), 1),
        (("push", str(good), "--service", "x", "--tenant", "../../etc"), 1),
        (("status", "--server", "http://127.0.0.1:1"), 3),
        (("status", "--server", "nonsense"), 2),
        (("push", "--service", "x"), 2),
    ):
        result = server.cli(*arguments)
        assert result.returncode == code, (arguments, result)
        assert "Traceback" not in result.stderr
        assert len(result.stderr.strip().splitlines()) <= 4, result.stderr


def test_one_metrics_page_speaks_for_every_role(server: Served) -> None:
    text = httpx.get(f"{server.url}/metrics", trust_env=False, verify=False, timeout=60).text
    for role in ("metastore", "query", "worker"):
        assert f'maar_role_up{{role="{role}"}} 1' in text
        assert f"maar_{role}_process_resident_memory_bytes" in text
    assert "maar_distributor_profiles_total" in text


def test_ready_tells_the_truth_about_a_metastore_that_hangs(server: Served) -> None:
    def ready() -> int:
        return httpx.get(
            f"{server.url}/ready", trust_env=False, verify=False, timeout=60
        ).status_code

    pid = server.children()["metastore"]
    os.kill(pid, signal.SIGSTOP)
    try:
        wait_for(lambda: ready() == 503, 60, server.log)
    finally:
        os.kill(pid, signal.SIGCONT)
    wait_for(lambda: ready() == 200, 60, server.log)


def test_it_shows_its_metastore_where_it_was_told_to(server: Served) -> None:
    (address,) = (x.partition("=")[2] for x in server.settings if x.startswith("roles.metastore="))

    async def incarnation() -> Incarnation:
        client = MetastoreClient(address)
        try:
            return (await client.call(GetNow())).incarnation
        finally:
            await client.close()

    url = (server.directory / "data" / "store").as_uri()
    store = open_store(StoreSettings(MAIN_STORE, url))
    marker.check(store, asyncio.run(incarnation()), metastore=address)


def test_a_second_server_is_refused_with_a_sentence(server: Served) -> None:
    taken = server.url.removeprefix("http://")
    data = str(server.directory / "data")
    for arguments, words in (
        (("--listen", taken, "--data", str(server.directory / "other")), "cannot listen on"),
        (("--listen", "127.0.0.1:0", "--data", data), "another maar server is using"),
    ):
        result = server.command("serve", *arguments)
        assert result.returncode == 2, result
        assert words in result.stderr
        assert len(result.stderr.splitlines()) == 1


def test_wrong_flags_of_serve_are_sentences(server: Served) -> None:
    for arguments, words in (
        (("--listen", "0.0.0.0:0"), "--allow-remote"),
        (("--set", "segment.flush=1"), "segment.flush"),
        (("--set", "segment"), "SECTION.NAME=VALUE"),
        (("--log", "http://h1:2379/maar"), "etcd://h1:2379"),
        (("--set", "roles.metastore=127.0.0.1:1,127.0.0.1:2"), "metastore.listen"),
        (("--roles", "cook"), "metastore, query, segment-writer, distributor, api, worker"),
    ):
        result = server.cli("serve", *arguments)
        assert result.returncode == 2, result
        assert words in result.stderr


def test_a_missing_java_is_a_sentence(
    server: Served, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    result = server.command("serve", "--listen", "127.0.0.1:0", "--data", str(tmp_path / "data"))
    assert result.returncode == 2
    assert "Java 17" in result.stderr
    assert len(result.stderr.splitlines()) == 1


def test_ctrl_c_answers_what_is_under_way_and_leaves_no_process(
    server: Served, tmp_path: Path
) -> None:
    """The last test of this server."""
    everyone = server.everyone()
    assert len(everyone) >= 6, "supervisor, four roles and a JVM at least"
    acknowledged: set[str] = set()
    answers: list[str] = []

    def push(number: int) -> None:
        api, name = Server(server.url), f"lane{number}"
        try:
            api.push([("service_name", "late")], profile(function=name, value=1))
            acknowledged.add(name)
        except CommandFailed as error:
            answers.append(str(error))
        finally:
            api.close()

    threads = [threading.Thread(target=push, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    time.sleep(0.03)
    assert server.stop(signal.SIGINT) == 0, server.log()[-4000:]
    for thread in threads:
        thread.join(60)
    assert len(acknowledged) + len(answers) == 8, "every push got an answer"
    wait_for(lambda: not living(everyone), 60, server.log)
    assert "Traceback" not in server.log()
    server.roles = "metastore,query,front"  # the same data, in one process
    server.start()
    check_exactly_once(server, acknowledged, service="late")
    assert server.stop(signal.SIGINT) == 0


def test_kill_minus_nine_of_anyone_loses_and_doubles_nothing(tmp_path: Path) -> None:
    with run_server(tmp_path, *FAST) as server:
        with Pushers(server.url) as pushers:
            wait_for(lambda: pushers.has_grown(5), 60, server.log)
            _kill_jvm(server)
            for role in ("worker", "front", "metastore", "query"):
                _kill(server, role)
                _grow(server, pushers)
            everyone = server.everyone()
            os.kill(server.pid, signal.SIGKILL)
            wait_for(lambda: not living(everyone), 60, server.log)
            server.stop()
            server.start()
            _grow(server, pushers)
        check_exactly_once(server, pushers.acknowledged)
        done = server.get("/api/v1/status")["completed"]
        wait_for(lambda: server.get("/api/v1/status")["completed"] > done, 90, server.log)
        wait_for(lambda: level0(server) == 0, 60, server.log)
        check_exactly_once(server, pushers.acknowledged)


def test_a_server_keeps_its_log_in_etcd_and_says_when_that_is_away(tmp_path: Path) -> None:
    with (
        running(tmp_path / "etcd") as etcd,
        run_server(tmp_path, *FAST, f"log.url={etcd.url}", "log.election_s=2") as server,
    ):
        with Pushers(server.url) as pushers:
            _grow(server, pushers)
            _kill(server, "metastore")
            _grow(server, pushers)
            (member,) = etcd.members
            member.pause()
            wait_for(lambda: "log" in _unready(server), 60, server.log)
            member.resume()
            _grow(server, pushers)
        wait_for(lambda: not _unready(server), 60, server.log)
        wait_for(lambda: server.get("/api/v1/status")["completed"] > 0, 90, server.log)
        check_exactly_once(server, pushers.acknowledged)
        assert not (tmp_path / "data" / "log").exists()
        assert (
            "maar_metastore_stopped 0.0"
            in httpx.get(f"{server.url}/metrics", trust_env=False, verify=False, timeout=60).text
        )


def _unready(server: Served) -> str:
    """'' when it is ready, else what it lacks."""
    answer = httpx.get(f"{server.url}/ready", trust_env=False, verify=False, timeout=30)
    return "" if answer.status_code == 200 else answer.text


def _kill(server: Served, role: str) -> None:
    """Kill it, and see another in its place."""
    pid = server.children()[role]
    os.kill(pid, signal.SIGKILL)
    wait_for(lambda: server.children().get(role, pid) != pid, 60, server.log)
    assert not session_members(pid), "Spark's JVM and daemon go with their worker"


def _kill_jvm(server: Served) -> None:
    """Kill Spark under its worker, and see another in its place."""

    def jvms() -> list[int]:
        commands = processes()
        return [pid for pid in server.everyone() if "org.apache.spark" in commands.get(pid, "")]

    wait_for(jvms, 60, server.log)
    killed = jvms()
    for pid in killed:
        os.kill(pid, signal.SIGKILL)
    wait_for(lambda: set(jvms()) - set(killed), 60, server.log)


def _grow(server: Served, pushers: Pushers) -> None:
    goal = len(pushers.acknowledged) + 5
    wait_for(lambda: pushers.has_grown(goal), 60, server.log)
