"""`maar` command lines, answered by a front in this process."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import httpx
import pytest

from maar.cli.client import Server
from maar.cli.input import options
from maar.cli.main import run
from support.http.front import Front

Say = Callable[..., tuple[int, str, str]]


class InProcess(httpx.BaseTransport):
    """HTTP to a front in this process."""

    def __init__(self, front: Front) -> None:
        self._front = front
        self._lock = threading.Lock()

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        with self._lock:  # commands may ask from several threads, and a front is of one
            reply = self._front.request(
                request.method, str(request.url), content=request.read(), headers=request.headers
            )
        return httpx.Response(reply.status_code, headers=reply.headers, content=reply.content)


def speaker(
    front: Front, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Say:
    """What carries out a command line: exit code, stdout, stderr."""

    class Here(Server):
        def __init__(self, _url: str, **how: Any) -> None:
            super().__init__("http://maar", **how)
            self._http.close()
            self._http = httpx.Client(
                base_url="http://maar", headers=self._http.headers, transport=InProcess(front)
            )

        def pause(self, seconds: float) -> None:
            front.pauses.append(seconds)

    monkeypatch.setattr(options, "Server", Here)

    def carry_out(*arguments: str) -> tuple[int, str, str]:
        code = run(list(arguments))
        said = capsys.readouterr()
        return code, said.out, said.err

    return carry_out
