"""The connections to a peer: the outgoing link, which all messages to that peer use, and incoming
ones (`Caller`), which are strangers until their Hello is accepted.

A link is up once the peer's Welcome was accepted. A lost connection is dialled again at once, then
every 200 ms; messages that waited on it are lost, as on any network.

Messages have three classes. Heartbeats and their answers are sent first. Votes, answers and other
messages are sent after the journal's sync. Entries and pieces of dumps are sent in order, but at
most `WRITE_AHEAD_BYTES` of them are given to the connection at once, so all others overtake them.
"""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable
from typing import Final, Protocol

from pysyncobj.node import Node

from consensus.engine.network.net import Connection, Network
from consensus.engine.network.tcp import Complaints
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
INTRODUCED_WITHIN_S: Final = 5.0
"""The longest time from dialling to the Welcome, and from accepting to the Hello."""
DIAL_EVERY_S: Final = 0.2
REFUSED_EVERY_S: Final = 0.5
"""Seconds between two attempts while one side refuses the other."""
BEAT_EVERY_S: Final = 1.0
_BEAT: Final = encode_frame(Beat())
_GOODBYE_MS: Final = 1_000
"""The longest time for sending a Goodbye."""
_GOODBYE_BYTES_MAX: Final = 500
"""How much of its text is sent: the frame must fit into HELLO_BYTES_MAX."""


class Gate(Protocol):
    """Peer admission by the members in this replica's log; the engine implements it.

    `caller_gone` is called with the name of a peer whose connection to this replica is closed.
    """

    caller_gone: Callable[[str], None]

    def hello(self, to: str) -> Hello:
        """Return this replica's Hello to the peer `to`."""

    def welcome(self, to: str, protocol: int) -> Welcome:
        """Return the answer to the Hello of `to`; `protocol` is the negotiated version."""

    def judge(self, caller: Hello | Welcome) -> Goodbye | None:
        """Return why `caller` is refused; None if it is accepted."""

    def refused(self, by: str, goodbye: Goodbye) -> None:
        """Record that the peer `by` refuses this replica."""


class Host(Protocol):
    """The part of the transport that connections use."""

    network: Network
    gate: Gate
    mono: Callable[[], float]
    complaints: Complaints

    def link_changed(self, node: Node, *, is_up: bool) -> None:
        """Record that `node` is connected, or not any more."""

    def greet(self, proven: str | None, hello: Hello) -> Welcome | Goodbye:
        """Return the answer to a Hello."""

    def introduced(self, caller: Caller, name: str) -> None:
        """Record that `caller` was accepted as the peer `name`."""

    def receive(self, name: str, message: Message) -> None:
        """Handle a peer's message."""

    def hung_up(self, caller: Caller, reason: str) -> None:
        """Record that the connection of `caller` is closed."""


class PeerConnection(ABC):
    """What outgoing and incoming connections have in common; the Owner of a stream.

    `peer` is the Welcome or Hello of the other side, None before it was accepted.
    """

    def __init__(self, host: Host) -> None:
        self.peer: Hello | Welcome | None = None
        self._host = host
        self._connection: Connection | None = None
        self._reader = FrameReader(HELLO_BYTES_MAX)

    def received(self, content: bytes) -> None:
        """Read the bytes that arrived, and handle complete messages."""
        try:
            self._reader.feed(content)
            while self._connection is not None and (message := self._reader.next()) is not None:
                self._take(message)
        except BadFrame as error:
            self.hang_up(str(error))

    def closed(self, reason: str) -> None:
        """Handle the end of the stream."""
        self.hang_up(reason)

    def rejudge(self) -> None:
        """Ask the gate about an accepted peer again."""
        peer = self.peer
        refusal = self._host.gate.judge(peer) if peer is not None else None
        if peer is not None and refusal is not None:
            self._dismiss(refusal, peer.sender)

    def _dismiss(self, goodbye: Goodbye, name: str) -> None:
        """Send a Goodbye with the reason, and close the connection."""
        text = goodbye.text.encode(errors="replace")[:_GOODBYE_BYTES_MAX].decode(errors="ignore")
        if self._connection is not None:
            self._connection.write(encode_frame(Goodbye(goodbye.reason, goodbye.number, text)))
        reason = f"refused {name[:100]!r}: {goodbye.text!r}"
        self.hang_up(reason, again_s=REFUSED_EVERY_S, after_ms=_GOODBYE_MS)

    def _leave(self, goodbye: Goodbye, name: str) -> None:
        """Close the connection, because the peer `name` refuses this replica."""
        self.hang_up(f"refused by it: {goodbye.text!r}", again_s=REFUSED_EVERY_S)
        self._host.gate.refused(name, goodbye)

    @abstractmethod
    def connected(self) -> None:
        """Handle that the stream is open."""

    @abstractmethod
    def hang_up(self, reason: str, *, again_s: float = 0.0, after_ms: int = 0) -> None:
        """Close the connection, with `after_ms` for what was written; a link is dialled again
        after `again_s`.
        """

    @abstractmethod
    def _take(self, message: Message) -> None:
        """Handle a message. Raises BadFrame if it must not come here."""


