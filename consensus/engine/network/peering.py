"""The connections to the peers: an outgoing link to each, and incoming connections from them.

Owned by the tick thread, which calls `poll` through PySyncObj. The dialling side sends Hello, the
other side answers Welcome or Goodbye; then messages flow in one direction only, from the dialling
side. Both sides check each other through the Gate, and again when the members change (`rejudge`). A
newer connection of a peer closes its older one, so that late bytes of an earlier process are not
read (S15). Messages that a slow peer cannot accept are dropped; only dialling is retried.

Persist before send: `flush` sends the messages of a tick. A leader's entries may be sent before
they are on its own disk, because it counts itself only after the same flush. Answers and votes are
sent after the journal's sync. Heartbeats and their answers contain only the term, which is synced
when it changes, so they are sent first. Hello, Welcome, Goodbye and Beat contain nothing that a
crash could undo.

It has no thread, socket or clock of its own, and runs unchanged on a simulated Network.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any, ClassVar, Final, Protocol

from pysyncobj.node import Node
from pysyncobj.transport import Transport

from consensus.config import EngineConfig
from consensus.engine.network.links import INTRODUCED_WITHIN_S, Caller, Gate, Link
from consensus.engine.network.net import Connection, Network
from consensus.engine.network.tcp import Complaints
from consensus.engine.network.wire import (
    MISTAKEN,
    NO_PROTOCOL,
    Append,
    DumpChunk,
    Goodbye,
    Heartbeat,
    HeartbeatAnswer,
    Hello,
    Message,
    Welcome,
    encode_frames,
    from_library,
    negotiate,
)
from consensus.limits import STRANGERS_MAX, UNSENT_BYTES_MAX

ANSWERS_S: Final = 0.003
"""How long a leader that has nothing else to do waits for the answer of another follower after one
came: a tick costs more than ten answers in it."""


class Syncs(Protocol):
    """The journal, which must be durable before an answer is sent."""

    def sync(self) -> None:
        """Make everything written durable."""


class PeerTransport(Transport):
    """PySyncObj's Transport and poller for one replica."""

    ready: ClassVar[bool] = True  # PySyncObj asks; this transport listens from its construction

    def __init__(
        self,
        config: EngineConfig,
        nodes: dict[str, Node],
        journal: Syncs,
        network: Network,
        mono: Callable[[], float],
        gate: Gate,
    ) -> None:
        """Listen on this replica's address; peers are dialled from the first `poll` on. `mono`
        returns seconds of a monotonic clock.

        Raises:
            ConsensusError: it cannot listen on the address.
        """
        super().__init__(None, None, [])
        self.replica = config.replica
        self.network, self.mono, self.gate = network, mono, gate
        self.complaints = Complaints(mono)
        self._cell = config.cell
        self._journal = journal
        self._nodes = nodes
        self._links = {
            name: Link(self, node, config.peers[name])
            for name, node in sorted(nodes.items())
            if name != config.replica
        }
        self._strangers: dict[Caller, None] = {}  # the oldest first
        self._callers: dict[str, Caller] = {}
        self.awaits_answers: Callable[[], bool] = lambda: False  # set by the engine
        self.pause_s: Callable[[], float] = lambda: float("inf")  # set by the engine
        network.listen(config.peers[config.replica], self._accept)

    # --- called by the engine, in the tick thread

    def send(self, node: Node, message: Message | dict[str, Any]) -> bool:
        """Queue `message`; False if the peer is not connected or too far behind."""
        link = self._links[node.id]
        if link.peer is None or link.unsent_bytes > UNSENT_BYTES_MAX:
            return False
        if isinstance(message, dict):
            message = from_library(message)
        match message:
            case Heartbeat() | HeartbeatAnswer():
                queue: list[bytes] | deque[bytes] = link.urgent
            case Append() | DumpChunk():
                queue = link.bulk
            case _:
                queue = link.late
        link.queue(encode_frames(message), queue)
        return True

    def unsent_bytes(self, node: Node) -> int:
        """Return the number of bytes queued for `node`."""
        return self._links[node.id].unsent_bytes

    def flush(self) -> None:
        """Send heartbeats and entries, sync the journal, send the rest; see the module."""
        for link in self._links.values():
            if link.urgent:
                link.flush(link.urgent)
        for link in self._links.values():
            link.flush_bulk()
        self._journal.sync()
        for link in self._links.values():
            if link.late:
                link.flush(link.late)

    def poll(self, timeout_s: float) -> None:
        """Wait for events or `ring`, at most `timeout_s`, and not when there is more to do; handle
        them."""
        now = self.mono()
        for link in self._links.values():
            link.tend(now)
        while self._strangers:
            oldest = next(iter(self._strangers))
            if now - oldest.since < INTRODUCED_WITHIN_S:
                break
            oldest.hang_up(f"it did not introduce itself in {INTRODUCED_WITHIN_S:g} s")
        # Asked here and not before the tick, whose work is done now: it need not be followed by one
        # that finds nothing to do.
        self.network.poll(min(timeout_s, self.pause_s()))
        for _ in range(len(self._links) - 1):
            if not self.awaits_answers():
                break
            self.network.poll(ANSWERS_S)

    def ring(self) -> None:
        """Wake `poll`; from any thread."""
        self.network.ring()

    def destroy(self) -> None:
        """Close everything without further events."""
        self.network.close()

    def peer(self, name: str) -> Hello | Welcome | None:
        """Return the peer's Hello or Welcome: of the outgoing connection, else of the incoming one.
        None if neither was accepted, or if the two belong to different disks.
        """
        link = self._links.get(name)
        answered = link.peer if link is not None else None
        caller = self._callers.get(name)
        called = caller.peer if caller is not None else None
        if answered is None or called is None:
            return answered or called
        return answered if answered.token == called.token else None

    def protocol(self, name: str) -> int:
        """Return the protocol version of messages to `name`; 0 while it is not connected."""
        return self._links[name].protocol

    def set_address(self, name: str, address: str) -> None:
        """Dial `name` at `address` from now on. An invalid address is only logged. This replica's
        own address never changes.
        """
        if name in self._links:
            self._links[name].move(address)

    def rejudge(self) -> None:
        """Check every connected peer again; send a Goodbye to each that is refused now. The engine
        and the gate learn of each loss before this returns.
        """
        for link in self._links.values():
            link.rejudge()
        for caller in list(self._callers.values()):
            caller.rejudge()

    def disconnect(self, name: str, reason: str) -> None:
        """Close the connections with the peer `name`, if there are any."""
        for connection in (self._links.get(name), self._callers.get(name)):
            if connection is not None:
                connection.hang_up(reason)

    # --- called by links and callers

    def link_changed(self, node: Node, *, is_up: bool) -> None:
        """Notify the engine that `node` is connected, or not any more."""
        if is_up:
            self._onNodeConnected(node)
        else:
            self._onNodeDisconnected(node)

    def greet(self, proven: str | None, hello: Hello) -> Welcome | Goodbye:
        """Return the answer to a Hello; `proven` is the authenticated id, None without TLS."""
        name = hello.sender
        if proven is not None and proven != name:
            return Goodbye(MISTAKEN, 0, f"the certificate proves {proven}, the hello says {name!r}")
        if hello.cell != self._cell or hello.receiver != self.replica:
            here = f"replica {self.replica} of cell {self._cell!r}"
            meant = f"{hello.receiver!r} of {hello.cell!r}"
            return Goodbye(MISTAKEN, 0, f"this is {here}, the hello is for {meant}")
        if name not in self._links:
            return Goodbye(MISTAKEN, 0, f"{self.replica} has no peer {name!r}")
        ours = self.gate.hello(name)
        protocol = negotiate(ours, hello)
        if not protocol:
            theirs = f"{hello.protocol_least} to {hello.protocol}"
            known = f"{ours.protocol_least} to {ours.protocol}"
            return Goodbye(NO_PROTOCOL, 0, f"speaks protocols {known}, the caller {theirs}")
        return self.gate.judge(hello) or self.gate.welcome(name, protocol)

    def introduced(self, caller: Caller, name: str) -> None:
        """Accept messages of `caller` as the peer `name`, and close its older connection."""
        self._strangers.pop(caller, None)
        older, self._callers[name] = self._callers.get(name), caller
        if older is not None:
            older.hang_up("a newer connection of it is here")

    def receive(self, name: str, message: Message) -> None:
        """Pass a peer's message to the engine."""
        self._onMessageReceived(self._nodes[name], message)

    def hung_up(self, caller: Caller, reason: str) -> None:
        """Forget `caller`; notify the gate if it was an accepted peer."""
        if caller.peer is None:
            self._strangers.pop(caller, None)
            self.complaints.say("stranger", f"connection of a stranger ended: {reason}")
            return
        name = caller.peer.sender
        if self._callers.get(name) is caller:
            del self._callers[name]
            self.complaints.say(f"caller {name}", f"{name} is not connected any more: {reason}")
            self.gate.caller_gone(name)

    def _accept(self, connection: Connection) -> None:
        # The newest connection is most likely a peer: idle connections must not keep it out, nor
        # those of one certificate the others.
        if len(self._strangers) >= STRANGERS_MAX:
            proven = [one.proven for one in self._strangers]
            most = max(proven, key=proven.count)
            oldest = next(one for one in self._strangers if one.proven == most)
            oldest.hang_up(f"{STRANGERS_MAX} strangers are here, and this one waits longest")
        caller = Caller(self, connection)
        self._strangers[caller] = None
        connection.adopt(caller)
