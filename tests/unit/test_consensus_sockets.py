"""Real sockets behind the network's door, plain and with TLS: the contract, and what breaks."""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import resource
import socket
import struct
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from consensus.engine.network.net import Connection
from consensus.engine.network.sockets import SocketNetwork
from consensus.engine.network.streams import DIALLED_WITHIN_S
from consensus.engine.network.tcp import check_dialled
from consensus.errors import BadConfig, ConsensusError
from tests.fakes.certificates import CELL, files_of
from tests.fakes.ports import free_address
from tests.unit.network_rig import Clock, Recorder, until
from tests.unit.socket_rig import BIG, RESET_IN_WRAP, Side, both_of, is_over, joined

pytestmark = pytest.mark.filterwarnings(RESET_IN_WRAP)


@pytest.fixture(params=["plain", "tls"])
def sides(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[Side, Side]]:
    """r1, which listens, and r2."""
    files = {
        name: files_of(tmp_path / name, name) if request.param == "tls" else None
        for name in ("r1", "r2")
    }
    near, far = (Side(SocketNetwork(one, CELL)) for one in files.values())
    near.listen()
    yield near, far
    near.network.close()
    far.network.close()


# ---- the contract


def test_bytes_arrive_both_ways_in_order_and_all(sides: tuple[Side, Side]) -> None:
    ours, theirs, owner, their_owner = joined(sides)
    for place in range(0, len(BIG), 1_000_003):
        ours.write(BIG[place : place + 1_000_003])
        theirs.write(b"%d;" % place)
    assert ours.unsent_bytes > 0, "the kernel does not take five megabytes at once"
    until(lambda: len(their_owner.bytes) == len(BIG), both_of(sides))
    assert their_owner.bytes == BIG
    until(lambda: owner.bytes.endswith(b"5000015;"), both_of(sides))
    assert ours.unsent_bytes == theirs.unsent_bytes == 0
    assert owner.told[0] == their_owner.told[0] == "connected"


def test_what_is_written_before_it_is_connected_arrives(sides: tuple[Side, Side]) -> None:
    near, far = sides
    owner = Recorder()
    far.network.dial(near.address, "r1", owner).write(b"early")
    assert owner.told == [], "nobody is told outside of poll"
    until(lambda: bool(near.accepted) and near.accepted[0][1].bytes == b"early", both_of(sides))


def test_a_dial_that_fails_is_told_by_poll_alone(sides: tuple[Side, Side]) -> None:
    _, far = sides
    owner = Recorder()
    connection = far.network.dial(free_address(), "r1", owner)
    assert owner.told == []
    until(lambda: owner.end is not None, both_of(sides))
    assert owner.told == ["closed: connection refused"]
    connection.write(b"dropped")
    connection.close()
    assert connection.unsent_bytes == 0


def test_the_other_side_is_told_of_the_end_and_our_own_close_is_not_told_us(
    sides: tuple[Side, Side],
) -> None:
    ours, theirs, owner, their_owner = joined(sides)
    ours.write(b"last words")
    ours.close()
    ours.close()
    ours.write(b"dropped")
    until(lambda: their_owner.end is not None, both_of(sides))
    assert their_owner.bytes == b"last words"
    assert owner.end is None
    theirs.write(b"dropped too")
    theirs.close(after_ms=1_000)
    for network in both_of(sides):
        network.poll(0.0)
    assert their_owner.told.count("closed: closed by the other side") == 1


def test_who_closes_within_a_callback_hears_nothing_more(sides: tuple[Side, Side]) -> None:
    ours, _, _, their_owner = joined(sides)
    other, their_other, _, other_owner = joined(sides)

    def close_the_other(content: bytes) -> None:
        their_owner.bytes += content
        their_other.close()

    their_owner.received = close_the_other  # type: ignore[method-assign]
    ours.write(b"a")
    sides[1].network.poll(0.0)
    other.write(b"b" * 100)
    until(lambda: their_owner.bytes == b"a", [sides[0].network])
    told = list(other_owner.told)
    sides[0].network.poll(0.01)
    assert other_owner.told == told


@pytest.mark.parametrize("when", ["connected", "received", "closed"])
def test_what_an_owner_raises_goes_through(sides: tuple[Side, Side], when: str) -> None:
    near, far = sides

    def fail(*_: object) -> None:
        raise OSError(errno.ENOSPC, "no space left on device")

    def take(connection: Connection) -> None:
        owner = Recorder()
        setattr(owner, when, fail)
        connection.adopt(owner)
        near.accepted.append((connection, owner))

    near.take = take  # type: ignore[method-assign]
    near.network._accept = take
    ours = far.network.dial(near.address, "r1", Recorder())
    ours.write(b"a")
    with pytest.raises(OSError, match="no space"):
        until(lambda: False if when != "closed" else _close_when_heard(near, ours), both_of(sides))


def _close_when_heard(near: Side, ours: Connection) -> bool:
    if near.accepted and near.accepted[0][1].bytes == b"a":
        ours.close()
    return False


# ---- closing when everything has left


