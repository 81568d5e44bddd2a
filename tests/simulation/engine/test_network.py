"""The simulated network keeps what the engine's Network promises, and breaks all else."""

from __future__ import annotations

import random

import pytest

from consensus.engine.network.net import Connection
from consensus.errors import ConsensusError
from tests.simulation.engine.events import Events
from tests.simulation.engine.network import GIVE_UP_S, Fabric, SimConnection, SimNetwork

NAMES = {"a": "10.0.0.1:7", "b": "10.0.0.2:7"}


class Heard:
    """An Owner that remembers."""

    def __init__(self) -> None:
        self.up = 0
        self.content = b""
        self.sizes: list[int] = []
        self.ends: list[str] = []

    def connected(self) -> None:
        self.up += 1

    def received(self, content: bytes) -> None:
        self.content += content
        self.sizes.append(len(content))

    def closed(self, reason: str) -> None:
        self.ends.append(reason)


class Pair:
    """Two machines, `a` dials `b`; both poll whenever they are woken, unless they are stopped."""

    def __init__(self, seed: int = 0) -> None:
        self.events = Events()
        self.fabric = Fabric(self.events, random.Random(seed))
        self.stopped: set[str] = set()
        self.networks = {name: self.network(name) for name in NAMES}
        self.there = Heard()
        self.accepted: list[Connection] = []
        self.here = Heard()
        self.listen()
        self.connection = self.networks["a"].dial(NAMES["b"], "b", self.here)

    def network(self, name: str) -> SimNetwork:
        self.fabric.machines[NAMES[name]] = name
        network = SimNetwork(self.fabric, name, lambda: self.events.after(0.0001, self.poll, name))
        return network

    def listen(self) -> None:
        self.networks["b"].listen(NAMES["b"], self.accept)

    def accept(self, connection: Connection) -> None:
        self.accepted.append(connection)
        connection.adopt(self.there)

    def poll(self, name: str) -> None:
        if name not in self.stopped:
            self.networks[name].poll(0.0)

    def run(self, seconds: float) -> None:
        self.events.run(self.events.now + seconds)


@pytest.fixture
def pair() -> Pair:
    made = Pair()
    made.run(1.0)
    return made


def test_a_dial_is_heard_on_both_sides(pair: Pair) -> None:
    assert (pair.here.up, pair.there.up) == (1, 1)
    assert pair.connection.proven is None


@pytest.mark.parametrize("seed", range(30))
def test_bytes_arrive_in_order_whatever_is_lost_on_the_way(seed: int) -> None:
    pair = Pair(seed)
    pair.run(1.0)
    pair.fabric.loss = 0.3
    sent = b""
    for number in range(200):
        content = number.to_bytes(2, "big") * (number % 7 + 1)
        sent += content
        pair.connection.write(content)
        pair.run(0.003)
    pair.fabric.loss = 0.0
    pair.run(10.0)
    assert pair.there.content == sent
    assert pair.connection.unsent_bytes == 0


def test_writes_are_cut_and_joined() -> None:
    sizes = set()
    for seed in range(40):
        pair = Pair(seed)
        pair.run(1.0)
        for _ in range(3):
            pair.connection.write(b"0123456789")
        pair.run(1.0)
        assert pair.there.content == b"0123456789" * 3
        sizes.update(pair.there.sizes)
    assert {10, 20, 30} <= sizes
    assert any(size % 10 for size in sizes)


def test_what_waits_is_counted(pair: Pair) -> None:
    pair.fabric.cut.add(("a", "b"))
    pair.connection.write(b"x" * 100)
    pair.run(0.5)
    assert pair.connection.unsent_bytes == 100


def test_a_cut_that_is_mended_soon_loses_nothing(pair: Pair) -> None:
    pair.fabric.cut.add(("a", "b"))
    pair.connection.write(b"first")
    pair.run(2.0)
    pair.connection.write(b" second")
    assert pair.there.content == b""
    pair.fabric.cut.clear()
    pair.run(1.0)
    assert pair.there.content == b"first second"


def test_only_the_writer_notices_a_long_cut(pair: Pair) -> None:
    pair.fabric.cut |= {("a", "b"), ("b", "a")}
    pair.connection.write(b"lost")
    pair.run(GIVE_UP_S + 1.0)
    assert pair.here.ends == ["timed out"]
    assert pair.there.ends == []


