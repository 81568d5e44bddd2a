"""Attacks on the port of a replica: nothing changes, the peers get through, a line in the log."""

from __future__ import annotations

import contextlib
import logging
import pickle
import socket
import struct
import zlib
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import msgspec
import pytest

from consensus.engine.network.sockets import SocketNetwork
from consensus.engine.network.wire import (
    HEADER,
    MISTAKEN,
    PROTOCOL,
    Append,
    Goodbye,
    RequestVote,
    Vote,
    Welcome,
    encode_frame,
)
from consensus.limits import STRANGERS_MAX
from tests.fakes.certificates import CELL
from tests.fakes.ports import free_address
from tests.unit.network_rig import (
    Clock,
    Station,
    frames_in,
    hello_of,
    until,
)
from tests.unit.socket_rig import RESET_IN_WRAP, hear_out, in_thread, knock

pytestmark = pytest.mark.filterwarnings(RESET_IN_WRAP)

HELLO = encode_frame(hello_of("r2"))
APPEND = Append(4, 10, 9, 3, 1234, [(b"x", 10, 4)])


class Pair:
    """r1, which is attacked, and r2, its peer, over real sockets."""

    def __init__(self) -> None:
        self.peers = {name: free_address() for name in ("r1", "r2", "r3")}
        self.clock = Clock()
        self.one = Station("r1", self.peers, SocketNetwork(None, CELL), self.clock)
        self.two = Station("r2", self.peers, SocketNetwork(None, CELL), self.clock)
        self.address = self.peers["r1"]
        self.parts = (self.one.transport, self.two.transport)
        self.settle()

    def settle(self) -> None:
        until(lambda: self.one.reaches("r2") and self.two.reaches("r1"), self.parts, "the links")

    def knock(self, *said: bytes, is_patient: bool = False) -> bytes:
        """Let a stranger say something to r1; what it heard until it was cut off."""
        return in_thread(self.parts, lambda: knock(self.address, *said, is_patient=is_patient))

    def is_untouched(self) -> None:
        """Fail unless r1 heard nobody, kept its peer, and hears it now."""
        assert self.one.got == []
        assert self.one.gate.gone == []
        assert self.one.gate.refusals == []
        assert self.one.links == ["r2 up"]
        assert self.two.links == ["r1 up"]
        assert self.two.send("r1", Vote(77))
        until(lambda: self.one.got == [("r2", Vote(77))], self.parts, "the peer's message")


@pytest.fixture
def pair() -> Iterator[Pair]:
    both = Pair()
    yield both
    for part in both.parts:
        part.destroy()


def framed(body: bytes) -> bytes:
    return HEADER.pack(len(body), zlib.crc32(body)) + body


def packed(*fields: object) -> bytes:
    return framed(msgspec.msgpack.encode(list(fields)))


def flipped(frame: bytes) -> Iterator[bytes]:
    """Each bit of a frame turned over."""
    for place in range(len(frame)):
        for bit in range(8):
            other = bytearray(frame)
            other[place] ^= 1 << bit
            yield bytes(other)


