"""What tests of the network stand on: owners that remember, gates that say what they are told, a
Network in memory, and transports that are polled until something is so."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any, TypeVar

from pysyncobj.node import Node

from consensus.config import EngineConfig
from consensus.engine.network.net import Connection, Network, Owner
from consensus.engine.network.peering import PeerTransport
from consensus.engine.network.wire import (
    PROTOCOL,
    PROTOCOL_LEAST,
    FrameReader,
    Goodbye,
    Hello,
    Message,
    Welcome,
    encode_frame,
)

IDS = ("r1", "r2", "r3")
WITHIN_S = 60.0
T = TypeVar("T")


def token_of(replica: str) -> int:
    """The disk of a replica where a test says nothing else."""
    return 100 + int(replica[1:])


def hello_of(sender: str, receiver: str = "r1", /, **changed: object) -> Hello:
    """A Hello that is in order, but for `changed`."""
    sound: dict[str, object] = {
        "protocol": PROTOCOL,
        "protocol_least": PROTOCOL_LEAST,
        "cell": "default",
        "sender": sender,
        "receiver": receiver,
        "number": 1,
        "token": token_of(sender) if sender in IDS else 999,
        "joins": False,
    }
    return Hello(**(sound | changed))  # type: ignore[arg-type]


class Recorder:
    """An Owner that remembers, in order, what it was told."""

    def __init__(self) -> None:
        self.told: list[str] = []
        self.bytes = b""

    def connected(self) -> None:
        self.told.append("connected")

    def received(self, content: bytes) -> None:
        if self.told[-1:] != ["received"]:
            self.told.append("received")
        self.bytes += content

    def closed(self, reason: str) -> None:
        self.told.append(f"closed: {reason}")

    @property
    def is_connected(self) -> bool:
        return "connected" in self.told

    @property
    def end(self) -> str | None:
        """Why it is over, None while it is not."""
        last = self.told[-1:]
        return last[0].removeprefix("closed: ") if last and last[0].startswith("closed") else None

    @property
    def messages(self) -> list[Message]:
        return frames_in(self.bytes)


def frames_in(stream: bytes) -> list[Message]:
    reader = FrameReader(1 << 24)
    reader.feed(stream)
    return list(iter(reader.next, None))


class FakeGate:
    """A Gate for one replica; `refuses` has what it answers to whom."""

    def __init__(self, replica: str) -> None:
        self.replica = replica
        self.token = token_of(replica)
        self.protocols = (PROTOCOL, PROTOCOL_LEAST)
        self.refuses: dict[str, Goodbye] = {}
        self.judged: list[Hello | Welcome] = []
        self.refusals: list[tuple[str, Goodbye]] = []
        self.gone: list[str] = []

    def hello(self, to: str) -> Hello:
        newest, oldest = self.protocols
        return Hello(newest, oldest, "default", self.replica, to, 1, self.token, False)

    def welcome(self, to: str, protocol: int) -> Welcome:
        return Welcome(protocol, self.replica, 1, self.token, False)

    def judge(self, caller: Hello | Welcome) -> Goodbye | None:
        self.judged.append(caller)
        return self.refuses.get(caller.sender)

    def refused(self, by: str, goodbye: Goodbye) -> None:
        self.refusals.append((by, goodbye))

    def caller_gone(self, name: str) -> None:
        self.gone.append(name)


class Steps:
    """A journal that counts its syncs into a common list."""

    def __init__(self, steps: list[str]) -> None:
        self.steps = steps

    def sync(self) -> None:
        self.steps.append("sync")


class Station:
    """One replica's transport, with all it told anybody."""

    def __init__(
        self,
        replica: str,
        peers: dict[str, str],
        network: Network,
        mono: Callable[[], float] = time.monotonic,
    ) -> None:
        self.network: Any = network  # in memory or of sockets: each has more than a Network
        self.gate = FakeGate(replica)
        self.steps: list[str] = []
        self.got: list[tuple[str, Message]] = []
        self.links: list[str] = []
        self.nodes = {name: Node(name) for name in peers}
        config = EngineConfig(replica=replica, peers=peers, data="nowhere")
        self.transport = PeerTransport(
            config, self.nodes, Steps(self.steps), network, mono, self.gate
        )
        self.transport.setOnMessageReceivedCallback(self._take)
        self.transport.setOnNodeConnectedCallback(lambda n: self.links.append(f"{n.id} up"))
        self.transport.setOnNodeDisconnectedCallback(lambda n: self.links.append(f"{n.id} down"))

    def _take(self, node: Node, message: Any) -> None:
        self.got.append((node.id, message))

    def send(self, to: str, *messages: Message) -> bool:
        """Send and flush; whether all were taken."""
        taken = [self.transport.send(self.nodes[to], message) for message in messages]
        self.transport.flush()
        return all(taken)

    def reaches(self, *names: str) -> bool:
        return all(self.transport.protocol(name) for name in names)


