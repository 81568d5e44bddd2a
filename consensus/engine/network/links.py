"""The outgoing connection to one peer, which all messages to that peer use, and incoming ones
(`Caller`), which are strangers until their Hello is accepted.

A link is up once the peer's Welcome was accepted. A lost connection is dialled again at once, then
every 200 ms; messages that waited on it are lost, as on any network.

Messages have three classes. Heartbeats and their answers are sent first. Votes, answers and other
messages are sent after the journal's sync. Entries and pieces of dumps are sent in order, but at
most `WRITE_AHEAD_BYTES` of them are given to the connection at once, so all others overtake them.
"""

from __future__ import annotations

import logging
from collections import deque
from typing import Final, Protocol

from pysyncobj.node import Node

from consensus.engine.network.net import Connection
from consensus.engine.network.station import (
    GOODBYE_MS,
    INTRODUCED_WITHIN_S,
    Station,
    cut_text,
)
from consensus.engine.network.wire import (
    MISTAKEN,
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
from consensus.limits import HELLO_BYTES_MAX, MESSAGE_BYTES_MAX, PART_BYTES, WRITE_AHEAD_BYTES

_log = logging.getLogger(__name__)
DIAL_EVERY_S: Final = 0.2
REFUSED_EVERY_S: Final = 0.5
"""Seconds between two attempts while one side refuses the other."""
BEAT_EVERY_S: Final = 1.0
_BEAT: Final = encode_frame(Beat())


class Link:
    """The outgoing link to one peer; the Owner of its connection."""

    def __init__(self, station: Station, node: Node, address: str) -> None:
        self.node = node
        self.peer: Welcome | None = None
        self.protocol = 0
        self.urgent: list[bytes] = []
        self.late: list[bytes] = []
        self.bulk: deque[bytes] = deque()
        self._station = station
        self._address = address
        self._connection: Connection | None = None
        self._hello: Hello | None = None
        self._reader = FrameReader(HELLO_BYTES_MAX)
        self._queued_bytes = 0
        self._dial_at = self._deadline = self._spoke_at = station.mono()

    @property
    def unsent_bytes(self) -> int:
        """The bytes that wait here and in the connection."""
        return self._queued_bytes + (self._connection.unsent_bytes if self._connection else 0)

    def move(self, address: str) -> None:
        """Dial `address` from now on; keep a connection that is up."""
        if address == self._address:
            return
        self._address = address
        if self.peer is None:
            self._drop(0.0)

    def tend(self, now: float) -> None:
        """Dial, time out, or send a Beat, whichever is due."""
        if self._connection is None:
            if now >= self._dial_at:
                self._dial(now)
        elif self.peer is None:
            if now >= self._deadline:
                self._fail(f"no answer in {INTRODUCED_WITHIN_S:g} s")
        elif now - self._spoke_at >= BEAT_EVERY_S:
            self._spoke_at = now
            self._connection.write(_BEAT)

    def _dial(self, now: float) -> None:
        self._dial_at = now + DIAL_EVERY_S
        self._deadline = now + INTRODUCED_WITHIN_S
        self._reader = FrameReader(HELLO_BYTES_MAX)
        self._hello = None
        self._connection = self._station.network.dial(self._address, self.node.id, self)

    # --- outgoing messages

    def queue(self, frames: list[bytes], queue: list[bytes] | deque[bytes]) -> None:
        """Put `frames` into one of the three queues for the next flush."""
        queue.extend(frames)
        self._queued_bytes += sum(map(len, frames))

    def flush(self, frames: list[bytes]) -> None:
        """Write `frames` at once."""
        content = frames[0] if len(frames) == 1 else b"".join(frames)
        frames.clear()
        self._queued_bytes -= len(content)
        if self._connection is not None:
            self._spoke_at = self._station.mono()
            self._connection.write(content)

    def flush_bulk(self) -> None:
        """Write from `bulk` as much as the connection may have at once."""
        connection, bulk = self._connection, self.bulk
        while bulk and connection is not None and connection.unsent_bytes < WRITE_AHEAD_BYTES:
            frames, size = [], 0
            while bulk and size < PART_BYTES:
                frames.append(bulk.popleft())
                size += len(frames[-1])
            self.flush(frames)

    # --- Owner

    def connected(self) -> None:
        """Send the Hello."""
        if self._connection is not None:
            self._hello = self._station.gate.hello(self.node.id)
            self._connection.write(encode_frame(self._hello))

    def received(self, content: bytes) -> None:
        """Read the Welcome, or a Goodbye at any time."""
        try:
            self._reader.feed(content)
            while self._connection is not None and (message := self._reader.next()) is not None:
                self._hear(message)
        except BadFrame as error:
            self._fail(str(error))

    def closed(self, reason: str) -> None:
        """Dial again, at once if the last attempt is old enough."""
        self._fail(reason)

    # --- incoming messages

    def _hear(self, message: Message) -> None:
        match message:
            case Goodbye():
                self._fail(f"refused by it: {message.text!r}", again_s=REFUSED_EVERY_S)
                self._station.gate.refused(self.node.id, message)
            case Welcome() if self.peer is None and self._hello is not None:
                self._take_welcome(message, self._hello)
            case _:
                raise BadFrame(f"a {type(message).__name__} came on a connection that we dialled")

    def _take_welcome(self, welcome: Welcome, hello: Hello) -> None:
        name = self.node.id
        if welcome.sender != name:
            self.dismiss(
                Goodbye(MISTAKEN, 0, f"{welcome.sender!r} answers at the address of {name}")
            )
            return
        if not hello.protocol_least <= welcome.protocol <= hello.protocol:
            raise BadFrame(f"it answers in protocol {welcome.protocol}, which was not offered")
        refusal = self._station.gate.judge(welcome)
        if refusal is not None:
            self.dismiss(refusal)
            return
        self.peer, self.protocol = welcome, welcome.protocol
        self._spoke_at = self._station.mono()
        self._station.complaints.forget(self._kind)
        _log.info("%s can be reached, protocol %d", name, self.protocol)
        self._station.link_up(self.node)

    def rejudge(self) -> None:
        """Ask the gate about the peer again."""
        if self.peer is not None:
            refusal = self._station.gate.judge(self.peer)
            if refusal is not None:
                self.dismiss(refusal)

    def dismiss(self, goodbye: Goodbye) -> None:
        """Send the peer a Goodbye with the reason, and close the connection."""
        if self._connection is not None:
            self._connection.write(encode_frame(cut_text(goodbye)))
        self._fail(f"refused: {goodbye.text!r}", again_s=REFUSED_EVERY_S, after_ms=GOODBYE_MS)

    # --- the end

    @property
    def _kind(self) -> str:
        return f"link to {self.node.id}"

    def _fail(self, reason: str, *, again_s: float = 0.0, after_ms: int = 0) -> None:
        was_up = self.peer is not None
        said = f"{self.node.id} {'is lost' if was_up else 'cannot be reached'}: {reason}"
        self._station.complaints.say(self._kind, said)
        self._drop(again_s, after_ms=after_ms)
        if was_up:
            self._station.link_down(self.node)

    def _drop(self, again_s: float, *, after_ms: int = 0) -> None:
        connection, self._connection = self._connection, None
        self.peer, self.protocol = None, 0
        for queue in (self.urgent, self.late, self.bulk):
            queue.clear()
        self._queued_bytes = 0
        self._dial_at = max(self._dial_at, self._station.mono() + again_s)
        if connection is not None:
            connection.close(after_ms=after_ms)


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
