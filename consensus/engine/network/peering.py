"""Peers: one link to each, on which this replica speaks, and callers, to whom it listens.

Owned by the tick thread, which calls `poll` through PySyncObj. Who dials says Hello, who answers
says Welcome or Goodbye, and messages follow one way only. Both judge each other through the Gate,
and again when the members change (`rejudge`). A newer connection of a peer ends its older one, so
that late bytes of a former life are not heard (S15). What a slow peer cannot take is dropped, as
networks do; nothing here is retried but dialling.

Persist before send: `flush` hands out what the tick has queued. A leader's entries may leave before
they are on its own disk (it counts itself only after the same flush); answers and votes leave
after the journal is synced. Heartbeats and their answers say no more than the term, which is synced
when it changes: they leave first. Hello, Welcome, Goodbye and Beat say nothing that a crash could
undo.

No thread, no socket and no clock of its own: it runs the same on a simulated Network.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any, ClassVar, Protocol

from pysyncobj.node import Node
from pysyncobj.transport import Transport

from consensus.engine.config import EngineConfig
from consensus.engine.network.callers import Caller
from consensus.engine.network.complaints import Complaints
from consensus.engine.network.links import Link
from consensus.engine.network.net import Connection, Network
from consensus.engine.network.station import INTRODUCED_WITHIN_S, Gate
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


class Syncs(Protocol):
    """What must be durable before an answer leaves."""

    def sync(self) -> None:
        """Make everything written durable."""


class PeerTransport(Transport):
    """PySyncObj's Transport and poller for one replica.

    `silenced` holds peers that this replica neither hears nor reaches: a partition, for tests.
    """

    ready: ClassVar[bool] = True  # PySyncObj asks; ours listens since it was made

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
        returns seconds that never go back.

        Raises:
            ConsensusError: the address cannot be listened on.
        """
        super().__init__(None, None, [])
        self.replica = config.replica
        self.silenced: frozenset[str] = frozenset()
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
        network.listen(config.peers[config.replica], self._accept)

    # --- called by the engine, in the tick thread

    def send(self, node: Node, message: Message | dict[str, Any]) -> bool:
        """Queue `message`; False if the peer is not connected or too far behind."""
        link = self._links[node.id]
        if link.peer is None or node.id in self.silenced:
            return False
        if link.unsent_bytes > UNSENT_BYTES_MAX:
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
        """Return the bytes that wait for `node`."""
        return self._links[node.id].unsent_bytes

    def flush(self) -> None:
        """Write heartbeats and entries, sync the journal, write the rest: see the module's text."""
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
        """Wait for news or the bell, at most `timeout_s`, and do what they bring."""
        now = self.mono()
        for link in self._links.values():
            link.tend(now)
        while self._strangers:
            oldest = next(iter(self._strangers))
            if now - oldest.since < INTRODUCED_WITHIN_S:
                break
            oldest.hang_up(f"it did not introduce itself in {INTRODUCED_WITHIN_S:g} s")
        self.network.poll(timeout_s)

    def ring(self) -> None:
        """Wake `poll`; from any thread."""
        self.network.ring()

    def destroy(self) -> None:
        """Close everything; nobody is told."""
        self.network.close()

    def peer(self, name: str) -> Hello | Welcome | None:
        """Return who is at the other end: what answered our dial, or else who dialled us. None if
        nobody was judged good, or if the two are different disks: then nobody can say who."""
        link = self._links.get(name)
        answered = link.peer if link is not None else None
        caller = self._callers.get(name)
        called = caller.hello if caller is not None else None
        if answered is None or called is None:
            return answered or called
        return answered if answered.token == called.token else None

    def protocol(self, name: str) -> int:
        """Return the protocol of what is sent to `name`, 0 while it cannot be reached."""
        return self._links[name].protocol

    def set_address(self, name: str, address: str) -> None:
        """Dial `name` at `address` from now on. What cannot be dialled is only complained of. This
        replica's own address is what it was started with."""
        if name in self._links:
            self._links[name].move(address)

    def rejudge(self) -> None:
        """Ask the gate again about everybody who is connected; who is refused now is told so, and
        the engine and the gate hear of each loss before this returns."""
        for link in self._links.values():
            link.rejudge()
        for caller in list(self._callers.values()):
            caller.rejudge()

    # --- called by links and callers

    def link_up(self, node: Node) -> None:
        """Tell the engine that `node` can be reached."""
        self._onNodeConnected(node)

    def link_down(self, node: Node) -> None:
        """Tell the engine that `node` cannot be reached."""
        self._onNodeDisconnected(node)

    def greet(self, proven: str | None, hello: Hello) -> Welcome | Goodbye:
        """Return the answer to a Hello of who proved to be `proven`, None where there is no TLS."""
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

    def introduced(self, caller: Caller) -> None:
        """Listen to `caller` from now on, and to no older connection of its name."""
        if caller.hello is None:
            return
        self._strangers.pop(caller, None)
        older, self._callers[caller.hello.sender] = self._callers.get(caller.hello.sender), caller
        if older is not None:
            older.hang_up("a newer connection of it is here")

    def receive(self, name: str, message: Message) -> None:
        """Hand a peer's message to the engine."""
        if name not in self.silenced:
            self._onMessageReceived(self._nodes[name], message)

    def hung_up(self, caller: Caller, reason: str) -> None:
        """Forget `caller`; if it was a peer's voice, the gate hears of it."""
        if caller.hello is None:
            self._strangers.pop(caller, None)
            self.complaints.say("stranger", f"connection of a stranger ended: {reason}")
            return
        name = caller.hello.sender
        if self._callers.get(name) is caller:
            del self._callers[name]
            self.complaints.say(f"caller {name}", f"{name} is not heard any more: {reason}")
            self.gate.caller_gone(name)

    def _accept(self, connection: Connection) -> None:
        # The newest stranger is the likeliest to be a peer: idle ones must not keep it out, nor one
        # replica's certificate those of others.
        if len(self._strangers) >= STRANGERS_MAX:
            proven = [one.proven for one in self._strangers]
            most = max(proven, key=proven.count)
            oldest = next(one for one in self._strangers if one.proven == most)
            oldest.hang_up(f"{STRANGERS_MAX} strangers are here, and this one waits longest")
        caller = Caller(self, connection)
        self._strangers[caller] = None
        connection.adopt(caller)