def until(
    is_so: Callable[[], bool], polled: Iterable[Network | PeerTransport], what: str = "it"
) -> None:
    """Poll in turn until `is_so`; fail after WITHIN_S."""
    parts = list(polled)
    deadline = time.monotonic() + WITHIN_S
    while not is_so():
        assert time.monotonic() < deadline, f"{what} did not come to be"
        for part in parts:
            part.poll(0.002)


# ---- a network in memory


class Clock:
    """Seconds that go on when a test says so."""

    def __init__(self) -> None:
        self.now = 1_000.0

    def __call__(self) -> float:
        return self.now


class End:
    """One end of a connection in memory."""

    def __init__(self, network: MemoryNetwork, proven: str | None) -> None:
        self.network, self.proven = network, proven
        self.owner: Owner | None = None
        self.other: End | None = None
        self.unsent_bytes = 0
        self.writes: list[bytes] = []
        self.closed_after_ms: int | None = None

    def adopt(self, owner: Owner) -> None:
        self.owner = owner

    def write(self, content: bytes) -> None:
        if self.closed_after_ms is None:
            self.writes.append(content)
            self._tell_other("received", content)

    def close(self, *, after_ms: int = 0) -> None:
        self.owner = None
        if self.closed_after_ms is None:
            self.closed_after_ms = after_ms
            self._tell_other("closed", "closed by the other side")

    def _tell_other(self, what: str, *told: object) -> None:
        if self.other is not None:
            self.other.network.events.append(partial(self.other.tell, what, *told))

    def tell(self, what: str, *told: object) -> None:
        if self.owner is not None:
            owner = self.owner
            if what == "closed":
                self.owner = None
            getattr(owner, what)(*told)


class MemoryNetwork:
    """A Network among those of one `World`: nothing is lost, everything arrives at the next
    poll."""

    def __init__(self, world: dict[str, MemoryNetwork], proves: str | None = None) -> None:
        self.world, self.proves = world, proves
        self.events: deque[Callable[[], None]] = deque()
        self.accept: Callable[[Connection], None] | None = None
        self.dialled: list[str] = []
        self.ends: list[End] = []
        self.rings = 0
        self.is_closed = False

    def listen(self, address: str, accept: Callable[[Connection], None]) -> None:
        self.world[address] = self
        self.accept = accept

    def dial(self, address: str, expected: str, owner: Owner) -> End:
        self.dialled.append(address)
        there = self.world.get(address)
        near = End(self, there.proves if there else None)
        near.adopt(owner)
        self.ends.append(near)
        if there is None:
            self.events.append(partial(near.tell, "closed", "connection refused"))
            return near
        far = End(there, self.proves)
        near.other, far.other = far, near
        there.ends.append(far)
        there.events.append(partial(there.take, far))
        self.events.append(partial(near.tell, "connected"))
        return near

    def take(self, end: End) -> None:
        assert self.accept is not None
        self.accept(end)
        end.tell("connected")

    def poll(self, timeout_s: float) -> None:
        for _ in range(len(self.events)):
            self.events.popleft()()

    def ring(self) -> None:
        self.rings += 1

    def close(self) -> None:
        self.is_closed = True


class Cell:
    """Three replicas' transports, or some of them, in memory, on one clock."""

    def __init__(self, *names: str) -> None:
        self.clock = Clock()
        self.world: dict[str, MemoryNetwork] = {}
        self.peers = {name: f"127.0.0.1:{7410 + n}" for n, name in enumerate(IDS)}
        self.stations: dict[str, Station] = {}
        for name in names:
            self.add(name)

    def add(self, name: str) -> Station:
        """Start a replica, anew if it was there."""
        network = MemoryNetwork(self.world)
        self.stations[name] = Station(name, self.peers, network, self.clock)
        return self.stations[name]

    def run(self, seconds: float = 0.0, step_s: float = 0.05) -> None:
        """Let everybody poll, until it is quiet, for as long as `seconds` in small steps."""
        end = self.clock.now + seconds
        while True:
            for _ in range(8):
                for station in list(self.stations.values()):
                    station.transport.poll(0.0)
            if self.clock.now >= end - 1e-9:
                return
            self.clock.now += step_s

    def stranger(self, to: str = "r1", proves: str | None = None) -> Stranger:
        """Somebody who dials `to`."""
        return Stranger(self, MemoryNetwork(self.world, proves), self.peers[to])


class Stranger:
    """Somebody with a connection to a replica, who says what a test says."""

    def __init__(self, cell: Cell, network: MemoryNetwork, address: str) -> None:
        self.cell, self.network = cell, network
        self.owner = Recorder()
        self.end = network.dial(address, "r1", self.owner)
        self.run()

    def say(self, *said: Message | bytes) -> None:
        """Write each on its own, and see what comes of it."""
        for one in said:
            self.end.write(one if isinstance(one, bytes) else encode_frame(one))
            self.run()

    def run(self) -> None:
        self.cell.run()
        self.network.poll(0.0)

    @property
    def answers(self) -> list[Message]:
        return self.owner.messages

    @property
    def is_over(self) -> bool:
        return self.owner.end is not None
