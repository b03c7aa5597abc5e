"""What several fronts of one port decide: who they are, what each may have, and what they sum."""

from __future__ import annotations

import asyncio
import errno
import os
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from maar.api.settings import ApiSettings
from maar.app.health.front_pages import (
    FrontPages,
    FrontSums,
    Page,
    page_text,
    read_page,
    sum_pages,
)
from maar.app.http.turns import GONE_NS, PAUSE_MAX_S, ConnectionCounts, pause_s
from maar.app.processes.supervisor import listen
from maar.app.roles.run import Child, ProcessName, RoleName, child_named, children_of
from maar.app.roles.shares import retries_of, share_of
from maar.app.settings.config import load
from maar.cli.main import run
from maar.cli.output.failure import EXIT_USAGE
from maar.distributor.settings import RouterSettings
from maar.model.errors import InvalidInput, Unavailable

# ------------------------------------------------------------------ processes


def test_one_front_has_the_segment_writer_in_its_process_and_several_have_one_beside_them() -> None:
    assert [str(child) for child in children_of(1)] == ["metastore", "query", "front", "worker"]
    assert [str(child) for child in children_of(3)] == [
        *("metastore", "query", "segment-writer"),
        *("front-1", "front-2", "front-3", "worker"),
    ]
    for fronts in (1, 2, 5):
        roles = [role for child in children_of(fronts) for role in child.roles]
        assert roles.count(RoleName.SEGMENT_WRITER) == 1, "the shards have one owner"
        assert roles.count(RoleName.DISTRIBUTOR) == roles.count(RoleName.API) == fronts


