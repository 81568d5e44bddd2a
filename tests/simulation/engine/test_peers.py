"""The real PeerTransport on the simulated network: all arrives in order, and links come back."""

from __future__ import annotations

import random
from typing import Any

import pytest
from pysyncobj.node import Node

from consensus.config import EngineConfig
from consensus.engine.network.peering import PeerTransport
from consensus.engine.network.wire import (
    PROTOCOL,
    PROTOCOL_LEAST,
    Goodbye,
    Hello,
    Message,
    Vote,
    Welcome,
)
from tests.simulation.engine.events import Events
from tests.simulation.engine.network import Fabric, SimNetwork

NAMES = ("a", "b", "c")
PEERS = {name: f"127.0.0.{place}:7000" for place, name in enumerate(NAMES, 1)}


class OpenGate:
    """Everybody may speak."""

    def __init__(self, name: str, token: int) -> None:
        self.name = name
        self.token = token
        self.gone: list[str] = []

    def hello(self, to: str) -> Hello:
        return Hello(PROTOCOL, PROTOCOL_LEAST, "default", self.name, to, 0, self.token, False)

    def welcome(self, to: str, protocol: int) -> Welcome:
        return Welcome(protocol, self.name, 0, self.token, False)

    def judge(self, caller: Hello | Welcome) -> Goodbye | None:
        return None

    def refused(self, by: str, goodbye: Goodbye) -> None:
        raise AssertionError(f"{by} refuses {self.name}: {goodbye}")

    def caller_gone(self, name: str) -> None:
        self.gone.append(name)


class Cell:
    """Three transports that tell each other numbers."""

    def __init__(self, seed: int) -> None:
        self.events = Events()
        self.rng = random.Random(seed)
        self.fabric = Fabric(self.events, self.rng)
        self.lives = dict.fromkeys(NAMES, 0)
        self.transports: dict[str, PeerTransport] = {}
        self.sent = 0
        self.heard: dict[tuple[str, int, str], list[int]] = {}
        for name in NAMES:
            self.fabric.machines[PEERS[name]] = name
            self.start(name)

    def start(self, name: str) -> None:
        self.lives[name] += 1
        life = self.lives[name]
        nodes = {peer: Node(peer) for peer in NAMES}
        config = EngineConfig(replica=name, peers=PEERS, data="")
        network = SimNetwork(self.fabric, name, lambda: self.wake(name, life))
        transport: Any = PeerTransport(
            config, nodes, self, network, lambda: self.events.now, OpenGate(name, life)
        )
        transport.setOnMessageReceivedCallback(
            lambda node, message: self.hear(name, life, node, message)
        )
        self.transports[name] = transport
        self.tick(name, life)

    def sync(self) -> None:
        """There is no journal."""

    def wake(self, name: str, life: int) -> None:
        self.events.after(0.0001, self.poll, name, life)

    def poll(self, name: str, life: int) -> None:
        if self.lives[name] == life:
            self.transports[name].poll(0.0)

    def tick(self, name: str, life: int) -> None:
        if self.lives[name] != life:
            return
        self.poll(name, life)
        transport = self.transports[name]
        for peer in NAMES:
            if peer != name and self.rng.random() < 0.5:
                self.sent += 1
                transport.send(Node(peer), Vote(self.sent))
        transport.flush()
        self.events.after(0.05, self.tick, name, life)

    def hear(self, name: str, life: int, node: Node, message: Message) -> None:
        assert isinstance(message, Vote)
        self.heard.setdefault((name, life, node.id), []).append(message.term)

    def kill(self, name: str, *, power: bool) -> None:
        network: Any = self.transports[name].network
        network.die(power=power)
        self.lives[name] += 1
        self.start(name)

    def trouble(self) -> None:
        name, other = self.rng.sample(NAMES, 2)
        match self.rng.randrange(5):
            case 0:
                self.fabric.cut.add((name, other))
            case 1:
                self.fabric.cut |= {(name, other), (other, name)}
            case 2:
                self.fabric.cut.clear()
            case 3:
                self.kill(name, power=self.rng.random() < 0.5)
            case 4:
                self.fabric.loss = self.rng.choice((0.0, 0.1))

    def mend(self) -> None:
        self.fabric.cut.clear()
        self.fabric.loss = 0.0


@pytest.fixture(params=range(20))
def cell(request: pytest.FixtureRequest) -> Cell:
    made = Cell(request.param)
    for _ in range(30):
        made.events.run(made.events.now + made.rng.expovariate(1.0))
        made.trouble()
    made.mend()
    return made


def test_numbers_come_in_order_and_once(cell: Cell) -> None:
    cell.events.run(cell.events.now + 5.0)
    for numbers in cell.heard.values():
        assert numbers == sorted(set(numbers))
    assert sum(map(len, cell.heard.values())) > 300


def test_all_links_are_back_soon(cell: Cell) -> None:
    cell.events.run(cell.events.now + 6.0)
    before = cell.sent
    cell.events.run(cell.events.now + 2.0)
    lately = {
        (name, sender): [number for number in numbers if number > before]
        for (name, life, sender), numbers in cell.heard.items()
        if life == cell.lives[name]
    }
    assert len(lately) == 6
    assert all(len(numbers) > 5 for numbers in lately.values())
