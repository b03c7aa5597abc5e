"""Limits of requests over HTTP, in size, number and time."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, Struct

from maar.model.bounds import Count, Natural


class ApiSettings(Struct, frozen=True):
    """Limits of requests over HTTP, in size, number and time."""

    body_bytes_max: Natural = 64 << 20
    """Largest request body, as it comes; beyond it 413."""
    request_bytes_max: Natural = 128 << 20
    """Largest request body, decompressed; beyond it 413."""
    reading_bytes_max: Natural = 512 << 20
    """All request bodies being read at once; beyond it 429."""
    head_s: Annotated[float, Meta(gt=0, le=3600)] = 10.0
    """How long a request line and its headers may take to arrive; then 408. (A body has 30 s. An
    idle connection stays for 75 s, one of HTTP/2 for 300 s.) Over HTTP/2 an incomplete frame or
    header block ends the connection.
    """
    head_bytes_max: Annotated[int, Meta(ge=1024)] = 64 << 10
    """Largest request line and headers together; beyond it 431."""
    unfinished_per_address_max: Count = 512
    """Incomplete requests of one address (an IPv6 network of 64 bits counts as one). Beyond it the
    oldest of them gets 429, and the new one is read. Connections that are idle or being answered do
    not count, so a gateway needs no more than it sends at the same moment.
    """
    unfinished_max: Count = 2048
    """The same for all addresses together; the oldest of the address that has the most gets 503."""
    connections_max: Count = 16_384
    """Open connections; never more than three quarters of the descriptors that the process may open
    (`ulimit -Hn`). Beyond it the connection that is idle the longest is closed, then the oldest
    incomplete request gets 503; those that are being answered stay.
    """