def test_several_fronts_are_for_a_server_with_all_roles(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A distributor on its own host has a port of its own; to divide its bounds would be wrong."""
    words = ["serve", "--roles", "distributor", "--data", str(tmp_path)]
    assert run([*words, "--set", "server.fronts=2"]) == EXIT_USAGE
    assert "server.fronts = 2 is for `maar serve` with all roles" in capsys.readouterr().err


def test_a_process_is_known_by_its_name() -> None:
    for child in (*children_of(1), *children_of(12)):
        assert child_named(str(child)) == child
    assert child_named("segment-writer") == Child(ProcessName.SEGMENT_WRITER)
    for unknown in ("front-", "fronts-1", "spark"):
        with pytest.raises(ValueError, match=r"not a valid|invalid literal"):
            child_named(unknown)


# ------------------------------------------------------------------ shares


@pytest.mark.parametrize("fronts", [1, 2, 3, 7])
def test_the_parts_of_all_fronts_are_never_more_than_the_whole(fronts: int) -> None:
    whole = ApiSettings(
        reading_bytes_max=1_000_003,
        connections_max=101,
        unfinished_max=53,
        unfinished_per_address_max=11,
    )
    part = share_of(whole, fronts)
    for name in (
        *("reading_bytes_max", "connections_max"),
        *("unfinished_max", "unfinished_per_address_max"),
    ):
        bound = getattr(whole, name)
        assert bound - fronts < fronts * getattr(part, name) <= bound, name
    assert (part.body_bytes_max, part.head_s) == (whole.body_bytes_max, whole.head_s)
    retries = retries_of(RouterSettings(), fronts)
    assert retries.retries_per_s * fronts == pytest.approx(RouterSettings().retries_per_s)
    assert retries.retries_saved_max * fronts <= RouterSettings().retries_saved_max


def test_settings_whose_parts_could_not_hold_a_request_are_refused_with_the_remedy() -> None:
    load(file=None, environ={"MAAR_SERVER__FRONTS": "2"})
    with pytest.raises(InvalidInput, match=r"api\.reading_bytes_max.*raise it to 603979776"):
        load(file=None, environ={"MAAR_SERVER__FRONTS": "3"})
    enough = {"MAAR_SERVER__FRONTS": "3", "MAAR_API__READING_BYTES_MAX": "603979776"}
    load(file=None, environ=enough)
    with pytest.raises(InvalidInput, match="none may be less"):
        load(file=None, environ={**enough, "MAAR_API__UNFINISHED_PER_ADDRESS_MAX": "2"})


# ------------------------------------------------------------------ turns


def test_a_front_with_more_connections_lets_the_other_go_first_but_not_for_long() -> None:
    assert pause_s(5, [5]) == pause_s(4, [5]) == pause_s(9, []) == 0
    assert 0 < pause_s(6, [5]) < pause_s(9, [5]) < PAUSE_MAX_S
    assert pause_s(9, [50, 5]) == pause_s(9, [5])
    assert pause_s(10_000, [0]) == PAUSE_MAX_S


def test_fronts_see_each_others_connections_and_one_that_starts_again_has_none(
    tmp_path: Path,
) -> None:
    file = tmp_path / "connections"
    one, two = (ConnectionCounts(file, fronts=2, number=number) for number in (1, 2))
    assert one.others() == two.others() == [0]
    one.tell(7)
    two.tell(9)
    assert (one.others(), two.others()) == ([9], [7])
    again = ConnectionCounts(file, fronts=2, number=1)
    assert (again.others(), two.others()) == ([9], [0])
    for each in (one, two, again):
        each.close()


def test_fronts_go_without_the_numbers_where_the_disk_is_full(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """They are hints. Memory of a file that has no room on its disk kills who writes to it."""

    def no_room(*_: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "posix_fallocate", no_room)
    one, two = (
        ConnectionCounts(tmp_path / "connections", fronts=2, number=number) for number in (1, 2)
    )
    one.tell(7)
    assert two.others() == []
    assert "No space left on device" in caplog.text
    one.close()
    two.close()


def test_nobody_waits_for_a_front_that_is_gone(tmp_path: Path) -> None:
    """What it had said last stays in the file: a burst would be let in one every 20 ms."""
    now_ns = 5 * GONE_NS
    file = tmp_path / "connections"
    one, two, _ = (
        ConnectionCounts(file, fronts=3, number=number, now_ns=lambda: now_ns)
        for number in (1, 2, 3)
    )
    now_ns += GONE_NS // 2
    one.tell(500)
    two.tell(400)
    assert pause_s(500, one.others()) == PAUSE_MAX_S
    now_ns += GONE_NS // 2
    assert one.others() == [400]
    now_ns += GONE_NS // 2
    assert pause_s(500, one.others()) == 0
    two.tell(400)
    assert one.others() == [400]


# ------------------------------------------------------------------ metrics


class Front:
    """The metrics of one run of a front."""

    def __init__(self, started: float) -> None:
        self._registry = registry = CollectorRegistry()
        self.pushes = Counter("maar_pushes", "Pushes", ["kind"], registry=registry)
        self.seconds = Histogram("maar_seconds", "Time", buckets=(1, 2), registry=registry)
        self.connections = Gauge("maar_front_connections", "Open", registry=registry)
        self.writers = Gauge("maar_distributor_writers", "Writers", registry=registry)
        Gauge("maar_front_process_start_time_seconds", "Start", registry=registry).set(started)

    def page(self) -> Page:
        return read_page(generate_latest(self._registry).decode())


def values(page: Page) -> dict[str, float]:
    """As Prometheus' own reader sees them, without times of creation."""
    return dict(_samples(page_text(page)))


def _samples(text: str) -> Iterator[tuple[str, float]]:
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            labels = "".join(f" {name}={value}" for name, value in sorted(sample.labels.items()))
            if not sample.name.endswith("_created"):
                yield sample.name + labels, sample.value


def test_counters_and_histograms_are_summed_and_gauges_by_their_meaning() -> None:
    one, two = Front(100.0), Front(200.0)
    for front, pushes in ((one, 3), (two, 4)):
        front.pushes.labels("raw").inc(pushes)
        front.connections.set(10 * pushes)
        front.writers.set(2)
    two.pushes.labels('odd "one" {x}').inc()
    one.seconds.observe(0.5)
    two.seconds.observe(1.5)
    found = values(sum_pages([one.page(), two.page()]))
    assert found["maar_pushes_total kind=raw"] == 7
    assert found['maar_pushes_total kind=odd "one" {x}'] == 1
    assert found["maar_seconds_count"] == found["maar_seconds_bucket le=2.0"] == 2
    assert found["maar_seconds_bucket le=1.0"] == 1
    assert found["maar_seconds_sum"] == 2.0
    assert found["maar_front_connections"] == 70
    assert found["maar_distributor_writers"] == 2, "both speak of the same writers"
    assert found["maar_front_process_start_time_seconds"] == 200.0


def test_no_counter_shrinks_when_a_front_dies_and_comes_back() -> None:
    sums, one, two = FrontSums(), Front(100.0), Front(101.0)
    one.pushes.labels("raw").inc(5)
    two.pushes.labels("raw").inc(8)
    one.connections.set(1)
    two.connections.set(2)

    def seen(first: Front, second: Front | None) -> dict[str, float]:
        page = second.page() if second is not None else None
        return values(sums.see({"front-1": first.page(), "front-2": page}))

    assert seen(one, two)["maar_pushes_total kind=raw"] == 13
    gone = seen(one, None)
    assert gone["maar_pushes_total kind=raw"] == 13
    assert gone["maar_front_connections"] == 1, "what it had open is closed"
    for started in (300.0, 400.0):
        again = Front(started)
        again.pushes.labels("raw").inc()
        before = seen(one, None)["maar_pushes_total kind=raw"]
        assert seen(one, again)["maar_pushes_total kind=raw"] == before + 1
        assert seen(one, again)["maar_pushes_total kind=raw"] == before + 1, "once"


class Role:
    """A front that is asked for its page; None: it does not answer."""

    def __init__(self, front: Front) -> None:
        self.front: Front | None = front

    async def call(self, _: Any) -> Any:
        if self.front is None:
            raise Unavailable("away")
        return page_text(self.front.page())


def test_the_sum_does_not_shrink_when_whoever_sums_is_started_again(tmp_path: Path) -> None:
    role, kept = Role(Front(100.0)), tmp_path / "gone"

    def pushes(pages: FrontPages) -> float:
        return values(read_page(asyncio.run(pages.text())))["maar_pushes_total kind=raw"]

    assert role.front is not None
    role.front.pushes.labels("raw").inc(5)
    pages = FrontPages({"front-1": role}, kept)
    assert pushes(pages) == 5
    role.front = Front(200.0)
    role.front.pushes.labels("raw").inc(2)
    assert pushes(pages) == 7
    assert pushes(FrontPages({"front-1": role}, kept)) == 7


def test_an_answer_that_another_has_overtaken_makes_no_counter_smaller() -> None:
    sums, front = FrontSums(), Front(100.0)
    front.pushes.labels("raw").inc(5)
    front.connections.set(3)
    early = front.page()
    front.pushes.labels("raw").inc(2)
    assert values(sums.see({"front-1": front.page()}))["maar_pushes_total kind=raw"] == 7
    late = values(sums.see({"front-1": early}))
    assert late["maar_pushes_total kind=raw"] == 7
    assert late["maar_front_connections"] == 3, "gauges are as they were told"


def test_the_listening_socket_cannot_be_shared_with_another_program() -> None:
    held = listen(load(file=None, environ={"MAAR_SERVER__LISTEN": "127.0.0.1:0"}))
    port = held.getsockname()[1]
    with held, socket.socket() as other:
        other.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        with pytest.raises(OSError, match="in use"):
            other.bind(("127.0.0.1", port))
