"""Sockets between replicas: one outgoing connection per peer, everything else only listens.

Owned by the tick thread, which calls `poll` through PySyncObj. A connection carries messages one
way: from who dialled, who says its name first. A newer connection of a peer ends its older one, so
that late bytes of a former life are not heard. What a slow peer cannot take is dropped, as
networks do; nothing here is retried but dialling.

Persist before send: `flush` hands out what the tick has queued. A leader's entries may leave before
they are on its own disk (it counts itself only after the same flush); answers and votes leave
after the journal is synced.
"""

from __future__ import annotations

import contextlib
import logging
import selectors
import socket
from collections import deque
from typing import Any, ClassVar, Protocol

from pysyncobj.monotonic import monotonic
from pysyncobj.node import Node
from pysyncobj.transport import Transport

from consensus.engine.config import EngineConfig, parse_address
from consensus.engine.network.wire import (
    PROTOCOL,
    Append,
    BadFrame,
    DumpChunk,
    FrameReader,
    Hello,
    Message,
    encode_frame,
    from_library,
)
from consensus.errors import ConsensusError
from consensus.limits import HELLO_BYTES_MAX, MESSAGE_BYTES_MAX, STRANGERS_MAX, UNSENT_BYTES_MAX

_log = logging.getLogger(__name__)
_READ_BYTES = 256 * 1024
_READS_MAX = 16
_DIAL_EVERY_S = 0.2
_HELLO_WITHIN_S = 5.0
_READ, _WRITE = selectors.EVENT_READ, selectors.EVENT_WRITE


class Syncs(Protocol):
    """What must be durable before an answer leaves."""

    def sync(self) -> None:
        """Make everything written durable."""


class Ready(Protocol):
    """Something that waits for its socket."""

    def ready(self, mask: int) -> None:
        """Do what the socket allows now."""


class _Link:
    """The outgoing connection to one peer."""

    def __init__(self, transport: PeerTransport, node: Node, address: tuple[str, int]) -> None:
        self.node = node
        self.connected = False
        self.unsent_bytes = 0
        self._transport = transport
        self._address = address
        self._socket: socket.socket | None = None
        self._unsent: deque[memoryview] = deque()
        self._dial_at = 0.0
        self._mask = 0

    def dial(self, now: float) -> None:
        """Start to connect, if nothing is under way and the last try was a while ago."""
        if self._socket is not None or now < self._dial_at:
            return
        self._dial_at = now + _DIAL_EVERY_S
        family = socket.AF_INET6 if ":" in self._address[0] else socket.AF_INET
        try:
            self._socket = socket.socket(family, socket.SOCK_STREAM)
        except OSError:
            return  # no descriptor left: again later
        self._socket.setblocking(False)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._socket.connect_ex(self._address)
        self._watch(_READ | _WRITE)

    def ready(self, mask: int) -> None:
        """Finish connecting, write what waits, or notice the end."""
        try:
            if not self.connected:
                self._finish_dial()
            if mask & _READ and not self._socket_of().recv(4096):
                raise ConnectionResetError("peer closed")
            self.write()
        except BlockingIOError:
            self.write()
        except OSError:
            self.close()

    def _finish_dial(self) -> None:
        sock = self._socket_of()
        error = sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        if error:
            raise OSError(error, "dial")
        if sock.getpeername() == sock.getsockname():
            raise ConnectionResetError("connected to itself")  # a free port can dial itself
        self.connected = True
        hello = Hello(PROTOCOL, PROTOCOL, "", self._transport.replica, self.node.id, 0, 0, False)
        self.queue(encode_frame(hello))
        self._transport.link_up(self.node)

    def queue(self, frame: bytes) -> None:
        """Keep `frame` for the next `write`."""
        self._unsent.append(memoryview(frame))
        self.unsent_bytes += len(frame)

    def write(self) -> None:
        """Write as much as the kernel takes."""
        if not self.connected:
            return
        try:
            while self._unsent:
                count = self._socket_of().send(self._unsent[0])
                self.unsent_bytes -= count
                if count == len(self._unsent[0]):
                    self._unsent.popleft()
                else:
                    self._unsent[0] = self._unsent[0][count:]
        except BlockingIOError:
            pass
        except OSError:
            self.close()
            return
        self._watch(_READ | _WRITE if self._unsent else _READ)

    def _watch(self, mask: int) -> None:
        if mask != self._mask:
            self._transport.watch(self._socket_of(), mask, self)
            self._mask = mask

    def _socket_of(self) -> socket.socket:
        if self._socket is None:
            raise ConnectionResetError("not connected")
        return self._socket

    def close(self) -> None:
        """End the connection; what waits is lost."""
        if self._socket is None:
            return
        self._transport.unwatch(self._socket)
        self._socket.close()
        self._socket, self._mask = None, 0
        self._unsent.clear()
        self.unsent_bytes = 0
        if self.connected:
            self.connected = False
            self._transport.link_down(self.node)


