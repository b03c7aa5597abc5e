"""How much may come in by HTTP, and how slowly."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, Struct


class ApiSettings(Struct, frozen=True):
    body_bytes_max: int = 64 << 20  # of one request, as it comes
    request_bytes_max: int = 128 << 20  # of one request, decompressed
    reading_bytes_max: int = 512 << 20  # of all requests being read; beyond this, 429
    head_s: Annotated[float, Meta(gt=0, le=3600)] = 10.0  # for request line and headers; then 408
    head_bytes_max: Annotated[int, Meta(ge=1024)] = 64 << 10  # of them; beyond this, 431
    unfinished_max: Annotated[int, Meta(ge=1)] = 2048  # requests of which there is a part; then 503
    unfinished_per_address_max: Annotated[int, Meta(ge=1)] = 512  # beyond this, 429
    connections_max: Annotated[int, Meta(ge=1)] = 16_384  # within what descriptors allow
