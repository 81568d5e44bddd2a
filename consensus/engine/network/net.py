"""The interface of connections between replicas; all socket access is behind it.

It covers mechanism only: ordered bytes, queues, TLS, waiting. `peering` decides which peers may
connect, and `wire` defines the frames. A simulated Network delays, partitions and breaks the same
calls. All methods except `ring` belong to the tick thread; owners are called only from `poll`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol


class Owner(Protocol):
    """The receiver of a connection's events."""

    def connected(self) -> None:
        """The connection can be written to: the dial and the TLS handshake, if any, succeeded. Also
        called for an accepted connection, after its handshake.
        """

    def received(self, content: bytes) -> None:
        """Bytes have arrived, in order."""

    def closed(self, reason: str) -> None:
        """The other side or an error closed the connection; no other event follows. Not called
        after our own `close`.
        """


class Connection(Protocol):
    """A bidirectional stream of bytes."""

    @property
    def proven(self) -> str | None:
        """The replica id in the peer's certificate; None without TLS or before `connected`."""

    @property
    def unsent_bytes(self) -> int:
        """Bytes given to `write` that the kernel has not accepted yet."""

    def adopt(self, owner: Owner) -> None:
        """Set the receiver of events; an accepted connection has none before."""

    def write(self, content: bytes) -> None:
        """Send `content` as soon as possible; it is dropped once the connection is closed."""

    def close(self, *, after_ms: int = 0) -> None:
        """Close the connection; with `after_ms`, allow that time to send what was written."""


class Network(Protocol):
    """The network of one replica."""

    def listen(self, address: str, accept: Callable[[Connection], None]) -> None:
        """Pass every incoming connection to `accept`, which must `adopt` or `close` it.

        Raises:
            ConsensusError: it cannot listen on the address.
        """

    def dial(self, address: str, expected: str, owner: Owner) -> Connection:
        """Start to connect to the replica `expected` at `address`; `owner` gets the events. Names
        are looked up in another thread.
        """

    def poll(self, timeout_s: float) -> None:
        """Wait for events or `ring`, at most `timeout_s`, and call the owners."""

    def ring(self) -> None:
        """Wake `poll`; from any thread."""

    def close(self) -> None:
        """Close everything at once."""
