"""Incoming connections: unauthenticated until the Hello is accepted, then messages of a peer."""

from __future__ import annotations

from typing import Protocol

from consensus.engine.network.net import Connection
from consensus.engine.network.station import GOODBYE_MS, Station, cut_text
from consensus.engine.network.wire import (
    BadFrame,
    Beat,
    FrameReader,
    Goodbye,
    Hello,
    Message,
    Part,
    Parts,
    Welcome,
    encode_frame,
)
from consensus.limits import HELLO_BYTES_MAX, MESSAGE_BYTES_MAX


class Host(Station, Protocol):
    """The part of the transport that callers use."""

    def greet(self, proven: str | None, hello: Hello) -> Welcome | Goodbye:
        """Return the answer to a Hello."""

    def introduced(self, caller: Caller) -> None:
        """Record that `caller` was accepted under the name in its Hello."""

    def receive(self, name: str, message: Message) -> None:
        """Handle a peer's message."""

    def hung_up(self, caller: Caller, reason: str) -> None:
        """Record that the connection of `caller` is closed."""


class Caller:
    """An incoming connection; the Owner of its stream."""

    def __init__(self, station: Host, connection: Connection) -> None:
        self.hello: Hello | None = None
        self.since = station.mono()
        self.proven = connection.proven
        self._station = station
        self._connection: Connection | None = connection
        self._reader = FrameReader(HELLO_BYTES_MAX)
        self._parts = Parts()

    # --- Owner

    def connected(self) -> None:
        """Wait for the Hello."""

    def received(self, content: bytes) -> None:
        """Read the bytes that arrived, and dispatch complete messages."""
        try:
            self._reader.feed(content)
            while self._connection is not None and (message := self._reader.next()) is not None:
                self._hear(message)
        except BadFrame as error:
            self.hang_up(str(error))

    def closed(self, reason: str) -> None:
        """Report the end of the connection."""
        self.hang_up(reason)

    # --- incoming messages

    def _hear(self, message: Message) -> None:
        if self.hello is None:
            self._introduce(message)
        elif isinstance(message, Goodbye):
            name = self.hello.sender
            self.hang_up(f"refused by it: {message.text!r}")
            self._station.gate.refused(name, message)
        elif isinstance(message, Hello | Welcome):
            raise BadFrame(f"a second {type(message).__name__}")
        elif isinstance(message, Part):
            whole = self._parts.take(message)
            if whole is not None:
                self._station.receive(self.hello.sender, whole)
        elif not isinstance(message, Beat):
            self._station.receive(self.hello.sender, message)

    def _introduce(self, message: Message) -> None:
        if not isinstance(message, Hello):
            raise BadFrame(f"its first message is a {type(message).__name__}")
        if self._reader.left_bytes:
            # A correct peer waits for the Welcome; a replayed recording does not.
            raise BadFrame("it speaks on before it is welcome")
        connection = self._connection
        if connection is None:
            return
        answer = self._station.greet(connection.proven, message)
        if isinstance(answer, Goodbye):
            self.dismiss(answer, message.sender)
            return
        self._reader.bytes_max = MESSAGE_BYTES_MAX
        connection.write(encode_frame(answer))
        self.hello = message
        self._station.introduced(self)

    def rejudge(self) -> None:
        """Ask the gate about the peer again."""
        if self.hello is not None:
            refusal = self._station.gate.judge(self.hello)
            if refusal is not None:
                self.dismiss(refusal, self.hello.sender)

    # --- the end

    def dismiss(self, goodbye: Goodbye, name: str) -> None:
        """Send a Goodbye with the reason, and close the connection."""
        if self._connection is not None:
            self._connection.write(encode_frame(cut_text(goodbye)))
        self.hang_up(f"refused {name[:100]!r}: {goodbye.text!r}", after_ms=GOODBYE_MS)

    def hang_up(self, reason: str, *, after_ms: int = 0) -> None:
        """End the connection."""
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close(after_ms=after_ms)
            self._station.hung_up(self, reason)
