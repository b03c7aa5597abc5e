"""Outlives a process by a moment, to end all that the process left in its session.

Run as a file of its own, with nothing of ours imported, so that it costs little: it waits until its
standard input ends, which is when the watched process is gone, however that came about. The JVM of
a killed worker would otherwise finish its shutdown hooks, and Spark's Python daemon lives in a
process group of its own, so that no signal to the worker's group reaches it.
"""

import os
import signal
import sys
import time

ROUNDS_MAX = 100  # of 50 ms


def session_members(session: int) -> list[int]:
    """The living processes of a session, zombies excluded."""
    members = []
    for name in os.listdir("/proc"):
        if not name.isdigit():
            continue
        try:
            with open(f"/proc/{name}/stat", "rb") as file:
                fields = file.read().rpartition(b")")[2].split()
        except OSError:
            continue  # it ended while we looked
        if int(fields[3]) == session and fields[0] not in (b"Z", b"X"):
            members.append(int(name))
    return members


def main() -> None:
    session = int(sys.argv[1])
    while os.read(0, 1):
        pass
    for _ in range(ROUNDS_MAX):  # a member may fork while we kill
        members = session_members(session)
        if not members:
            return
        for member in members:
            try:
                os.kill(member, signal.SIGKILL)
            except ProcessLookupError:
                pass
        time.sleep(0.05)


if __name__ == "__main__":
    main()
