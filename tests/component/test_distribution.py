"""Distributors and segment writers as processes of their own, killed, drained, added and starved.

Whatever happens to them, what was acknowledged can be read, and counts once.
"""

from __future__ import annotations

import signal
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from support.lake.segments import read_segment
from support.load.crowd import CPU
from support.processes.fleet import Acknowledged, Fleet, Loading, fleet, totals
from support.processes.serving import wait_for

pytestmark = [pytest.mark.component, pytest.mark.long(100), pytest.mark.timeout(400)]

FOLLOWED_S = 20.0  # generous for "within seconds": the machine may be busy
PAUSE_S = 6.0  # longer than a writer may be silent
SOME = 30  # more acknowledged pushes, of 18 series, tell that a fleet goes on
SMALL_PROFILES = ("--samples", "8", "--services", "6", "--pods", "3", "--patience", "90")
LETTERS = ("dead_letters.enabled=true", "dead_letters.after_ms=500")


@contextmanager
def loading(
    running: Fleet, prefix: str, distributors: tuple[str, ...], *options: str
) -> Iterator[Loading]:
    urls = [running.members[name].url for name in distributors]
    load = Loading(running.directory, urls, *SMALL_PROFILES, *options, prefix=prefix)
    try:
        yield load
    finally:
        load.close()


