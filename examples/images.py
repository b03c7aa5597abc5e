"""An image service: pixels blurred, edges found and thumbnails made, in plain Python loops.

Run with the agent: python examples/images.py [server] [seconds between uploads]
"""

from __future__ import annotations

import random
import sys
import time
from itertools import pairwise

import pyroscope

WIDTH, HEIGHT = 96, 64

Image = list[list[int]]


def decode_image(chance: random.Random) -> Image:
    return [[chance.randrange(256) for _ in range(WIDTH)] for _ in range(HEIGHT)]


def blur(image: Image) -> Image:
    return [
        [average_around(image, x, y) for x in range(1, WIDTH - 1)] for y in range(1, HEIGHT - 1)
    ]


def average_around(image: Image, x: int, y: int) -> int:
    total = 0
    for row in (y - 1, y, y + 1):
        total += image[row][x - 1] + image[row][x] + image[row][x + 1]
    return total // 9


def detect_edges(image: Image) -> Image:
    edges = []
    for above, below in pairwise(image):
        edges.append([abs(one - two) for one, two in zip(above, below, strict=True)])
    return edges


def make_thumbnail(image: Image, step: int) -> Image:
    return [row[::step] for row in image[::step]]


def histogram(image: Image) -> list[int]:
    counts = [0] * 256
    for row in image:
        for pixel in row:
            counts[pixel] += 1
    return counts


def handle_upload(kind: str, chance: random.Random) -> None:
    with pyroscope.tag_wrapper({"kind": kind}):
        image = decode_image(chance)
        soft = blur(image)
        if kind == "photo":
            histogram(detect_edges(soft))
        make_thumbnail(soft, 4)


def main(server: str, upload_interval: int) -> None:
    pyroscope.configure(
        application_name="images",
        server_address=server,
        upload_interval=upload_interval,
        tags={"region": "eu", "version": "0.9.0"},
    )
    chance = random.Random(3)
    while True:
        handle_upload(chance.choice(("photo", "drawing")), chance)
        time.sleep(0.02)


def arguments(given: list[str]) -> tuple[str, int]:
    server = given[0] if given else "http://127.0.0.1:4040"
    return server, int(given[1]) if len(given) > 1 else 5


if __name__ == "__main__":
    main(*arguments(sys.argv[1:]))
