"""The one door to sockets: what connections between replicas can do.

Mechanism only: bytes in order, queues, TLS, waiting. Who may speak and what a frame is, `transport`
knows. A simulated Network delays, cuts and breaks the same calls. All of it, but `ring`, belongs
to the tick thread; owners are called from `poll` and from nowhere else.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol


class Owner(Protocol):
    """Who is told what happens to a connection."""

    def connected(self) -> None:
        """It can be written to: the dial succeeded, and so did the TLS handshake if there is one.
        Also called for an accepted one, after its handshake."""

    def received(self, content: bytes) -> None:
        """Bytes have come, in order."""

    def closed(self, reason: str) -> None:
        """It is over, by the other side or an error; nothing else will be told. Not called after
        our own `close`."""


class Connection(Protocol):
    """A stream of bytes, both ways."""

    @property
    def proven(self) -> str | None:
        """The replica's id that the other side's certificate proves, None without TLS or before
        `connected`."""

    @property
    def unsent_bytes(self) -> int:
        """What `write` was given and the other side's kernel has not taken."""

    def adopt(self, owner: Owner) -> None:
        """Name who is told; an accepted connection has none before."""

    def write(self, content: bytes) -> None:
        """Send `content`, as soon as it can be; dropped once the connection is over."""

    def close(self, *, after_ms: int = 0) -> None:
        """End it. With `after_ms` what was written has that long to leave."""


class Network(Protocol):
    """Where connections come from, for one replica."""

    def listen(self, address: str, accept: Callable[[Connection], None]) -> None:
        """Hand every connection that comes in to `accept`, which must `adopt` or `close` it.

        Raises:
            ConsensusError: the address cannot be listened on.
        """

    def dial(self, address: str, expected: str, owner: Owner) -> Connection:
        """Begin to connect to the replica `expected` at `address`; `owner` hears what came of it.
        Names are looked up without making anybody wait."""

    def poll(self, timeout_s: float) -> None:
        """Wait for news or the bell, at most `timeout_s`, and tell the owners."""

    def ring(self) -> None:
        """Wake `poll`; from any thread."""

    def close(self) -> None:
        """End everything, at once."""
