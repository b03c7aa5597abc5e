"""`maar push`, sent again after a lost reply: one profile, whether it has a time or not."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import httpx
import pytest

from maar.cli.client import EXIT_UNAVAILABLE
from maar.model.time import SECOND_NS
from support.command_line import Say, speaker
from support.front import NOW_NS, Front, gz, pprof


class Forgetful(Front):
    """Stores what it is sent, and loses the first replies."""

    lost = 1

    def request(self, method: str, url: str, **how: Any) -> httpx.Response:
        reply = super().request(method, url, **how)
        if self.lost:
            self.lost -= 1
            raise httpx.ReadError("the connection was reset")
        return reply


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
    code, out, err = say("push", str(file), "--service", "shop")
    assert (code, out) == (EXIT_UNAVAILABLE, "")
    assert "broke" in err
    front.clock.now_ns += 60 * SECOND_NS
    code, out, _ = say("push", str(file), "--service", "shop")
    first, second = front.writer.profiles()
    assert first.id == second.id, "readers and merges count them once"
    assert (code, out.split()) == (0, [second.id.hex()])


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
