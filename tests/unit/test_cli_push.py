"""`maar push`, sent again after a lost reply: one profile, whether it has a time or not."""

from __future__ import annotations

import io
import sys
import threading
from pathlib import Path
from typing import Any

import httpx
import pytest

from maar.cli.client import retry_after_s
from maar.cli.commands import push
from maar.cli.output.failure import EXIT_REFUSED, EXIT_UNAVAILABLE
from maar.model.time import SECOND_NS
from support.http.command_line import Say, speaker
from support.http.front import Front
from support.http.pushed import NOW_NS, gz, pprof

PATIENCE_S = 100.0


class Forgetful(Front):
    """Stores what it is sent, and loses the first replies."""

    lost = 1

    def request(self, method: str, url: str, **how: Any) -> httpx.Response:
        reply = super().request(method, url, **how)
        if self.lost:
            self.lost -= 1
            raise httpx.ReadError("the connection was reset")
        return reply


@pytest.mark.parametrize(
    ("told", "seconds"),
    [("30", 30), ("0.5", 0.5), ("86400", 60), ("inf", 60), ("nan", 0), ("-1", 0), ("soon", 0)],
)
def test_whatever_an_answer_says_the_wait_is_no_longer_than_a_minute(
    told: str, seconds: float
) -> None:
    assert retry_after_s(told) == retry_after_s(told.encode()) == seconds


@pytest.fixture
def front() -> Forgetful:
    return Forgetful()


@pytest.fixture
def say(front: Front, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Say:
    return speaker(front, monkeypatch, capsys)


@pytest.mark.parametrize("time_ns", [0, NOW_NS])
def test_a_push_sent_again_after_a_lost_reply_is_the_same_profile(
    front: Forgetful, say: Say, tmp_path: Path, time_ns: int
) -> None:
    file = tmp_path / "cpu.pb"
    file.write_bytes(pprof(time_ns=time_ns))
    front.lost = 1 + push.RETRIES_MAX
    code, out, err = say("push", str(file), "--service", "shop")
    assert (code, out) == (EXIT_UNAVAILABLE, "")
    assert "broke" in err
    front.clock.now_ns += 60 * SECOND_NS
    code, out, _ = say("push", str(file), "--service", "shop")
    (only,) = {profile.id for profile in front.writer.profiles()}
    assert len(front.writer.profiles()) == 2 + push.RETRIES_MAX, "readers count them once"
    assert (code, out.split()) == (0, [only.hex()])


def test_a_reply_that_is_lost_is_asked_for_again_at_once(
    front: Forgetful, say: Say, tmp_path: Path
) -> None:
    (tmp_path / "cpu.pb").write_bytes(pprof(time_ns=0))
    front.lost = 2
    code, out, err = say("push", str(tmp_path / "cpu.pb"), "--service", "shop")
    (only,) = {profile.id for profile in front.writer.profiles()}
    assert (code, out, err) == (0, f"{only.hex()}\n", "")
    assert len(front.pauses) == 2


def test_ids_come_in_the_order_of_the_files_and_failures_by_name(
    front: Forgetful, say: Say, tmp_path: Path
) -> None:
    front.lost = 0
    files = []
    for number in range(40):
        files.append(tmp_path / f"{number}.pb")
        files[-1].write_bytes(pprof(value=number + 1))
    _, alone, _ = say("push", str(files[7]), "--service", "shop")
    files[3].write_bytes(b"neither pprof nor text\0")
    code, out, err = say("push", *map(str, files), "--service", "shop")
    assert code == EXIT_REFUSED
    assert err.startswith(f"{files[3]}: ")
    ids = out.split()
    assert len(set(ids)) == 39
    assert ids[6] == alone.strip(), "the one that failed has no line"


def test_when_nobody_answers_the_other_files_are_not_tried_one_by_one(
    front: Forgetful, say: Say, tmp_path: Path
) -> None:
    front.lost = 1 << 30
    files = [tmp_path / f"{number}.pb" for number in range(100)]
    for number, file in enumerate(files):
        file.write_bytes(pprof(value=number + 1))
    code, out, err = say("push", *map(str, files), "--service", "shop")
    assert (code, out) == (EXIT_UNAVAILABLE, "")
    assert "99 more files may not have arrived" in err
    most = (1 + push.RETRIES_MAX) * push.AT_ONCE * 2
    assert len(front.writer.profiles()) <= most


def test_what_goes_wrong_in_a_thread_is_not_lost() -> None:
    def work(number: int) -> int:
        return 1 // number

    outcomes = push.in_order(work, [1, 0], at_once=2)
    assert next(outcomes) == 1
    with pytest.raises(ZeroDivisionError):
        next(outcomes)


def test_as_many_are_under_way_at_once_as_there_may_be() -> None:
    together = threading.Barrier(4)  # nobody passes alone

    def work(number: int) -> int:
        together.wait(PATIENCE_S)
        return number

    assert list(push.in_order(work, range(12), at_once=4)) == list(range(12))


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(
    ("stdout", "stderr", "shown"),
    [
        (Terminal, Terminal, "stdout"),
        (io.StringIO, Terminal, "stderr"),  # ids go into a file
        (io.StringIO, io.StringIO, ""),
    ],
)
def test_how_far_it_is_is_shown_on_a_terminal_only(
    monkeypatch: pytest.MonkeyPatch,
    stdout: type[io.StringIO],
    stderr: type[io.StringIO],
    shown: str,
) -> None:
    monkeypatch.setenv("TERM", "xterm")
    out = {"stdout": stdout(), "stderr": stderr()}
    for name, stream in out.items():
        monkeypatch.setattr(sys, name, stream)
    with push.progress(3) as advance:
        for _ in range(3):
            advance()
    told = {name for name, stream in out.items() if "3/3" in stream.getvalue()}
    assert told == {shown} - {""}
    assert all(name in told or not stream.getvalue() for name, stream in out.items())


def test_how_a_file_is_compressed_makes_no_difference_to_who_it_is(
    front: Forgetful, say: Say, tmp_path: Path
) -> None:
    front.lost = 0
    (tmp_path / "raw.pb").write_bytes(pprof(time_ns=0))
    (tmp_path / "packed.pb.gz").write_bytes(gz(pprof(time_ns=0)))
    for file in sorted(tmp_path.iterdir()):
        assert say("push", str(file), "--service", "shop")[0] == 0
    assert len({profile.id for profile in front.writer.profiles()}) == 1


def test_files_that_differ_stay_apart(front: Forgetful, say: Say, tmp_path: Path) -> None:
    front.lost = 0
    for value in (1, 2):
        (tmp_path / f"{value}.pb").write_bytes(pprof(time_ns=0, value=value))
    assert say("push", *map(str, tmp_path.iterdir()), "--service", "shop")[0] == 0
    assert len({profile.id for profile in front.writer.profiles()}) == 2
