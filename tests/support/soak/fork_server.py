"""Forks workers and tasks from a process that has everything loaded, so that killing is cheap.

Run as `python -m support.soak.fork_server SOCKET PARENT`. All that it forks has its command line,
by which a run of the soak knows its own, and dies with it.
"""

from __future__ import annotations

import os
import signal
import sys
import traceback
from multiprocessing.connection import Connection, Listener

import msgspec

from maar.app.processes.process import die_with
from maar.block.decode import to_tables
from support.soak import task, worker, zombie_worker
from support.soak.orders import Order, Task, Work, Zombie


def main() -> None:
    path, parent = sys.argv[1], int(sys.argv[2])
    die_with(parent)
    to_tables.warm()
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # the kernel buries the dead
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C in a terminal is the run's business
    with Listener(path, family="AF_UNIX", backlog=64) as listener:
        fork_server = os.getpid()
        while True:
            connection = listener.accept()
            if os.fork() == 0:
                _live(connection, listener, fork_server)
            connection.close()


def _live(connection: Connection, listener: Listener, fork_server: int) -> None:
    code = 1
    try:
        die_with(fork_server)
        listener._listener._socket.close()  # type: ignore[attr-defined]  # the path is not ours
        os.setsid()
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        order: Order = msgspec.msgpack.decode(connection.recv_bytes(), type=Order)
        connection.send_bytes(msgspec.msgpack.encode(os.getpid()))
        match order:
            case Work():
                worker.run(order)
            case Zombie():
                zombie_worker.run(order)
            case Task():
                connection.send_bytes(msgspec.msgpack.encode(task.run(order)))
        code = 0
    except (EOFError, ConnectionError):
        pass  # who asked for us is gone
    except BaseException:  # noqa: BLE001  # the edge of the process
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(code)


if __name__ == "__main__":
    main()
