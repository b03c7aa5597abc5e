"""How a gRPC channel comes back: soon after a refusal, and with patience for a slow handshake."""

from __future__ import annotations

# A process that was restarted is found again at once, not after gRPC's usual minutes. What gRPC
# calls the least backoff is also how long it waits for a handshake: 50 ms of that made a caller on
# a busy machine believe that nobody was there.
RECONNECT_OPTIONS = (
    ("grpc.initial_reconnect_backoff_ms", 50),
    ("grpc.min_reconnect_backoff_ms", 2_000),
    ("grpc.max_reconnect_backoff_ms", 500),
)
