"""Three Rafts of the engine in a seeded world of cuts, crashes and pauses: nothing disagrees.

Time, chance and network are the world's; journals and dumps are real files, so a crash keeps what
was synced and nothing else. A seed repeats its run exactly: `SEED=7 pytest <this file>`; more of
them with `SEED=100 SEEDS=500`.
"""

from __future__ import annotations

import asyncio
import heapq
import os
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pysyncobj.syncobj
import pytest
from pysyncobj.node import Node
from pysyncobj.transport import Transport

import consensus.engine.raft
from consensus.engine.config import EngineConfig
from consensus.engine.handover import Changed, Committed, Event, Handover, Restored, TakeDump
from consensus.engine.loading import load
from consensus.engine.network.wire import FrameReader, Message, encode_frame, from_library
from consensus.engine.raft import Raft
from consensus.engine.settings import Files
from consensus.engine.storage.dump import Dump, write_taken
from consensus.leadership import Position
from consensus.limits import MESSAGE_BYTES_MAX

IDS = ("r1", "r2", "r3")
FIRST, COUNT = int(os.environ.get("SEED", "0")), int(os.environ.get("SEEDS", "1"))
SEEDS = range(FIRST, FIRST + COUNT) if "SEED" in os.environ else range(12)
TICK_S, STALL_S, CALM_S = 0.04, 2.0, 15.0


class World:
    """The clock, the network between hosts, and what is known to be committed."""

    def __init__(self, seed: int, directory: Path) -> None:
        self.rng = random.Random(seed)
        self.directory = directory
        self.now = 0.0
        self.cut: set[tuple[str, str]] = set()
        self.canon: dict[int, tuple[bytes, int]] = {}
        self.leaders: dict[int, str] = {}
        self.dumps_received = 0
        self._heap: list[tuple[float, int, Callable[[], None]]] = []
        self._count = 0
        self.hosts = {name: Host(self, name) for name in IDS}

    def at(self, delay: float, action: Callable[[], None]) -> None:
        self._count += 1
        heapq.heappush(self._heap, (self.now + delay, self._count, action))

    def run(self, until: float) -> None:
        while self._heap and self._heap[0][0] <= until:
            self.now, _, action = heapq.heappop(self._heap)
            action()
        self.now = until

    def committed(self, host: str, entries: list[tuple[bytes, int, int]]) -> None:
        for command, index, term in entries:
            known = self.canon.setdefault(index, (command, term))
            assert known == (command, term), f"{host} applied another entry at {index}"

    def leads(self, host: str, term: int) -> None:
        assert self.leaders.setdefault(term, host) == host, f"two leaders in term {term}"


class WorldHandover(Handover):
    """Applies at once: the state is the list of commands; its own loop never runs."""

    def __init__(self, host: Host) -> None:
        self.host = host

    @property
    def entries(self) -> int:
        return 0

    def post(self, event: Event) -> None:
        self.host.take(event)


class WorldTransport(Transport):
    """One-way links in order, that stall when cut and break when stalled for long."""

    ready = True

    def __init__(self, host: Host) -> None:
        super().__init__(None, None, [])
        self.host = host
        self.up: set[str] = set()
        self.last: dict[str, float] = {}
        self.generation = 0
        self.queued: list[tuple[str, bytes]] = []

    def send(self, node: Node, message: Message | dict[str, Any]) -> bool:
        message = from_library(message) if isinstance(message, dict) else message
        if node.id in self.up:
            self.queued.append((node.id, encode_frame(message)))
        return node.id in self.up

    def flush(self) -> None:
        self.host.journal.sync()
        world = self.host.world
        for to, frame in self.queued:
            when = max(world.now + world.rng.uniform(0.0005, 0.01), self.last.get(to, 0.0) + 1e-6)
            self.last[to] = when
            link = (self, to, self.generation)
            world.at(when - world.now, lambda f=frame, k=link: deliver(world, f, k, world.now))
        self.queued = []

    def unsent_bytes(self, node: Node) -> int:
        return 0

    def poll(self, timeout_s: float) -> None:
        """Messages come by the world."""

    def ring(self) -> None:
        """Ticks come by the world."""

    def destroy(self) -> None:
        """Nothing to close."""

    def drop(self, to: str) -> None:
        if to in self.up:
            self.up.discard(to)
            self.generation += 1
            self._onNodeDisconnected(self.host.nodes[to])


def deliver(world: World, frame: bytes, link: tuple[WorldTransport, str, int], sent: float) -> None:
    transport, to, generation = link
    source, target = transport.host, world.hosts[to]
    if source.transport is not transport or transport.generation != generation:
        return
    if not source.alive or not target.alive or to not in transport.up:
        return
    if (source.name, to) in world.cut or target.paused:
        if world.now - sent > STALL_S and not target.paused:
            transport.drop(to)
            return
        world.at(0.1, lambda: deliver(world, frame, link, sent))
        return
    reader = FrameReader(MESSAGE_BYTES_MAX)
    reader.feed(frame)
    message = reader.next()
    assert message is not None
    target.hear(source.name, message)


