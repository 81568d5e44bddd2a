"""Settings of gRPC that replicas and executors share: few threads wake up for a message."""

from __future__ import annotations

from typing import Final

EXPERIMENTS: Final = "-event_engine_client,-event_engine_listener"
"""The value of GRPC_EXPERIMENTS, which must be set before gRPC is imported. gRPC's event engine
passes each message through three threads more than the poller that it replaced."""
WINDOW_BYTES: Final = 256 << 10
"""What a sender may have under way in one stream: 5 MB/s over a network of 50 ms."""
OPTIONS: Final[tuple[tuple[str, int], ...]] = (
    # By default gRPC follows each message with a ping, by which it sizes the window.
    ("grpc.http2.bdp_probe", 0),
    ("grpc.http2.lookahead_bytes", WINDOW_BYTES),
)
"""For each server and channel."""