class _Caller:
    """An accepted connection: a stranger until its Hello, then a peer's."""

    def __init__(self, transport: PeerTransport, sock: socket.socket, now: float) -> None:
        self.socket = sock
        self.node: Node | None = None
        self.since = now
        self._transport = transport
        self._reader = FrameReader(HELLO_BYTES_MAX)
        transport.watch(sock, _READ, self)

    def ready(self, mask: int) -> None:
        """Read what has come and hand out whole messages."""
        try:
            for _ in range(_READS_MAX):
                received = self.socket.recv(_READ_BYTES)
                if not received:
                    raise ConnectionResetError("peer closed")
                self._reader.feed(received)
                self._hand_out()
                if len(received) < _READ_BYTES:
                    return
        except BlockingIOError:
            return
        except BadFrame as error:
            who = self.node.id if self.node else "a stranger"
            _log.warning("connection of %s refused: %s", who, error)
            self._transport.hang_up(self)
        except OSError:
            self._transport.hang_up(self)

    def _hand_out(self) -> None:
        message = self._reader.next()
        while message is not None:
            if self.socket.fileno() < 0:
                return
            if self.node is None:
                self.node = self._transport.introduce(self, message)
                self._reader.bytes_max = MESSAGE_BYTES_MAX
            else:
                self._transport.receive(self.node, message)
            message = self._reader.next()