def test_what_was_written_leaves_before_the_end(sides: tuple[Side, Side]) -> None:
    ours, theirs, owner, their_owner = joined(sides)
    theirs.write(b"unread " * 1000)  # closing on these would be a reset, which overtakes
    sides[0].network.poll(0.0)
    ours.write(BIG)
    ours.close(after_ms=10_000)
    until(lambda: their_owner.end is not None, both_of(sides))
    assert their_owner.bytes == BIG
    assert owner.end is None
    until(lambda: is_over(ours), both_of(sides))


def test_who_does_not_listen_does_not_keep_a_connection(sides: tuple[Side, Side]) -> None:
    clock = Clock()
    sides[1].network.mono = clock  # type: ignore[method-assign]
    ours, _, _, _ = joined(sides)
    ours.write(BIG * 4)
    ours.close(after_ms=1_000)
    sides[1].network.poll(0.0)
    assert not is_over(ours)
    clock.now += 1.1
    sides[1].network.poll(0.0)
    assert is_over(ours)


# ---- listening


def test_a_port_that_is_taken_is_refused(sides: tuple[Side, Side]) -> None:
    near, far = sides
    with pytest.raises(ConsensusError, match=f"cannot listen on {near.address}: address already"):
        far.network.listen(near.address, far.take)


def test_without_tls_only_loopback_is_listened_on_or_dialled() -> None:
    side = Side(SocketNetwork(None, CELL))
    for address in ("0.0.0.0:7410", "10.0.0.1:7410", "r1.example.com:7410", "[::]:7410"):
        with pytest.raises(BadConfig, match="not loopback"):
            side.network.listen(address, side.take)
        owner = Recorder()
        side.network.dial(address, "r1", owner)
        until(lambda owner=owner: owner.end is not None, [side.network])  # type: ignore[misc]
        assert "not loopback" in str(owner.end)
    side.network.close()


def test_callers_that_leave_at_once_do_not_cost_the_listener(sides: tuple[Side, Side]) -> None:
    near, _ = sides
    host, port = near.address.rsplit(":", 1)
    for _ in range(40):
        with socket.create_connection((host, int(port))) as sock:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    joined(sides)


def test_without_descriptors_nobody_is_accepted_and_the_listener_stays(
    sides: tuple[Side, Side], caplog: pytest.LogCaptureFixture
) -> None:
    near, far = sides
    clock = Clock()
    near.network.mono = clock  # type: ignore[method-assign]
    owner = Recorder()
    host, port = near.address.rsplit(":", 1)
    with socket.socket() as caller:
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        highest = max(int(name) for name in os.listdir("/proc/self/fd"))
        with caplog.at_level(logging.WARNING, "consensus"), filled_up(highest):
            resource.setrlimit(resource.RLIMIT_NOFILE, (highest + 1, hard))
            try:
                caller.connect((host, int(port)))
                until(lambda: bool(caplog.records), [near.network])
                failed = far.network.dial(near.address, "r1", owner)
                far.network.poll(0.0)
            finally:
                resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        assert near.accepted == []
        assert [one.getMessage() for one in caplog.records] == [
            "cannot accept: too many open files"
        ]
        assert is_over(failed)
        assert owner.told == ["closed: too many open files"]
        clock.now += 0.3
        joined(sides)


@contextlib.contextmanager
def filled_up(highest: int) -> Iterator[None]:
    """Take every descriptor below `highest`."""
    taken = []
    try:
        while True:
            taken.append(os.dup(0))
            if taken[-1] > highest:
                os.close(taken.pop())
                break
        yield
    finally:
        for descriptor in taken:
            os.close(descriptor)


# ---- waiting


def test_a_ring_from_another_thread_ends_the_wait(sides: tuple[Side, Side]) -> None:
    network = sides[0].network
    network.ring()
    network.ring()
    network.poll(60.0)
    thread = threading.Thread(target=network.ring)
    thread.start()
    network.poll(60.0)
    thread.join()
    network.poll(0.0)
    start = time.monotonic()
    network.poll(0.05)
    assert time.monotonic() - start > 0.03, "every ring was heard"


def test_a_ring_after_the_end_does_nothing(sides: tuple[Side, Side]) -> None:
    sides[0].network.close()
    sides[0].network.ring()


def test_a_dial_into_a_black_hole_is_given_up_after_a_moment() -> None:
    far = Side(SocketNetwork(None, CELL))
    clock = Clock()
    far.network.mono = clock  # type: ignore[method-assign]
    with contextlib.ExitStack() as open_ones:
        hole = open_ones.enter_context(socket.socket())
        hole.bind(("127.0.0.1", 0))
        hole.listen(0)
        for _ in range(3):  # its queue is full: the kernel drops what comes
            caller = open_ones.enter_context(socket.socket())
            caller.setblocking(False)
            caller.connect_ex(hole.getsockname())
        owner = Recorder()
        far.network.dial(f"127.0.0.1:{hole.getsockname()[1]}", "r1", owner)
        clock.now += DIALLED_WITHIN_S - 0.1
        far.network.poll(0.0)
        assert owner.told == []
        clock.now += 0.2
        far.network.poll(0.0)
        assert owner.told == ["closed: no end of dialling in time"]
    far.network.close()


def test_a_socket_that_dialled_itself_is_found_out() -> None:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        sock.connect(sock.getsockname())
        with pytest.raises(ConnectionResetError, match="itself"):
            check_dialled(sock)
