"""The wake-up between event loop and tick thread: no ring is lost, whenever it comes."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator
from typing import Any

import pytest

from consensus.engine.network.sockets import SocketNetwork


@pytest.fixture
def network() -> Iterator[SocketNetwork]:
    made = SocketNetwork(None, "default")
    yield made
    made.close()


class RingingWakeUp:
    """The wake-up's socket; somebody rings just before it is emptied."""

    def __init__(self, network: SocketNetwork, inner: socket.socket) -> None:
        self.network, self.inner = network, inner

    def recv(self, size: int) -> bytes:
        self.network.ring()
        return self.inner.recv(size)

    def close(self) -> None:
        self.inner.close()


def wakes(network: SocketNetwork) -> bool:
    """Whether a ring ends a poll that would take long."""
    network.ring()
    began = time.monotonic()
    network.poll(20.0)
    return time.monotonic() - began < 15.0


def test_a_ring_while_the_wake_up_is_emptied_does_not_silence_it(network: SocketNetwork) -> None:
    wake_up = network._wake_up
    ringing: Any = RingingWakeUp(network, wake_up)
    network._wake_up = ringing
    assert wakes(network)
    network._wake_up = wake_up
    network.poll(0.0)
    assert wakes(network)
    assert wakes(network)


def test_many_rings_are_one_wake(network: SocketNetwork) -> None:
    for _ in range(100_000):
        network.ring()
    assert wakes(network)
    began = time.monotonic()
    network.poll(0.05)
    assert time.monotonic() - began >= 0.04
