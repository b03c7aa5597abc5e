"""Frames between processes of one host, however the bytes are cut on their way."""

from __future__ import annotations

import asyncio
import struct
from pathlib import Path

import pytest

from maar.adapters.rpc.frames import UNIX, FrameChannel, FrameProtocol
from maar.model.errors import Unreachable
from maar.ports.writer.segment_writer import PushProfiles
from support.clock.virtual_time import run_virtually
from support.segment.writer_in_memory import ONE, raw_profile

HEAD = struct.Struct("<IIB")
MIB = 1 << 20


class Taken(FrameProtocol):
    def __init__(self) -> None:
        super().__init__()
        self.message_bytes_max = 20
        self.frames: list[tuple[int, int, bytes]] = []

    def take(self, number: int, kind: int, body: memoryview) -> None:
        self.frames.append((number, kind, bytes(body)))

    def take_too_large(self, number: int) -> None:
        self.frames.append((number, -1, b""))


def frame(number: int, kind: int, body: bytes) -> bytes:
    return HEAD.pack(len(body), number, kind) + body


WIRE = (
    frame(1, 0, b"whole")
    + frame(2, 1, b"")
    + frame(3, 0, b"x" * 21)
    + frame(4, 2, b"y" * 20)
    + frame(5, 0, b"last")
)
SENT = [(1, 0, b"whole"), (2, 1, b""), (3, -1, b""), (4, 2, b"y" * 20), (5, 0, b"last")]


@pytest.mark.parametrize("size", [*range(1, 40), len(WIRE)])
def test_frames_are_the_same_however_their_bytes_arrive(size: int) -> None:
    async def receive() -> list[tuple[int, int, bytes]]:
        end = Taken()
        for _ in range(2):  # what was kept of the first time would be in the way of the second
            for first in range(0, len(WIRE), size):
                end.data_received(WIRE[first : first + size])
        return end.frames

    assert asyncio.run(receive()) == SENT * 2


class NeverReads(asyncio.Protocol):
    """A process that hangs: the kernel still takes connections for it, and a few bytes."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport
        transport.pause_reading()


def test_what_a_process_that_hangs_does_not_read_is_not_kept_for_it(tmp_path: Path) -> None:
    """Its callers give up, one after the other; what they had to say goes with them."""
    call = PushProfiles(ONE, (raw_profile(size=MIB),))

    async def story() -> None:
        path = str(tmp_path / "writer.sock")
        hangs = NeverReads()
        server = await asyncio.get_running_loop().create_unix_server(lambda: hangs, path)
        channel = FrameChannel(f"{UNIX}{path}")
        for _ in range(5):
            calls = (channel.call(call, within_s=13.0) for _ in range(4))
            answers = await asyncio.gather(*calls, return_exceptions=True)
            assert [type(answer) for answer in answers] == [Unreachable] * 4
        assert channel._end is not None
        assert channel._end.transport.get_write_buffer_size() < 2 * MIB
        await channel.close()
        hangs.transport.abort()
        server.close()
        await server.wait_closed()

    run_virtually(story())