def test_one_way_bytes_arrive_and_their_writer_gives_up_without_acknowledgement(pair: Pair) -> None:
    pair.fabric.cut.add(("b", "a"))
    pair.connection.write(b"heard")
    pair.run(1.0)
    assert pair.there.content == b"heard"
    assert pair.connection.unsent_bytes == 5
    pair.run(GIVE_UP_S)
    assert pair.here.ends == ["timed out"]


def test_a_half_open_connection_is_reset_by_writing(pair: Pair) -> None:
    pair.networks["a"].die(power=True)
    pair.run(20.0)
    assert pair.there.ends == []
    pair.accepted[0].write(b"anybody there?")
    pair.run(1.0)
    assert pair.there.ends == ["reset by peer"]


def test_a_machine_without_power_answers_nothing(pair: Pair) -> None:
    pair.fabric.off.add("b")
    pair.networks["b"].die(power=True)
    pair.connection.write(b"hello")
    pair.run(GIVE_UP_S - 1.0)
    assert pair.here.ends == []
    pair.run(2.0)
    assert pair.here.ends == ["timed out"]


@pytest.mark.parametrize("seed", range(20))
def test_a_killed_process_ends_its_connections(seed: int) -> None:
    pair = Pair(seed)
    pair.run(1.0)
    pair.connection.write(b"last words")
    pair.networks["a"].die(power=False)
    pair.run(1.0)
    assert len(pair.there.ends) == 1
    assert b"last words".startswith(pair.there.content)


def test_what_was_written_before_a_kill_arrives_or_not() -> None:
    heard = set()
    for seed in range(40):
        pair = Pair(seed)
        pair.run(1.0)
        pair.connection.write(b"last words")
        pair.networks["a"].die(power=False)
        pair.run(1.0)
        heard.add(pair.there.content)
    assert {b"", b"last words"} <= heard


def test_a_close_with_time_lets_everything_out(pair: Pair) -> None:
    pair.connection.write(b"goodbye")
    pair.connection.close(after_ms=500)
    pair.connection.write(b"too late")
    pair.run(1.0)
    assert pair.there.content == b"goodbye"
    assert pair.there.ends == ["closed by peer"]
    assert pair.here.ends == []


def test_a_stopped_process_finds_everything_when_it_wakes(pair: Pair) -> None:
    pair.stopped.add("b")
    for _ in range(50):
        pair.connection.write(b"beat")
        pair.run(0.1)
    assert pair.there.content == b""
    pair.stopped.clear()
    pair.poll("b")
    pair.run(0.1)
    assert pair.there.content == b"beat" * 50


def test_a_process_that_does_not_read_stops_the_writer(pair: Pair) -> None:
    pair.stopped.add("b")
    for _ in range(4):
        pair.connection.write(bytes(1024 * 1024))
        pair.run(0.1)
    assert pair.connection.unsent_bytes >= 2 * 1024 * 1024


def test_nobody_listens(pair: Pair) -> None:
    pair.networks["b"].close()
    pair.run(1.0)
    again = Heard()
    pair.networks["a"].dial(NAMES["b"], "b", again)
    pair.run(1.0)
    assert again.ends == ["connection refused"]


def test_a_dial_into_a_cut_times_out(pair: Pair) -> None:
    pair.fabric.cut.add(("b", "a"))
    again = Heard()
    pair.networks["a"].dial(NAMES["b"], "b", again)
    pair.run(2.0)
    assert (again.up, again.ends) == (0, [])
    pair.run(3.0)
    assert again.ends == ["dial timed out"]


def test_an_address_is_listened_on_once(pair: Pair) -> None:
    other = SimNetwork(pair.fabric, "b", lambda: None)
    with pytest.raises(ConsensusError, match="taken"):
        other.listen(NAMES["b"], lambda connection: None)


def test_work_of_the_sender_delays_its_bytes(pair: Pair) -> None:
    pair.networks["a"].lag_s = 0.5
    pair.connection.write(b"late")
    pair.run(0.4)
    assert pair.there.content == b""
    pair.run(0.3)
    assert pair.there.content == b"late"


def test_an_owner_is_told_nothing_after_its_own_close(pair: Pair) -> None:
    pair.accepted[0].write(b"news")
    pair.run(0.0001)
    pair.connection.close()
    pair.run(1.0)
    assert (pair.here.content, pair.here.ends) == (b"", [])
    assert isinstance(pair.connection, SimConnection)
