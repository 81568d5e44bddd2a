"""A network of TCP connections between simulated machines; it implements the engine's Network.

What TCP promises holds: bytes arrive in order or the connection ends. All else happens: bytes are
cut and joined anywhere, wait while packets are lost, stop one way while the other goes on, and
an end is noticed late or only by writing. A killed process's kernel closes its connections; a
machine without power says nothing, and answers with a reset when it is back.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable
from typing import Final

from consensus.engine.network import links
from consensus.engine.network.net import Connection, Owner
from consensus.errors import ConsensusError, invariant
from tests.simulation.engine.events import Events

RETRY_S: Final = 0.2
"""A lost packet is sent again after this."""
GIVE_UP_S: Final = 5.0
"""TCP_USER_TIMEOUT: how long bytes may go without an acknowledgement."""
DIAL_S: Final = 3.0
WINDOW_BYTES: Final = 1024 * 1024
"""What a kernel takes for a process that does not read."""


class Fabric:
    """All wires. `cut` holds pairs (from, to) of machines between which nothing passes that way."""

    def __init__(self, events: Events, rng: random.Random) -> None:
        self.events = events
        self.rng = rng
        self.cut: set[tuple[str, str]] = set()
        self.off: set[str] = set()
        self.latency_s = (0.0002, 0.003)
        self.loss = 0.0
        self.bytes_per_s = 200e6
        self.machines: dict[str, str] = {}
        self.listening: dict[str, SimNetwork] = {}

    def passes(self, source: str, target: str) -> bool:
        """Whether a packet arrives now, but for chance."""
        return (source, target) not in self.cut and target not in self.off

    def draw_latency(self) -> float:
        """How long a packet takes."""
        low, high = self.latency_s
        return low + (high - low) * self.rng.random()


class _Stream:
    """One direction of a connection: bytes on their way from `source` to `target`."""

    __slots__ = (
        "_arrives_at", "_ends_at", "_fabric", "_free_at", "_stall_since", "_unacked",
        "_unacked_since", "_waiting", "source", "target",
    )  # fmt: skip

    def __init__(self, fabric: Fabric, source: SimConnection) -> None:
        self.source = source
        self.target: SimConnection | None = None
        self._fabric = fabric
        self._free_at = 0.0
        self._arrives_at = 0.0
        self._ends_at = float("inf")
        self._waiting: deque[bytes | None] = deque()
        self._stall_since = 0.0
        self._unacked = 0
        self._unacked_since = 0.0

    def begin(self, target: SimConnection, arrives_at: float) -> None:
        """The other end exists; nothing arrives there before `arrives_at`."""
        self.target, self._arrives_at = target, arrives_at

    def send(self, content: bytes | None, lag_s: float) -> None:
        """Let `content` arrive in a while; None is the end of the stream."""
        fabric = self._fabric
        start = max(self._free_at, fabric.events.now + lag_s)
        self._free_at = start + (len(content) / fabric.bytes_per_s if content else 0.0)
        due = max(self._free_at + fabric.draw_latency(), self._arrives_at + 1e-7)
        self._arrives_at = due
        fabric.events.at(due, self._arrive, content)

    def vanish(self, *, keep_s: float) -> None:
        """Lose what has not arrived within `keep_s`."""
        self._ends_at = self._fabric.events.now + keep_s
        self._waiting.clear()

    def _arrive(self, content: bytes | None) -> None:
        fabric = self._fabric
        now = fabric.events.now
        if now > self._ends_at or self.target is None:
            return
        if self._waiting:
            self._waiting.append(content)
        elif self._blocked():
            self._waiting.append(content)
            self._stall_since = now
            fabric.events.after(RETRY_S, self._retry)
        else:
            self._deliver(content)

    def _blocked(self) -> bool:
        fabric, target = self._fabric, self.target
        if target is None or not fabric.passes(self.source.machine, target.machine):
            return True
        if target.over:
            return not fabric.passes(target.machine, self.source.machine)
        if target.inbox_bytes > WINDOW_BYTES:
            return True
        return fabric.loss > 0 and fabric.rng.random() < fabric.loss

    def _retry(self) -> None:
        now = self._fabric.events.now
        if not self._waiting or now > self._ends_at:
            return
        if self._blocked():
            if now - self._stall_since > GIVE_UP_S:
                self._waiting.clear()
                self._ends_at = now
                self.source.broken("timed out")
                return
            self._fabric.events.after(RETRY_S, self._retry)
            return
        waiting, self._waiting = self._waiting, deque()
        for content in waiting:
            self._deliver(content)

    def _deliver(self, content: bytes | None) -> None:
        source, target = self.source, self.target
        invariant(target is not None, "bytes arrive nowhere")
        if target is None or target.over:  # nobody there: a reset goes back
            self._ends_at = self._fabric.events.now
            self._fabric.events.after(self._fabric.draw_latency(), source.broken, "reset by peer")
            return
        if content is None:
            target.finished("closed by peer")
            return
        target.arrived(content)
        if self._fabric.passes(target.machine, source.machine):
            source.left(len(content))
            return
        if not self._unacked:
            self._unacked_since = self._fabric.events.now
            self._fabric.events.after(RETRY_S, self._acknowledge)
        self._unacked += len(content)

    def _acknowledge(self) -> None:
        fabric, source = self._fabric, self.source
        if fabric.passes(source.peer_machine, source.machine):
            source.left(self._unacked)
            self._unacked = 0
        elif fabric.events.now - self._unacked_since > GIVE_UP_S:
            self._ends_at = fabric.events.now
            source.broken("timed out")
        else:
            fabric.events.after(RETRY_S, self._acknowledge)


class SimConnection:
    """One end of a connection."""

    proven: str | None = None

    def __init__(self, network: SimNetwork, peer_machine: str) -> None:
        self.machine = network.machine
        self.peer_machine = peer_machine
        self.network = network
        self.unsent_bytes = 0
        self.over = False
        self.inbox: list[bytes] = []
        self.inbox_bytes = 0
        self.outgoing = _Stream(network.fabric, self)
        self.owner: Owner | None = None
        self._ended: str | None = None

    # --- Connection

    def adopt(self, owner: Owner) -> None:
        self.owner = owner

    def write(self, content: bytes) -> None:
        if self.over:
            return
        rng = self.network.fabric.rng
        self.unsent_bytes += len(content)
        lag_s = self.network.lag_s
        if len(content) > 1 and rng.random() < 0.1:
            middle = rng.randrange(1, len(content))
            self.outgoing.send(content[:middle], lag_s)
            content = content[middle:]
        self.outgoing.send(content, lag_s)

    def close(self, *, after_ms: int = 0) -> None:
        if self.over:
            return
        self.over = True
        self.network.connections.pop(self, None)
        if after_ms or self.network.fabric.rng.random() < 0.5:
            self.outgoing.send(None, self.network.lag_s)
        else:
            self._reset()

    # --- what comes from the other side

    def arrived(self, content: bytes) -> None:
        """Keep `content` for the process."""
        self.network.fabric.events.mark(content)
        self.inbox.append(content)
        self.inbox_bytes += len(content)
        self.network.tell(self)

    def left(self, count: int) -> None:
        """The other side has `count` more of what was written: a process that waits with more is
        woken, as by a selector."""
        before, self.unsent_bytes = self.unsent_bytes, self.unsent_bytes - count
        if before >= links.WRITE_AHEAD_BYTES > self.unsent_bytes and not self.over:
            self.network.wake()

    def finished(self, reason: str) -> None:
        """Nothing more will come."""
        self._ended = reason
        self.network.tell(self)

    def broken(self, reason: str) -> None:
        """The connection is over; what was not read yet is lost."""
        if not self.over:
            self.inbox.clear()
            self.inbox_bytes = 0
            self.finished(reason)

    def vanish(self, *, power: bool) -> None:
        """The process is gone: its kernel ends the stream or resets it, or has no power either."""
        self.over = True
        rng = self.network.fabric.rng
        if power:
            self.outgoing.vanish(keep_s=rng.random() * 0.003)
        elif rng.random() < 0.6:
            self.outgoing.send(None, self.network.lag_s)
        else:
            self._reset()

    def _reset(self) -> None:
        fabric = self.network.fabric
        self.outgoing.vanish(keep_s=fabric.rng.random() * 0.003)
        other = self.outgoing.target
        if other is not None and fabric.passes(self.machine, self.peer_machine):
            fabric.events.after(0.003 + fabric.draw_latency(), other.broken, "reset by peer")

    @property
    def has_news(self) -> bool:
        """Whether there is something to report."""
        return bool(self.inbox) or self._ended is not None

    def report(self) -> None:
        """Tell the owner what has come."""
        if self.over or self.owner is None:
            return
        if self.inbox:
            content = b"".join(self.inbox) if len(self.inbox) > 1 else self.inbox[0]
            self.inbox.clear()
            rng = self.network.fabric.rng
            if len(content) > 1 and rng.random() < 0.05:
                middle = rng.randrange(1, len(content))
                self.inbox.append(content[middle:])
                content = content[:middle]
                self.network.tell(self)
            self.inbox_bytes = len(self.inbox[0]) if self.inbox else 0
            self.owner.received(content)
        if self._ended is not None and not self.inbox and not self.over:
            self.over = True
            self.network.connections.pop(self, None)
            self.owner.closed(self._ended)


class SimNetwork:
    """One process's connections. `lag_s` is how far the process is ahead of the world's clock while
    it works; `wake` is called when there is something to `poll` for. `wait_s` is how long the first
    `poll` since it was None would have waited."""

    def __init__(self, fabric: Fabric, machine: str, wake: Callable[[], None]) -> None:
        self.fabric = fabric
        self.machine = machine
        self.lag_s = 0.0
        self.wait_s: float | None = None
        self.gone = False
        self.connections: dict[SimConnection, None] = {}
        self._wake = wake
        self._address: str | None = None
        self._accept: Callable[[Connection], None] | None = None
        self._news: deque[Callable[[], None]] = deque()
        self._told: dict[SimConnection, None] = {}

    # --- Network

    def listen(self, address: str, accept: Callable[[Connection], None]) -> None:
        if self.fabric.listening.get(address, self) is not self:
            raise ConsensusError(f"{address} is taken")
        self._address, self._accept = address, accept
        self.fabric.listening[address] = self

    def dial(self, address: str, expected: str, owner: Owner) -> Connection:
        connection = SimConnection(self, self.fabric.machines.get(address, "nowhere"))
        connection.adopt(owner)
        self.connections[connection] = None
        fabric = self.fabric
        fabric.events.after(
            self.lag_s + fabric.draw_latency(), self._knock, connection, address, fabric.events.now
        )
        return connection

    def poll(self, timeout_s: float) -> None:
        """Tell the owners what is there; the world waits instead of us, as `wait_s` says."""
        if self.wait_s is None:
            self.wait_s = 0.0 if self.has_news else timeout_s
        news, self._news = self._news, deque()
        for item in news:
            item()
        told, self._told = self._told, {}
        for connection in told:
            connection.report()

    def ring(self) -> None:
        self.wake()

    def wake(self) -> None:
        """Let the process poll soon."""
        if not self.gone:
            self._wake()

    def close(self) -> None:
        self.die(power=False)

    # --- the world's side

    @property
    def has_news(self) -> bool:
        """Whether `poll` would tell anything."""
        return bool(self._news or self._told)

    def tell(self, connection: SimConnection) -> None:
        """Let the next `poll` report about `connection`."""
        if not self.gone and not connection.over:
            self._told[connection] = None
            self._wake()

    def die(self, *, power: bool) -> None:
        """The process is gone, and with `power` the machine too."""
        self.gone = True
        for connection in list(self.connections):
            connection.vanish(power=power)
        self.connections.clear()
        if self._address is not None and self.fabric.listening.get(self._address) is self:
            del self.fabric.listening[self._address]

    def _knock(self, connection: SimConnection, address: str, since_s: float) -> None:
        if connection.over:
            return
        fabric = self.fabric
        target = fabric.machines.get(address, "nowhere")
        connection.peer_machine = target
        both = fabric.passes(self.machine, target) and fabric.passes(target, self.machine)
        if target == "nowhere" or not both or fabric.rng.random() < fabric.loss:
            if fabric.events.now - since_s > DIAL_S:
                connection.broken("dial timed out")
            else:
                fabric.events.after(RETRY_S, self._knock, connection, address, since_s)
            return
        host = fabric.listening.get(address)
        if host is None:
            fabric.events.after(fabric.draw_latency(), connection.broken, "connection refused")
            return
        accepted = SimConnection(host, self.machine)
        host.connections[accepted] = None
        opened = fabric.events.now + fabric.draw_latency()
        heard = opened + fabric.draw_latency()
        accepted.outgoing.begin(connection, heard)
        connection.outgoing.begin(accepted, heard)
        fabric.events.at(opened, self._opened, connection)
        fabric.events.at(heard, host.opened_to_us, accepted)

    def _opened(self, connection: SimConnection) -> None:
        owner = connection.owner
        if not connection.over and owner is not None:
            self._news.append(lambda: connection.over or owner.connected())
            self._wake()

    def opened_to_us(self, connection: SimConnection) -> None:
        """A connection has come in."""
        if not self.gone and not connection.over:
            self._news.append(lambda: self._take(connection))
            self._wake()

    def _take(self, connection: SimConnection) -> None:
        if self._accept is None or connection.over:
            return
        self._accept(connection)
        if connection.over:
            return
        invariant(connection.owner is not None, "an accepted connection has no owner")
        if connection.owner is not None:
            connection.owner.connected()
        if connection.has_news:
            self.tell(connection)