def go_on(running: Fleet, in_a: Loading, in_b: Loading) -> None:
    """Wait until many more are acknowledged in both zones."""
    in_b_before = in_b.count()
    in_a.goes_on(SOME, running)
    in_b.goes_on(in_b_before + SOME // 2 - in_b.count(), running)


def blocks(running: Fleet) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = running.members["ask"].get("/api/v1/blocks", limit=100_000)[
        "blocks"
    ]
    return found


def stored_ids(running: Fleet) -> list[str]:
    """Of every profile in every object that the index lists; one that was sent twice is there
    twice.
    """
    found = []
    for block in blocks(running):
        (file,) = block["files"]
        path = running.inside() / file["locations"][0]["key"]
        found += [profile.id.hex() for profile in read_segment(str(path))]
    return found


def asked_totals(running: Fleet, services: Sequence[str]) -> dict[str, int]:
    """What queries say of each service."""
    now_ms = time.time_ns() // 1_000_000
    return {
        service: running.members["ask"].get(
            "/api/v1/top",
            profileTypeID=CPU,
            labelSelector=f'{{service_name="{service}"}}',
            start=now_ms - 3_600_000,
            end=now_ms + 60_000,
        )["total"]
        for service in services
    }


def check_exactly_once(running: Fleet, acknowledged: list[Acknowledged]) -> None:
    """When nothing else was sent: all of it can be read, and nothing but it, once."""
    ids = {one.id for one in acknowledged}
    assert len(ids) == len(acknowledged), "every profile is another"
    wanted = dict(totals(acknowledged))
    assert asked_totals(running, list(wanted)) == wanted
    if set(stored_ids(running)) != ids:  # letters wait; when they are delivered, nothing changes
        wait_for(lambda: set(stored_ids(running)) == ids, 60, running.log)
        assert asked_totals(running, list(wanted)) == wanted
    for one in acknowledged[:: max(1, len(acknowledged) // 10)]:
        found = httpx.get(
            f"{running.members['ask'].url}/api/v1/profiles/{one.id}",
            trust_env=False,
            verify=False,
            timeout=60,
        )
        assert found.status_code == httpx.codes.OK, found.text


def check_zones(running: Fleet) -> None:
    """Services and writers are named after their zone: no profile is in another's block."""
    for block in blocks(running):
        zone = block["created_by"][0]
        assert {dataset["service"][0] for dataset in block["datasets"]} == {zone}, block


def wait_for_standing(running: Fleet, zone: str, **states: str) -> None:
    """Until the ring says so; whatever their state, all keep their four shards."""
    wanted = {node: (state, 4) for node, state in states.items()}

    def stands() -> bool:
        zones = running.members["ask"].get("/api/v1/ring")["zones"]
        (found,) = (one["writers"] for one in zones if one["zone"] == zone)
        return {one["node"]: (one["state"], one["shards"]) for one in found} == wanted

    wait_for(stands, FOLLOWED_S, running.log)


def refused(running: Fleet, distributor: str) -> float:
    return running.metric(distributor, "maar_distributor_refused")


def test_a_fleet_under_load_loses_nothing_and_counts_nothing_twice(tmp_path: Path) -> None:
    with fleet(tmp_path) as running:
        running.launch("metastore", "metastore")
        running.launch("ask", "query,api", "dead_letters.enabled=true")
        running.writer("a1", "a")
        running.writer("a2", "a")
        running.writer("b1", "b", *LETTERS)
        running.distributor("da", "a")
        running.distributor("db", "b")
        running.settle()
        with (
            loading(running, "a", ("da",), "--rate", "20", "--seconds", "600") as in_a,
            loading(running, "b", ("db",), "--rate", "10", "--seconds", "600") as in_b,
        ):
            go_on(running, in_a, in_b)
            wait_for_standing(running, "a", a1="active", a2="active")
            wait_for_standing(running, "b", b1="active")

            kill_one_and_add_another(running, in_a)
            drain_one(running, in_a)
            pause_the_metastore(running, in_a, in_b)
            replace_the_metastore(running, in_a, in_b)
            fill_the_store(running, in_a, in_b)
            reports = [in_a.end(), in_b.end()]
        acknowledged = [*in_a.read_acknowledged(), *in_b.read_acknowledged()]
        for report in reports:
            assert report["never_acknowledged"] == 0, report
            assert report["refusals"].get("503", 0) > 0, "a full store refuses; they came again"
        assert len(acknowledged) == sum(report["acknowledged"] for report in reports)
        check_exactly_once(running, acknowledged)
        check_zones(running)
        remove_the_dead(running)


def kill_one_and_add_another(running: Fleet, in_a: Loading) -> None:
    before = refused(running, "da")
    running.kill("a1")
    in_a.goes_on(SOME, running)
    assert refused(running, "da") == before, "the next writer takes what the dead one did not"
    assert running.metric("da", "maar_distributor_failovers") > 0

    running.writer("a3", "a").settle()
    wait_for(lambda: running.metric("a3", "maar_segment_profiles") > 0, FOLLOWED_S, running.log)
    wait_for_standing(running, "a", a1="dead", a2="active", a3="active")


def drain_one(running: Fleet, in_a: Loading) -> None:
    before = refused(running, "da")
    assert running.members["a2"].stop(signal.SIGTERM) == 0, "it drains, and ends in order"
    in_a.goes_on(SOME, running)
    assert refused(running, "da") == before, "nobody who pushes sees it go"


def pause_the_metastore(running: Fleet, in_a: Loading, in_b: Loading) -> None:
    with running.pause("metastore"):
        before = in_b.count()
        time.sleep(PAUSE_S)
        assert in_b.count() > before + 10, "zone b has dead letters, which need no metastore"
    assert running.metric("b1", "maar_segment_dead_letters") > 0
    go_on(running, in_a, in_b)
    assert running.metric("a3", "maar_segment_dead_letters") == 0


def replace_the_metastore(running: Fleet, in_a: Loading, in_b: Loading) -> None:
    running.kill("metastore")
    running.members["metastore"].start()
    go_on(running, in_a, in_b)
    wait_for_standing(running, "a", a1="dead", a2="dead", a3="active")


def remove_the_dead(running: Fleet) -> None:
    ask = running.members["ask"]
    alive = ask.cli("ring", "remove", "a3", "--zone", "a")
    assert alive.returncode != 0, "it would come back with its next heartbeat"
    for dead in ("a1", "a2"):
        removed = ask.cli("ring", "remove", dead, "--zone", "a")
        assert removed.returncode == 0, removed.stderr
    wait_for_standing(running, "a", a3="active")


def fill_the_store(running: Fleet, in_a: Loading, in_b: Loading) -> None:
    before = {one: refused(running, one) for one in ("da", "db")}
    with running.full_store():
        for one, count in before.items():
            wait_until_refused(running, one, count)
    go_on(running, in_a, in_b)


def wait_until_refused(running: Fleet, distributor: str, before: float) -> None:
    wait_for(lambda: refused(running, distributor) > before, 60, running.log)


def test_a_push_stays_in_its_zone_unless_told_otherwise(tmp_path: Path) -> None:
    with fleet(tmp_path) as running:
        running.launch("ask", "metastore,query,api")
        running.writer("a1", "a")
        running.writer("b1", "b")
        running.distributor("da", "a")
        running.distributor("db", "b", "routing.cross_zone=when-home-is-down")
        running.settle()

        def pushed(prefix: str, distributor: str, *options: str) -> Any:
            with loading(
                running, prefix, (distributor,), "--rate", "30", "--seconds", "1", *options
            ) as load:
                report = load.wait()
                everything.extend(load.read_acknowledged())
                return report

        def profiles(name: str) -> float:
            found: float = running.metric(name, "maar_segment_profiles")
            return found

        def crossed(distributor: str) -> float:
            found: float = running.metric(distributor, "maar_distributor_crossed_profiles")
            return found

        everything: list[Acknowledged] = []
        assert pushed("a-home", "da")["acknowledged"] == 30
        assert pushed("b-home", "db")["acknowledged"] == 30
        check_zones(running)
        assert crossed("da") == crossed("db") == 0

        running.kill("b1")
        assert pushed("b-abroad", "db")["acknowledged"] == 30
        assert crossed("db") == running.metric("db", "maar_distributor_crossed_profiles", zone="a")
        assert crossed("db") >= 30
        assert running.metric("db", "maar_distributor_crossed_bytes", zone="a") > 0

        running.members["b1"].start()
        wait_for(lambda: pushed("b-back", "db") and profiles("b1") > 0, 60, running.log)
        abroad = crossed("db")
        assert pushed("b-again", "db")["acknowledged"] == 30
        assert crossed("db") == abroad, "home again"

        running.kill("a1")
        at_b = profiles("b1")
        report = pushed("a-alone", "da", "--patience", "3")
        assert report["acknowledged"] == 0
        assert report["refusals"].get("503", 0) >= 30
        assert profiles("b1") == at_b
        assert crossed("da") == 0
        check_exactly_once(running, everything)


def test_what_full_writers_and_a_killed_distributor_leave_comes_again_and_counts_once(
    tmp_path: Path,
) -> None:
    tight = (
        "segment.buffered_bytes_max=100000",
        "segment.flush_interval_ms=1000",
        "segment.flush_interval_max_ms=1000",
    )
    with fleet(tmp_path) as running:
        running.launch("ask", "metastore,query,api")
        running.writer("a1", "a", *tight)
        running.writer("a2", "a", *tight, "ring.leave_on_stop=true")
        running.distributor("d1", "a")
        running.distributor("d2", "a")
        running.settle()

        def at_writers() -> float:
            waiting = (running.metric(one, "maar_segment_buffered_bytes") for one in ("a1", "a2"))
            return sum(waiting, 0.0)

        with loading(running, "a", ("d1", "d2"), "--rate", "150", "--seconds", "6") as load:
            load.goes_on(100, running)
            wait_for(lambda: at_writers() > 20_000, FOLLOWED_S, running.log)  # d2 owes answers
            running.kill("d2")
            report = load.wait()
        assert report["never_acknowledged"] == 0
        assert report["refusals"].get("429", 0) > 0, "more came than there was room for"
        assert report["refusals"].get("no answer", 0) > 0
        assert running.members["a2"].stop(signal.SIGTERM) == 0
        wait_for_standing(running, "a", a1="active")  # the other left for good, as it was told to
        copies = Counter(stored_ids(running))
        assert max(copies.values()) > 1, "some were stored for d2, and came again by d1"
        check_exactly_once(running, load.read_acknowledged())
