"""Flame graphs from plain numbers."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from maar.ports.reader.query import FlameGraph


def graph_of(
    names: Sequence[str], levels: Sequence[Sequence[int]], total: int, max_self: int
) -> FlameGraph:
    text = msgspec.json.encode([{"values": list(map(str, level))} for level in levels])
    return FlameGraph(msgspec.json.encode(tuple(names)), text, total, max_self)