class PeerTransport(Transport):
    """PySyncObj's Transport and poller for one replica.

    `silenced` holds peers that this replica neither hears nor reaches: a partition, for tests.
    """

    ready: ClassVar[bool] = True  # PySyncObj asks; ours listens since it was made

    def __init__(self, config: EngineConfig, nodes: dict[str, Node], journal: Syncs) -> None:
        """Listen on this replica's address.

        Raises:
            ConsensusError: the port is taken.
        """
        super().__init__(None, None, [])
        self.replica = config.replica
        self.silenced: frozenset[str] = frozenset()
        self._journal = journal
        self._nodes = nodes
        self._selector = selectors.DefaultSelector()
        self._links = {
            name: _Link(self, node, parse_address(config.peers[name]))
            for name, node in nodes.items()
            if name != config.replica
        }
        self._callers: set[_Caller] = set()
        self._accept_at: float | None = None
        self._early: list[tuple[_Link, bytes]] = []
        self._late: list[tuple[_Link, bytes]] = []
        self._listener = self._listen(config.peers[config.replica])
        self._bell, self._bell_rope = socket.socketpair()
        self._bell.setblocking(False)
        self._bell_rope.setblocking(False)
        self._selector.register(self._bell, _READ, None)
        self._selector.register(self._listener, _READ, None)

    def _listen(self, address: str) -> socket.socket:
        host, port = parse_address(address)
        listener = socket.socket(
            socket.AF_INET6 if ":" in host else socket.AF_INET, socket.SOCK_STREAM
        )
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.setblocking(False)
        try:
            listener.bind((host, port))
            listener.listen(64)
        except OSError as error:
            listener.close()
            raise ConsensusError(
                f"replica {self.replica} cannot listen on {address}: {error}"
            ) from (error)
        return listener

    # --- called by the engine, in the tick thread

    def send(self, node: Node, message: Message | dict[str, Any]) -> bool:
        """Queue `message`; False if the peer is not connected or too far behind."""
        link = self._links[node.id]
        if not link.connected or node.id in self.silenced:
            return False
        if link.unsent_bytes > UNSENT_BYTES_MAX:
            return False
        if isinstance(message, dict):
            message = from_library(message)
        early = isinstance(message, Append | DumpChunk)
        frame = encode_frame(message)
        link.unsent_bytes += len(frame)  # counted from now, queued by flush
        (self._early if early else self._late).append((link, frame))
        return True

    def unsent_bytes(self, node: Node) -> int:
        """Return the bytes that wait for `node`."""
        return self._links[node.id].unsent_bytes

    def flush(self) -> None:
        """Write the entries, sync the journal, write the answers: see the module's text."""
        self._write(self._early)
        self._journal.sync()
        self._write(self._late)

    def _write(self, frames: list[tuple[_Link, bytes]]) -> None:
        links = set()
        for link, frame in frames:
            if link.connected:
                link.unsent_bytes = max(0, link.unsent_bytes - len(frame))
                link.queue(frame)
                links.add(link)
        frames.clear()
        for link in links:
            link.write()

    def poll(self, timeout_s: float) -> None:
        """Wait for sockets or the bell, at most `timeout_s`, and do what they bring."""
        now = monotonic()
        for link in self._links.values():
            link.dial(now)
        for caller in [c for c in self._callers if c.node is None]:
            if now - caller.since > _HELLO_WITHIN_S:
                self.hang_up(caller)
        if self._accept_at is not None and now >= self._accept_at:
            self._accept_at = None
            self._selector.register(self._listener, _READ, None)
        for key, mask in self._selector.select(timeout_s):
            if key.fileobj is self._bell:
                with contextlib.suppress(BlockingIOError):
                    self._bell.recv(4096)
            elif key.fileobj is self._listener:
                self._accept(now)
            elif key.fd in self._selector.get_map():
                key.data.ready(mask)

    def ring(self) -> None:
        """Wake `poll`; from any thread."""
        with contextlib.suppress(OSError):
            self._bell_rope.send(b"!")

    def destroy(self) -> None:
        """Close everything."""
        for link in self._links.values():
            link.close()
        for caller in list(self._callers):
            self.hang_up(caller)
        self._selector.close()
        for sock in (self._listener, self._bell, self._bell_rope):
            sock.close()

    # --- called by links and callers

    def watch(self, sock: socket.socket, mask: int, owner: Ready) -> None:
        """Tell `owner` when `sock` is ready for `mask`."""
        if sock.fileno() in self._selector.get_map():
            self._selector.modify(sock, mask, owner)
        else:
            self._selector.register(sock, mask, owner)

    def unwatch(self, sock: socket.socket) -> None:
        """Forget `sock`."""
        with contextlib.suppress(KeyError, ValueError):
            self._selector.unregister(sock)

    def link_up(self, node: Node) -> None:
        """Tell the engine that `node` can be reached."""
        self._onNodeConnected(node)

    def link_down(self, node: Node) -> None:
        """Tell the engine that `node` cannot be reached."""
        self._onNodeDisconnected(node)

    def introduce(self, caller: _Caller, message: Message) -> Node:
        """Return the peer that `message` introduces.

        Raises:
            BadFrame: it introduces nobody of this cell.
        """
        known = isinstance(message, Hello) and message.sender in self._links
        if not isinstance(message, Hello) or not known or message.receiver != self.replica:
            raise BadFrame("the first message is no hello of a peer to this replica")
        if message.protocol != PROTOCOL:
            raise BadFrame(f"peer speaks protocol {message.protocol}, this replica {PROTOCOL}")
        node = self._nodes[message.sender]
        for other in [c for c in self._callers if c.node == node and c is not caller]:
            self.hang_up(other)
        return node

    def receive(self, node: Node, message: Message) -> None:
        """Hand a peer's message to the engine."""
        if node.id not in self.silenced:
            self._onMessageReceived(node, message)

    def hang_up(self, caller: _Caller) -> None:
        """End an accepted connection."""
        self._callers.discard(caller)
        self.unwatch(caller.socket)
        caller.socket.close()

    def _accept(self, now: float) -> None:
        try:
            sock, _ = self._listener.accept()
        except OSError:  # the caller is gone, or descriptors are short: listen again later
            self._selector.unregister(self._listener)
            self._accept_at = now + _DIAL_EVERY_S
            return
        sock.setblocking(False)
        if sum(c.node is None for c in self._callers) >= STRANGERS_MAX:
            sock.close()
            return
        self._callers.add(_Caller(self, sock, now))
