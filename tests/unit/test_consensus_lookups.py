"""Names of hosts: looked up aside, remembered, and never waited for by a tick."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from consensus.engine.network.lookups import AGAIN_AFTER_S, Lookups, resolve
from consensus.engine.network.net import Connection
from consensus.engine.network.sockets import SocketNetwork
from consensus.engine.network.streams import FOUND_WITHIN_S
from tests.fakes.certificates import CELL, files_of
from tests.unit.network_rig import Clock, Recorder, until
from tests.unit.socket_rig import Side, both_of, hear_out, in_thread


class Names:
    """A resolver that answers when a test says so."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.may_answer = threading.Event()
        self.answers: list[str] | OSError = ["127.0.0.1"]

    def __call__(self, host: str) -> list[str]:
        self.asked.append(host)
        assert self.may_answer.wait(60)
        if isinstance(self.answers, OSError):
            raise self.answers
        return list(self.answers)


@pytest.fixture
def named(tmp_path: Path) -> Iterator[tuple[tuple[Side, Side], Names]]:
    """Both sides, and the names that r2 looks up."""
    networks = [SocketNetwork(files_of(tmp_path / name, name), CELL) for name in ("r1", "r2")]
    near, far = (Side(network) for network in networks)
    near.listen()
    names = Names()
    far.network.lookups = Lookups(far.network.ring, far.network.mono, names)
    yield (near, far), names
    names.may_answer.set()
    near.network.close()
    far.network.close()


def dial_by_name(side: Side, to: Side, owner: Recorder) -> Connection:
    return side.network.dial(f"r1.example.com:{to.address.rsplit(':', 1)[1]}", "r1", owner)


def test_a_name_is_looked_up_without_making_anybody_wait(
    named: tuple[tuple[Side, Side], Names],
) -> None:
    (near, far), names = named
    owner = Recorder()
    start = time.monotonic()
    dial_by_name(far, near, owner)
    far.network.poll(0.0)
    assert time.monotonic() - start < 30.0
    assert owner.told == []
    names.may_answer.set()
    until(lambda: owner.is_connected, both_of((near, far)))
    assert names.asked == ["r1.example.com"]


def test_a_name_that_is_not_known_fails_the_dial(named: tuple[tuple[Side, Side], Names]) -> None:
    (near, far), names = named
    names.answers = socket.gaierror(-2, "Name or service not known")
    names.may_answer.set()
    owner = Recorder()
    dial_by_name(far, near, owner)
    until(lambda: owner.end is not None, [far.network])
    assert "r1.example.com" in str(owner.end)
    assert "not known" in str(owner.end)


def test_a_lookup_that_hangs_costs_one_thread_and_fails_the_dial(
    named: tuple[tuple[Side, Side], Names],
) -> None:
    (near, far), names = named
    clock = Clock()
    far.network.mono = clock  # type: ignore[method-assign]
    for _ in range(3):
        owner = Recorder()
        dial_by_name(far, near, owner)
        clock.now += FOUND_WITHIN_S + 0.1
        far.network.poll(0.0)
        assert owner.told == ["closed: no end of looking in time"]
    assert names.asked == ["r1.example.com"]


def test_the_last_answer_serves_while_none_comes() -> None:
    clock, rung, names = Clock(), threading.Semaphore(0), Names()
    lookups = Lookups(rung.release, clock, names)
    names.answers = ["10.0.0.1", "10.0.0.2"]
    assert lookups.find("r1.example.com") is None
    names.may_answer.set()
    assert rung.acquire(timeout=60)
    found = {lookups.find("r1.example.com") for _ in range(2)}
    assert found == {"10.0.0.1", "10.0.0.2"}, "each has its turn"
    assert len(names.asked) == 1
    names.answers = socket.gaierror(-3, "Temporary failure")
    clock.now += AGAIN_AFTER_S + 0.1
    assert lookups.find("r1.example.com") in found
    assert rung.acquire(timeout=60)
    assert lookups.find("r1.example.com") in found
    names.answers = ["10.0.0.3"]
    names.may_answer.clear()
    clock.now += AGAIN_AFTER_S + 0.1
    assert lookups.find("r1.example.com") in found
    names.may_answer.set()
    assert rung.acquire(timeout=60)
    assert lookups.find("r1.example.com") == "10.0.0.3"


@pytest.mark.parametrize("ip", ["127.0.0.1", "::1", "10.1.2.3"])
def test_an_ip_is_looked_up_by_nobody(ip: str) -> None:
    def refuse(host: str) -> list[str]:
        pytest.fail(f"{host} was looked up")

    assert Lookups(lambda: None, time.monotonic, refuse).find(ip) == ip


def test_the_system_knows_localhost() -> None:
    assert set(resolve("localhost")) <= {"127.0.0.1", "::1"}


def test_a_listener_waits_for_its_own_name(tmp_path: Path) -> None:
    side = Side(SocketNetwork(files_of(tmp_path, "r1"), CELL))
    names = Names()
    names.may_answer.set()
    side.network.lookups = Lookups(side.network.ring, side.network.mono, names)
    port = int(side.address.rsplit(":", 1)[1])
    side.network.listen(f"r1.example.com:{port}", side.take)
    with socket.create_connection(("127.0.0.1", port)) as caller:
        caller.sendall(b"no TLS, but heard")
        assert in_thread([side.network], lambda: hear_out(caller)) == b""
    side.network.close()