class RunsCode:
    """A pickle that makes a directory when it is read."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[object, tuple[str]]:
        return (__import__("os").mkdir, (str(self.path),))


NO_MESSAGES = {
    "nothing": b"",
    "zeros": bytes(64),
    "length 0": struct.pack(">iI", 0, 0),
    "length -1": struct.pack(">iI", -1, 0) + HELLO,
    "length 2^31-1": struct.pack(">iI", 2**31 - 1, 0) + HELLO,
    "length over what a stranger may say": struct.pack(">iI", 1025, 0) + bytes(1025),
    "unknown tag": packed(99, 1, 1),
    "tag of text": packed("0", 2, 2, "default", "r2", "r1", 1, 102, False),
    "no tag": framed(b"\x90"),
    "missing fields": packed(0, 2, 2, "default", "r2"),
    "text for a number": packed(0, "2", 2, "default", "r2", "r1", 1, 102, False),
    "a number for a name": packed(0, 2, 2, "default", 2, "r1", 1, 102, False),
    "negative number": packed(0, 2, 2, "default", "r2", "r1", -1, 102, False),
    "number over 2^62": packed(0, 2, 2, "default", "r2", "r1", 2**63, 102, False),
    "a map": framed(msgspec.msgpack.encode({"type": "request_vote", "term": 2**63})),
    "no UTF-8": framed(b"\x99\x00\x02\x02\xa7default\xa2\xff\xfe\xa2r1\x01f\xc2"),
    "wrong checksum": HELLO[:4] + b"\0\0\0\0" + HELLO[8:],
    "a thousand arrays in one another": framed(b"\x9a" + HELLO[9:] + b"\x91" * 990 + b"\x90"),
    "only arrays in one another": framed(b"\x91" * 1000),
    "a list of four thousand million": framed(b"\xdd\xff\xff\xff\xff"),
    "bytes of four thousand million": framed(b"\x91\xc6\xff\xff\xff\xff"),
    "HTTP": b"GET / HTTP/1.1\r\nHost: r1\r\n\r\n",
    "TLS": bytes.fromhex("1603010200010001fc0303") + bytes(505),
    "SSH": b"SSH-2.0-OpenSSH_9.2p1\r\n",
    "a vote first": encode_frame(RequestVote(2**62, 2**62, 2**62)),
    "entries first": encode_frame(APPEND),
    "a welcome first": encode_frame(Welcome(PROTOCOL, "r2", 1, 102, False)),
    "a goodbye first": encode_frame(Goodbye("replaced", 9, "r1 was replaced")),
    "a hello and entries at once": HELLO + encode_frame(APPEND),
}


@pytest.mark.parametrize("said", NO_MESSAGES.values(), ids=NO_MESSAGES)
def test_what_is_no_hello_is_cut_off_without_an_answer(pair: Pair, said: bytes) -> None:
    said += b"\xff" * max(0, HEADER.size - len(said))
    assert pair.knock(said) == b""
    pair.is_untouched()


def test_pickles_are_not_read(pair: Pair, tmp_path: Path) -> None:
    marker = tmp_path / "owned"
    for protocol in range(pickle.HIGHEST_PROTOCOL + 1):
        evil = pickle.dumps(RunsCode(marker), protocol=protocol)
        squeezed = zlib.compress(evil)
        for said in (evil, framed(evil), struct.pack("<I", len(squeezed)) + squeezed):
            assert pair.knock(said + bytes(8)) == b""
    assert not marker.exists()
    pair.is_untouched()


def test_a_hello_with_any_bit_flipped_is_no_hello_of_the_peer(pair: Pair) -> None:
    hello = encode_frame(hello_of("r2", cell="other"))  # whole, it would be answered with why
    said = [frame for frame in flipped(hello) if frame != hello]
    for begin in range(0, len(said), 40):
        some = said[begin : begin + 40]
        answers = in_thread(pair.parts, partial(flood, pair, some))
        assert answers == [b""] * len(answers)
    pair.is_untouched()


def flood(pair: Pair, frames: list[bytes]) -> list[bytes]:
    """Say each on a connection of its own, and nothing more: a length that grew would make the
    replica wait for the rest."""
    heard = []
    host, port = pair.address.rsplit(":", 1)
    for frame in frames:
        with socket.create_connection((host, int(port)), timeout=60) as sock:
            sock.sendall(frame)
            with contextlib.suppress(OSError):  # it may be cut off by now
                sock.shutdown(socket.SHUT_WR)
            heard.append(hear_out(sock))
    return heard


def test_a_hello_that_ends_early_anywhere_is_none(pair: Pair) -> None:
    frames = [HELLO[:end] for end in range(len(HELLO))]
    assert in_thread(pair.parts, lambda: flood(pair, frames)) == [b""] * len(frames)
    pair.is_untouched()


def test_a_peer_may_speak_one_byte_at_a_time(pair: Pair) -> None:
    hello = encode_frame(hello_of("r3"))
    host, port = pair.address.rsplit(":", 1)

    def speak() -> None:
        with socket.create_connection((host, int(port)), timeout=60) as sock:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            for place in range(len(hello)):
                sock.sendall(hello[place : place + 1])
            assert isinstance(frames_in(sock.recv(4096))[0], Welcome)
            vote = encode_frame(Vote(5))
            for place in range(len(vote)):
                sock.sendall(vote[place : place + 1])

    in_thread(pair.parts, speak)
    until(lambda: pair.one.got == [("r3", Vote(5))], pair.parts)


@pytest.mark.parametrize(
    "changed",
    [
        {"sender": "r1"},
        {"sender": "mallory"},
        {"sender": "R2"},
        {"sender": "r2\0"},
        {"receiver": "r2"},
        {"cell": ""},
    ],
)
def test_who_is_no_peer_learns_why_and_no_more(pair: Pair, changed: dict[str, object]) -> None:
    hello = encode_frame(hello_of("r2", **changed))
    heard = frames_in(pair.knock(hello, encode_frame(APPEND), is_patient=True))
    assert [type(one) for one in heard] == [Goodbye]
    assert isinstance(heard[0], Goodbye)
    assert heard[0].reason == MISTAKEN
    pair.is_untouched()


@pytest.mark.parametrize(
    "said",
    [
        packed(2, 2**63),
        packed(2, -1),
        packed(3, 4, 10, -1, 3, 1234, []),
        packed(3, 4, 10, 9, 3, 1234, [[b"x", 10]]),
        packed(3, 4, 10, 9, 3, 1234, [["text", 10, 4]]),
        framed(b"\x97\x03\x04\x0a\x09\x03\x01\xdd\xff\xff\xff\xff"),
        framed(b"\x98\x03\x04\x0a\x09\x03\x01\x90" + b"\x91" * 100_000 + b"\x90"),
        packed(99, 1),
        HELLO,
        struct.pack(">II", 2**31 - 1, 0),
        bytes(8),
        framed(pickle.dumps({"type": "append_entries"})),
    ],
)
def test_even_who_is_believed_can_only_lose_its_connection(pair: Pair, said: bytes) -> None:
    hello = encode_frame(hello_of("r3"))
    heard = frames_in(pair.knock(hello, said, is_patient=True))
    assert [type(one) for one in heard] == [Welcome]
    assert pair.one.gate.gone == ["r3"]
    pair.one.gate.gone.clear()
    pair.is_untouched()


def test_a_recorded_connection_played_back_says_nothing(pair: Pair) -> None:
    recorded = HELLO + encode_frame(Vote(4)) + encode_frame(APPEND)
    assert pair.knock(recorded) == b""
    pair.is_untouched()
    # Who waits for the Welcome is believed without TLS; the peer takes its place back at once.
    pair.one.got.clear()
    assert frames_in(pair.knock(HELLO, b"\xff" * 8, is_patient=True))
    pair.clock.now += 1.0
    pair.settle()
    assert pair.two.send("r1", Vote(78))
    until(lambda: pair.one.got == [("r2", Vote(78))], pair.parts)


def test_a_hundred_idle_connections_keep_no_peer_out(
    pair: Pair, caplog: pytest.LogCaptureFixture
) -> None:
    host, port = pair.address.rsplit(":", 1)
    with contextlib.ExitStack() as crowd, caplog.at_level(logging.WARNING, "consensus"):
        for _ in range(100):
            crowd.enter_context(socket.create_connection((host, int(port)), timeout=60))
            pair.one.transport.poll(0.0)
        assert len(pair.one.network.streams) <= STRANGERS_MAX + 8
        three = Station("r3", pair.peers, SocketNetwork(None, CELL), pair.clock)
        until(lambda: three.reaches("r1"), (*pair.parts, three.transport))
        assert three.send("r1", Vote(3))
        until(lambda: pair.one.got == [("r3", Vote(3))], (*pair.parts, three.transport))
        three.transport.destroy()
    strange = [one for one in caplog.records if "stranger" in one.getMessage()]
    assert len(strange) <= 1, "a hundred of them make one line of the log at most"
    until(lambda: pair.one.gate.gone == ["r3"], pair.parts)
    pair.one.got.clear()
    pair.one.gate.gone.clear()
    pair.is_untouched()


def test_who_is_slow_loses_its_place_in_time(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("consensus.engine.network.handshakes.SHAKEN_WITHIN_S", 0.5)
    host, port = pair.address.rsplit(":", 1)
    with socket.create_connection((host, int(port)), timeout=60) as slow:

        def dawdle() -> bytes:
            for place in range(12):
                slow.sendall(HELLO[place : place + 1])
            return hear_out(slow)

        assert in_thread(pair.parts, dawdle) == b""
    pair.is_untouched()


def test_who_is_half_gone_is_forgotten(pair: Pair) -> None:
    host, port = pair.address.rsplit(":", 1)
    with socket.create_connection((host, int(port)), timeout=60) as half:
        half.sendall(encode_frame(hello_of("r3")))
        until(lambda: pair.one.transport.peer("r3") is not None, pair.parts)
        half.shutdown(socket.SHUT_WR)
        until(lambda: pair.one.gate.gone == ["r3"], pair.parts)
    pair.one.gate.gone.clear()
    pair.is_untouched()


def test_a_peer_that_reads_nothing_is_not_waited_for(pair: Pair) -> None:
    large = Append(4, 10, 9, 3, 1234, [(bytes(8 * 1024 * 1024), 10, 4)])
    taken = 0
    while pair.one.send("r2", large):
        taken += 1
        assert taken < 50, "what waits is not bounded"
    assert pair.one.links == ["r2 up"]

    def all_came() -> bool:
        pair.one.transport.flush()  # as each tick does
        return len(pair.two.got) == taken

    until(all_came, pair.parts)
    assert pair.one.send("r2", large)
