"""Frames between processes of one host, however the bytes are cut on their way."""

from __future__ import annotations

import asyncio
import struct

import pytest

from maar.adapters.rpc.frames import FrameProtocol

HEAD = struct.Struct("<IIB")


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
