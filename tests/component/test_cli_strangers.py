"""The commands in front of something that is not maar: one sentence, and never a false success."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest

from maar.cli.main import run
from maar.cli.output.failure import EXIT_REFUSED, EXIT_USAGE

pytestmark = pytest.mark.component


class Friendly(BaseHTTPRequestHandler):
    """Says yes to everything, in HTML."""

    def do_GET(self) -> None:
        self.rfile.read(int(self.headers.get("Content-Length", 0)))
        self.send_response(200)
        self.end_headers()
        self.wfile.write(b"<html>welcome</html>")

    do_POST = do_GET

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def stranger() -> Iterator[str]:
    with HTTPServer(("127.0.0.1", 0), Friendly) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


@pytest.mark.parametrize("command", [["status"], ["plans"], ["query", "top", "--service", "shop"]])
def test_an_answer_that_is_not_maars_is_a_sentence(
    stranger: str, command: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert run([*command, "--server", stranger]) == EXIT_REFUSED
    assert "as maar does; name a maar server" in capsys.readouterr().err


def test_a_push_without_an_id_has_failed(
    stranger: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "stacks.folded"
    file.write_text("main;work 12\n")
    assert run(["push", str(file), "--service", "shop", "--server", stranger]) == EXIT_REFUSED
    assert "did not answer a push as maar does" in capsys.readouterr().err


def test_what_is_no_plan_id_is_not_asked_for(stranger: str) -> None:
    assert run(["plans", "?limit=1", "--server", stranger]) == EXIT_USAGE