class Host:
    """One replica: it can crash, restart from its files, and stand still."""

    def __init__(self, world: World, name: str) -> None:
        self.world = world
        self.name = name
        self.nodes = {other: Node(other) for other in IDS}
        self.alive = self.paused = False
        self.life = 0
        self.sent = 0
        self.acknowledged: list[bytes] = []

    def start(self) -> None:
        directory = self.world.directory / self.name
        directory.mkdir(exist_ok=True)
        files = Files(directory / "journal", directory / "dump")
        config = EngineConfig(
            replica=self.name,
            peers={name: f"127.0.0.1:{number}" for number, name in enumerate(IDS, 1)},
            data=str(directory),
            snapshot_entries=40,
            trailing_entries=5,
        )
        self.journal, dump = load(files, self.name)
        self.applied = dump.position if dump else Position()
        self.transport = WorldTransport(self)
        parts: Any = (self.journal, self.transport, WorldHandover(self))
        self.raft = Raft(config, self.nodes, parts, files, self.applied)
        self.alive, self.paused = True, False
        self.life += 1
        self.tick(self.life)

    def crash(self) -> None:
        self.alive = False
        os.close(self.journal._descriptor)
        for other in self.world.hosts.values():
            if other.alive:
                other.transport.drop(self.name)

    def tick(self, life: int) -> None:
        if life != self.life or not self.alive:
            return
        if not self.paused:
            self.connect()
            self.step()
        self.world.at(TICK_S, lambda: self.tick(life))

    def step(self) -> None:
        self.raft.doTick(0.0)
        if self.raft._isLeader():
            self.world.leads(self.name, self.raft._SyncObj__raftCurrentTerm)

    def connect(self) -> None:
        for other in self.world.hosts.values():
            fits = (
                other is not self and other.alive and (self.name, other.name) not in self.world.cut
            )
            if fits and other.name not in self.transport.up and self.world.rng.random() < 0.2:
                self.transport.up.add(other.name)
                self.transport._onNodeConnected(self.nodes[other.name])

    def hear(self, source: str, message: Message) -> None:
        self.transport._onMessageReceived(self.nodes[source], message)
        self.step()

    def offer(self) -> None:
        if self.alive and not self.paused and self.raft._isLeader():
            self.sent += 1
            self.raft.offer(self.sent, b"\x00%s/%d" % (self.name.encode(), self.sent) + b"." * 200)
            self.step()

    def take(self, event: Event) -> None:
        if isinstance(event, Committed):
            assert event.entries[0][1] == max(self.applied.index, 1) + 1, "a gap"
            self.world.committed(self.name, event.entries)
            _, index, term = event.entries[-1]
            self.applied = Position(term, index)
        elif isinstance(event, Restored):
            assert event.dump.state == self.state_at(event.dump.position.index)
            self.applied = event.dump.position
            self.world.dumps_received += 1
        elif isinstance(event, TakeDump):
            assert event.position == self.applied
            dump = Dump(event.position, self.state_at(event.position.index))
            write_taken(self.raft.files.taken, dump)
            life = self.life
            self.world.at(self.world.rng.uniform(0, 0.3), lambda: self.dumped(dump.position, life))
        elif isinstance(event, Changed):
            assert event.leadership.term >= 0

    def dumped(self, position: Position, life: int) -> None:
        if self.alive and life == self.life:
            self.raft.ask(lambda: self.raft.finish_dump(position, None))

    def state_at(self, index: int) -> bytes:
        return b"state at %d of %s" % (index, self.world.canon[index][0][:30]) * 20_000


def nemesis(world: World, until: float) -> None:
    """Do one bad thing now and then, and everything good at the end."""
    if world.now >= until:
        world.cut.clear()
        for host in world.hosts.values():
            host.paused = False
            if not host.alive:
                host.start()
        return
    victim = world.hosts[world.rng.choice(IDS)]
    pairs = {(victim.name, o) for o in IDS} | {(o, victim.name) for o in IDS}
    one_way = {pair for pair in pairs if pair[0] == victim.name}
    everybody = world.hosts.values()
    acts: list[Callable[[], object]] = [
        lambda: world.cut.update(pairs),
        lambda: world.cut.update(one_way),
        world.cut.clear,
        lambda: victim.alive and victim.crash(),
        lambda: [host.alive or host.start() for host in everybody],
        lambda: setattr(victim, "paused", True),
        lambda: [setattr(host, "paused", False) for host in everybody],
    ]
    world.rng.choices(acts, weights=(2, 1, 2, 2, 3, 1, 2))[0]()
    pause = min(world.rng.expovariate(1 / 2.5), until - world.now)
    world.at(pause, lambda: nemesis(world, until))


def client(world: World, until: float) -> None:
    """Append at whoever believes that it leads."""
    for host in world.hosts.values():
        host.offer()
    if world.now < until:
        world.at(world.rng.expovariate(12), lambda: client(world, until))


@pytest.fixture
def world(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[World]:
    made = World(request.param, tmp_path)
    monkeypatch.setattr(pysyncobj.syncobj, "monotonicTime", lambda: made.now)
    monkeypatch.setattr(consensus.engine.raft, "monotonic", lambda: made.now)
    monkeypatch.setattr(pysyncobj.syncobj, "random", made.rng)
    monkeypatch.setattr(os, "fdatasync", lambda _: None)
    monkeypatch.setattr(os, "fsync", lambda _: None)
    yield made
    for host in made.hosts.values():
        if host.alive:
            os.close(host.journal._descriptor)
    asyncio.set_event_loop(None)


@pytest.mark.slow
@pytest.mark.parametrize("world", SEEDS, indirect=True)
def test_no_order_of_faults_makes_replicas_disagree(world: World) -> None:
    for host in world.hosts.values():
        host.start()
    faults_end = 60.0
    world.at(3.0, lambda: nemesis(world, faults_end))
    client(world, faults_end + CALM_S / 2)
    world.run(faults_end + CALM_S / 4)
    before = len(world.canon)
    world.run(faults_end + CALM_S)
    applied = {host.applied for host in world.hosts.values()}
    assert len(applied) == 1, f"not level {CALM_S} s after the last fault: {applied}"
    leaders = [host.name for host in world.hosts.values() if host.raft._isLeader()]
    assert len(leaders) == 1
    assert len(world.canon) > before + 20, "no progress after the last fault"
