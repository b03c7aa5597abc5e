"""Replays the log into a snapshot, in its own process; prints the snapshot's index."""

from __future__ import annotations

import asyncio
import sys

from maar.app.processes.process import die_with


def main() -> None:
    die_with(int(sys.argv[1]))
    import msgspec

    from maar.app.processes import logs
    from maar.app.roles.wiring import build_first_store, open_log_reader
    from maar.app.settings.config import Settings
    from maar.metastore.replica.snapshot import make as make_snapshot

    settings = msgspec.json.decode(sys.stdin.buffer.read(), type=Settings)
    server = settings.server
    logs.configure(role="snapshot", form=server.log_format, level=server.log_level)

    async def make() -> int:
        log = await open_log_reader(settings)
        try:
            return await make_snapshot(log, build_first_store(settings))
        finally:
            await log.close()

    sys.stdout.write(f"{asyncio.run(make())}\n")


if __name__ == "__main__":
    main()