class Link(PeerConnection):
    """The outgoing link to one peer. `protocol` is the version that it speaks, 0 while it is not
    up; `urgent`, `late` and `bulk` are the queues of the three classes of messages.
    """

    def __init__(self, host: Host, node: Node, address: str) -> None:
        super().__init__(host)
        self.node = node
        self.protocol = 0
        self.urgent: list[bytes] = []
        self.late: list[bytes] = []
        self.bulk: deque[bytes] = deque()
        self._address = address
        self._hello: Hello | None = None
        self._queued_bytes = 0
        self._dial_at = self._deadline = self._spoke_at = host.mono()

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
                self._dial_at, self._deadline = now + DIAL_EVERY_S, now + INTRODUCED_WITHIN_S
                self._reader, self._hello = FrameReader(HELLO_BYTES_MAX), None
                network, name = self._host.network, self.node.id
                self._connection = network.dial(self._address, name, self)
        elif self.peer is None:
            if now >= self._deadline:
                self.hang_up(f"no answer in {INTRODUCED_WITHIN_S:g} s")
        elif now - self._spoke_at >= BEAT_EVERY_S:
            self._spoke_at = now
            self._connection.write(_BEAT)

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
            self._spoke_at = self._host.mono()
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

    # --- incoming messages

    def connected(self) -> None:
        """Send the Hello."""
        if self._connection is not None:
            self._hello = self._host.gate.hello(self.node.id)
            self._connection.write(encode_frame(self._hello))

    def _take(self, message: Message) -> None:
        match message:
            case Goodbye():
                self._leave(message, self.node.id)
            case Welcome() if self.peer is None and self._hello is not None:
                self._take_welcome(message, self._hello)
            case _:
                raise BadFrame(f"a {type(message).__name__} came on a connection that we dialled")

    def _take_welcome(self, welcome: Welcome, hello: Hello) -> None:
        name = self.node.id
        if welcome.sender != name:
            mistaken = f"{welcome.sender!r} answers at the address of {name}"
            self._dismiss(Goodbye(MISTAKEN, 0, mistaken), name)
            return
        if not hello.protocol_least <= welcome.protocol <= hello.protocol:
            raise BadFrame(f"it answers in protocol {welcome.protocol}, which was not offered")
        refusal = self._host.gate.judge(welcome)
        if refusal is not None:
            self._dismiss(refusal, name)
            return
        self.peer, self.protocol = welcome, welcome.protocol
        self._spoke_at = self._host.mono()
        self._host.complaints.forget(f"link to {name}")
        _log.info("%s can be reached, protocol %d", name, self.protocol)
        self._host.link_changed(self.node, is_up=True)

    # --- the end

    def hang_up(self, reason: str, *, again_s: float = 0.0, after_ms: int = 0) -> None:
        """Close the connection; dial again after `again_s`, at the earliest 200 ms after the last
        attempt.
        """
        was_up = self.peer is not None
        text = f"{self.node.id} {'is lost' if was_up else 'cannot be reached'}: {reason}"
        self._host.complaints.say(f"link to {self.node.id}", text)
        self._drop(again_s, after_ms=after_ms)
        if was_up:
            self._host.link_changed(self.node, is_up=False)

    def _drop(self, again_s: float, *, after_ms: int = 0) -> None:
        connection, self._connection = self._connection, None
        self.peer, self.protocol = None, 0
        for queue in (self.urgent, self.late, self.bulk):
            queue.clear()
        self._queued_bytes = 0
        self._dial_at = max(self._dial_at, self._host.mono() + again_s)
        if connection is not None:
            connection.close(after_ms=after_ms)


class Caller(PeerConnection):
    """An incoming connection. `since` is when it was accepted, `proven` the id in its certificate,
    None without TLS.
    """

    def __init__(self, host: Host, connection: Connection) -> None:
        super().__init__(host)
        self.since = host.mono()
        self.proven = connection.proven
        self._connection = connection
        self._parts = Parts()

    def connected(self) -> None:
        """Wait for the Hello."""

    def _take(self, message: Message) -> None:
        if self.peer is None:
            self._introduce(message)
        elif isinstance(message, Goodbye):
            self._leave(message, self.peer.sender)
        elif isinstance(message, Hello | Welcome):
            raise BadFrame(f"a second {type(message).__name__}")
        elif isinstance(message, Part):
            whole = self._parts.take(message)
            if whole is not None:
                self._host.receive(self.peer.sender, whole)
        elif not isinstance(message, Beat):
            self._host.receive(self.peer.sender, message)

    def _introduce(self, message: Message) -> None:
        if not isinstance(message, Hello):
            raise BadFrame(f"its first message is a {type(message).__name__}")
        if self._reader.left_bytes:
            # A correct peer waits for the Welcome; a replayed recording does not.
            raise BadFrame("it speaks on before it is welcome")
        answer = self._host.greet(self.proven, message)
        if isinstance(answer, Goodbye):
            self._dismiss(answer, message.sender)
        elif self._connection is not None:
            self._reader.bytes_max = MESSAGE_BYTES_MAX
            self._connection.write(encode_frame(answer))
            self.peer = message
            self._host.introduced(self, message.sender)

    def hang_up(self, reason: str, *, again_s: float = 0.0, after_ms: int = 0) -> None:
        """Close the connection; the other side dials again."""
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close(after_ms=after_ms)
            self._host.hung_up(self, reason)
