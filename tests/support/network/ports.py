"""Ports of loopback that nobody has, and that nobody else gets while this process lives."""

from __future__ import annotations

import fcntl
import os
import random
import socket
from pathlib import Path

# Below those that the kernel gives to outgoing connections: a port of theirs is free when one
# looks, and taken a second later by any client of any test.
PORTS = range(20_000, 32_000)
_CLAIMS = Path("/tmp/maar-test-ports")  # one for all, whatever TMPDIR a test gives to its children
_held: list[int] = []  # open files: their locks end with this process


def free_port() -> int:
    while True:
        port = random.SystemRandom().choice(PORTS)
        if _is_free(port) and _claim(port):
            return port


def _is_free(port: int) -> bool:
    with socket.socket() as tried:
        try:
            tried.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True


def _claim(port: int) -> bool:
    """Tests run side by side: between this look and the server's start nobody else may take it."""
    _CLAIMS.mkdir(mode=0o777, exist_ok=True)
    file = os.open(_CLAIMS / str(port), os.O_CREAT | os.O_RDWR, 0o666)
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(file)
        return False
    _held.append(file)
    return True
