"""`maar load` in front of servers that refuse, hang up, go away or are no servers of ours."""

from __future__ import annotations

import hashlib
import json
import os
import pty
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from maar.api.protocol.wire import PushRequest
from maar.cli.main import run
from maar.cli.output.failure import EXIT_INTERRUPTED, EXIT_REFUSED, EXIT_UNAVAILABLE

pytestmark = [pytest.mark.component, pytest.mark.timeout(120)]

SMALL = ("--samples", "3", "--services", "2", "--pods", "2")


class Reply(NamedTuple):
    status: int = 200
    text: str = "{}"
    later: str = ""
    named: bool = True  # whether ids are told


class Seen(NamedTuple):
    at: float
    tenant: str
    body: bytes


Behaviour = Callable[[int, bytes], Reply | None]  # by how often these bytes came; None: hang up


class Scripted:
    """A server that answers as it is told, and remembers what came."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.seen: list[Seen] = []

    def times(self) -> Counter[bytes]:
        return Counter(one.body for one in self.seen)


@contextmanager
def scripted(behave: Behaviour) -> Iterator[Scripted]:
    lock = threading.Lock()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            with lock:
                before = told.times()[body]
                tenant = self.headers.get("X-Scope-OrgID", "")
                told.seen.append(Seen(time.monotonic(), tenant, body))
            reply = behave(before, body)
            if reply is None:
                self.close_connection = True
                return
            self.send_response(reply.status)
            if reply.later:
                self.send_header("Retry-After", reply.later)
            if reply.status == 200 and reply.named:
                self.send_header("Maar-Profile-Ids", hashlib.md5(body).hexdigest())
            self.send_header("Content-Length", str(len(reply.text)))
            self.end_headers()
            self.wfile.write(reply.text.encode())

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        told = Scripted(f"http://127.0.0.1:{server.server_port}")
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield told
        finally:
            server.shutdown()
            thread.join()


def yes(_before: int, _body: bytes) -> Reply:
    return Reply()


def load(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, Any]:
    """The exit code and the report."""
    code = run(["load", *SMALL, *arguments, "--json"])
    said = capsys.readouterr()
    return code, json.loads(said.out) if said.out else said.err


def test_every_push_is_new_and_labelled_and_recorded_when_acknowledged(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    record = tmp_path / "record.jsonl"
    with scripted(yes) as server:
        code, found = load(
            capsys,
            *("--server", server.url, "--rate", "50", "--seconds", "1", "--tenants", "2"),
            *("--record", str(record)),
        )
    assert code == 0
    assert found["acknowledged"] == found["sent"] == 50
    assert set(server.times().values()) == {1}, "no two are equal"
    lines = [json.loads(line) for line in record.read_text().splitlines()]
    assert {line["id"] for line in lines} == {
        hashlib.md5(one.body).hexdigest() for one in server.seen
    }
    assert {line["tenant"] for line in lines} == {"load-1", "load-2"}
    assert Counter(one.tenant for one in server.seen) == Counter(line["tenant"] for line in lines)
    pods = set()
    for one in server.seen:
        (series,) = PushRequest.FromString(one.body).series
        pods.add(tuple((label.name, label.value) for label in series.labels))
    assert pods == {
        (("service_name", f"load-{service}"), ("pod", f"load-{service}-{pod}"))
        for service in (1, 2)
        for pod in (1, 2)
    }
    assert len({line["time_ns"] for line in lines}) == 50
    assert all(line["total"] > 0 for line in lines)


def test_what_is_refused_for_now_is_sent_again_the_same_and_not_before_told(
    capsys: pytest.CaptureFixture[str],
) -> None:
    def twice_no(before: int, _body: bytes) -> Reply:
        if before == 0:
            return Reply(503, '{"code": "unavailable", "message": "no writer answers"}', "0.5")
        return Reply(429, '{"message": "the tenant is over its rate"}') if before == 1 else Reply()

    with scripted(twice_no) as server:
        code, found = load(capsys, "--server", server.url, "--rate", "20", "--seconds", "0.5")
    assert code == 0
    assert found["acknowledged"] == 10
    assert found["retries"] == 20
    assert found["refusals"] == {"503": 10, "429": 10}
    assert found["sentences"] == {
        "503: no writer answers": 10,
        "429: the tenant is over its rate": 10,
    }
    assert set(server.times().values()) == {3}
    for body in server.times():
        first, second, _ = (one.at for one in server.seen if one.body == body)
        assert second - first > 0.5
    assert found["latency_s"]["p50"] > 0.5, "retries are part of the latency"


def test_another_server_takes_what_one_does_not_answer(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with scripted(lambda *_: None) as rude, scripted(yes) as kind:
        code, found = load(
            capsys, "--server", rude.url, "--server", kind.url, "--rate", "20", "--seconds", "1"
        )
    assert code == 0
    assert found["acknowledged"] == 20
    assert found["refusals"] == {"no answer": 10}
    assert len(kind.seen) == 20, "by turns at first, then all that the other left"
    assert set(rude.times()) <= set(kind.times())


def test_that_nobody_listens_is_said_at_once(capsys: pytest.CaptureFixture[str]) -> None:
    with scripted(yes) as server:
        address = server.url
    code, found = load(capsys, "--server", address)
    assert code == EXIT_UNAVAILABLE
    assert f"no maar server answers at {address}" in found


@pytest.mark.parametrize(
    ("reply", "tries", "status"),
    [
        (Reply(400, '{"message": "it is too old"}'), 1, "400"),
        (Reply(500, "oh no"), 1, "500"),
        (Reply(200, "<html>welcome</html>", named=False), 1, "200"),
        (Reply(503, "full", later="60"), 1, "503"),  # longer than we have patience
    ],
)
def test_what_is_never_acknowledged_ends_with_1(
    reply: Reply, tries: int, status: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    record = tmp_path / "record.jsonl"
    with scripted(lambda *_: reply) as server:
        code, found = load(
            capsys,
            *("--server", server.url, "--rate", "10", "--seconds", "0.5", "--patience", "2"),
            *("--record", str(record)),
        )
    assert code == EXIT_REFUSED
    assert found["never_acknowledged"] == found["sent"] == 5
    assert found["refusals"] == {status: 5 * tries}
    assert record.read_text() == ""


def test_patience_ends(capsys: pytest.CaptureFixture[str]) -> None:
    with scripted(lambda *_: Reply(503, "{}")) as server:
        began = time.monotonic()
        code, found = load(
            capsys,
            *("--server", server.url, "--rate", "10", "--seconds", "0.3", "--patience", "1"),
        )
    assert code == EXIT_REFUSED
    assert found["retries"] >= 3
    assert time.monotonic() - began < 60, "it would go on for ever"
    assert "without" not in "".join(found["sentences"])


def test_a_slow_server_does_not_slow_the_pushes_down(capsys: pytest.CaptureFixture[str]) -> None:
    def slow(_before: int, _body: bytes) -> Reply:
        time.sleep(0.5)
        return Reply()

    with scripted(slow) as server:
        code, found = load(capsys, "--server", server.url, "--rate", "40", "--seconds", "1")
        assert code == 0
        arrived = sorted(one.at for one in server.seen)
        assert arrived[-1] - arrived[0] < 15, "one after the other would take 20 s"
        code, found = load(
            capsys,
            *("--server", server.url, "--rate", "40", "--seconds", "2", "--under-way", "4"),
        )
    assert code == 0
    assert found["late_s"] > 1, "four at once is too few, and the report says so"
    assert found["latency_s"]["max"] > 1.5, "waiting for a place counts"
    assert found["planned"] == 80
    assert found["acknowledged"] == found["sent"] < 40, "time was over before the rest could begin"


def test_what_found_no_place_at_all_is_owned_up_to(capsys: pytest.CaptureFixture[str]) -> None:
    def slow(_before: int, _body: bytes) -> Reply:
        time.sleep(1.5)
        return Reply()

    with scripted(slow) as server:
        code, found = load(
            capsys,
            *("--server", server.url, "--rate", "20", "--seconds", "0.5", "--under-way", "1"),
        )
    assert code == 0
    assert (found["planned"], found["sent"]) == (10, 1)
    assert found["late_s"] > 1, "else the report does not tell that nine were left out"


def test_given_profiles_are_taken_by_turns(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from support.load.crowd import profile

    files = []
    for value in (5, 6, 7):
        file = tmp_path / f"{value}.pb"
        file.write_bytes(profile(value=value))
        files += ["--file", str(file)]
    record = tmp_path / "record.jsonl"
    with scripted(yes) as server:
        code, _ = load(
            capsys,
            *("--server", server.url, "--rate", "48", "--seconds", "1", *files),
            *("--record", str(record)),
        )
    assert code == 0
    totals = Counter(json.loads(line)["total"] for line in record.read_text().splitlines())
    assert totals == {5: 16, 6: 16, 7: 16}


def command(url: str, *more: str) -> list[str]:
    return [sys.executable, "-m", "maar.cli.main", "load", *SMALL, "--server", url, *more]


def test_ctrl_c_begins_no_more_and_still_reports() -> None:
    with scripted(yes) as server:
        process = subprocess.Popen(
            command(server.url, "--rate", "50", "--seconds", "600"),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        deadline = time.monotonic() + 60
        while len(server.seen) < 5:
            assert time.monotonic() < deadline
            time.sleep(0.05)
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=60)
    assert process.returncode == EXIT_INTERRUPTED, err
    assert f"{len(server.seen):,} of {len(server.seen):,} pushes acknowledged" in out
    assert err == "", "no bar without a terminal"


def test_a_terminal_gets_a_bar() -> None:
    ours, theirs = pty.openpty()
    with scripted(yes) as server:
        process = subprocess.Popen(
            command(server.url, "--rate", "20", "--seconds", "1"),
            stdout=subprocess.PIPE,
            stderr=theirs,
            text=True,
            env={**os.environ, "TERM": "xterm", "COLUMNS": "120"},
        )
        out, _ = process.communicate(timeout=60)
    os.close(theirs)
    shown = b""
    try:
        while part := os.read(ours, 65536):
            shown += part
    except OSError:
        pass  # Linux ends a terminal that nobody holds so
    finally:
        os.close(ours)
    assert process.returncode == 0
    assert b"20 acknowledged" in shown
    assert b"under way" in shown
    assert "20 of 20 pushes acknowledged" in out
