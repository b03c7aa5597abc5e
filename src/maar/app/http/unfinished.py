"""Limits connections and incomplete requests, counted by address; the oldest are closed first.

Decisions only: time is an argument, and the caller carries them out. A request is unfinished from
its first byte to its last. A connection without a request is idle, also a new one that has sent
nothing yet.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Hashable
from enum import StrEnum
from typing import NamedTuple

from msgspec import Struct

SPARE_DESCRIPTORS = 64  # at least so many are left for files, sockets of other roles, and bursts


class Why(StrEnum):
    """Why a connection or request is closed; also the label of the metric."""

    HEAD_SLOW = "head_slow"
    HEAD_LARGE = "head_large"
    BODY_SLOW = "body_slow"
    ADDRESS_FULL = "address_full"
    FULL = "full"
    CONNECTIONS = "connections"
    FLOOD = "flood"
    ANSWER_STALLED = "answer_stalled"


class ConnectionLimits(Struct, frozen=True, kw_only=True):
    head_s: float
    body_s: float
    unfinished_max: int
    unfinished_per_address_max: int
    connections_max: int


class RefusedConnection(NamedTuple):
    who: Hashable
    why: Why


class _Begun(NamedTuple):
    address: str
    since: float


def address_of(host: str) -> str:
    """What counts as one client: one IPv4 address, or one IPv6 network of 64 bits."""
    try:
        parsed = ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return host  # a unix socket has none
    if parsed.version == 4:
        return host
    if parsed.ipv4_mapped is not None:
        return str(parsed.ipv4_mapped)
    return str(ipaddress.ip_network((parsed, 64), strict=False).network_address)


def connections_within(wanted: int, *, descriptors: int) -> int:
    """How many connections a process may keep that may open so many descriptors."""
    return min(wanted, max(1, descriptors - max(SPARE_DESCRIPTORS, descriptors // 4)))


class Unfinished:
    """The oldest go first, and those of the address that has the most: a request that comes at an
    ordinary pace is whole long before it is the oldest of five hundred."""

    def __init__(self, bounds: ConnectionLimits) -> None:
        self._bounds = bounds
        # Insertion order is order of age, in all of these.
        self._heads: dict[Hashable, _Begun] = {}
        self._bodies: dict[Hashable, _Begun] = {}
        self._by_address: dict[str, dict[Hashable, None]] = {}
        self._open: dict[Hashable, str] = {}
        self._idle: dict[str, dict[Hashable, None]] = {}

    @property
    def requests(self) -> int:
        return len(self._heads) + len(self._bodies)

    @property
    def connections(self) -> int:
        return len(self._open)

    # ------------------------------------------------------------------ connections

    def on_open(self, who: Hashable, address: str) -> RefusedConnection | None:
        """Count a new connection; returns which one has to be closed for it, perhaps itself."""
        refused = None
        if len(self._open) >= self._bounds.connections_max:
            groups = self._idle or self._by_address
            goes = _oldest_of_most(groups) if groups else who
            if self._idle:
                self.busy(goes)  # it is closing: simultaneous newcomers must each pick another
            refused = RefusedConnection(goes, Why.CONNECTIONS)
        self._open[who] = address
        self.idle(who)
        return refused

    def idle(self, who: Hashable) -> None:
        self._idle.setdefault(self._open[who], {})[who] = None

    def busy(self, who: Hashable) -> None:
        _without(self._idle, self._open[who], who)

    def on_close(self, who: Hashable) -> None:
        address = self._open.pop(who, None)
        if address is not None:
            _without(self._idle, address, who)
        self.whole(who)

    # ------------------------------------------------------------------ requests

    def on_begin(self, what: Hashable, address: str, now: float) -> RefusedConnection | None:
        """Count an incomplete request; returns which one has to be closed for it."""
        refused = None
        own = self._by_address.get(address, {})
        if len(own) >= self._bounds.unfinished_per_address_max:
            refused = RefusedConnection(next(iter(own)), Why.ADDRESS_FULL)
        elif self.requests >= self._bounds.unfinished_max:
            refused = RefusedConnection(_oldest_of_most(self._by_address), Why.FULL)
        self._heads[what] = _Begun(address, now)
        self._by_address.setdefault(address, {})[what] = None
        return refused

    def head_whole(self, what: Hashable, now: float) -> None:
        """Its head is here, its body is not."""
        begun = self._heads.pop(what, None)
        if begun is not None:
            self._bodies[what] = _Begun(begun.address, now)

    def whole(self, what: Hashable) -> None:
        begun = self._heads.pop(what, None) or self._bodies.pop(what, None)
        if begun is not None:
            _without(self._by_address, begun.address, what)

    def overdue(self, now: float) -> list[RefusedConnection]:
        return [
            *self._late(self._heads, now - self._bounds.head_s, Why.HEAD_SLOW),
            *self._late(self._bodies, now - self._bounds.body_s, Why.BODY_SLOW),
        ]

    @staticmethod
    def _late(begun: dict[Hashable, _Begun], before: float, why: Why) -> list[RefusedConnection]:
        late = []
        for what, one in begun.items():
            if one.since > before:
                break
            late.append(RefusedConnection(what, why))
        return late


def _oldest_of_most(groups: dict[str, dict[Hashable, None]]) -> Hashable:
    most = max(groups, key=lambda address: len(groups[address]))
    return next(iter(groups[most]))


def _without(groups: dict[str, dict[Hashable, None]], address: str, who: Hashable) -> None:
    """No empty groups are left: a stranger's address must not stay in memory."""
    group = groups.get(address)
    if group is not None:
        group.pop(who, None)
        if not group:
            del groups[address]
