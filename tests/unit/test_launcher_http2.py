"""launcher.http2: calls against a server that says what a test has written down for it."""

from __future__ import annotations

import contextlib
import fcntl
import os
import resource
import socket
import struct
import threading
from collections.abc import Callable, Iterator

import pytest

from launcher import hpack, http2
from launcher.http2 import (
    ACK,
    CONTINUATION,
    DATA,
    END_HEADERS,
    END_STREAM,
    GOAWAY,
    HEADERS,
    PADDED,
    PING,
    RST_STREAM,
    SETTINGS,
    WINDOW_UPDATE,
    Http2Connection,
    NoAnswer,
    TooLong,
)
from launcher.http2 import _frame as frame
from launcher.reach import Unreached

WAIT_MS = 60_000
HELLO = frame(SETTINGS, 0, 0, b"")
OK = [("grpc-status", b"0")]


class Server:
    """The other end of a connection: what it read, and what it says."""

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        self.sock.settimeout(60)

    def say(self, *frames: bytes) -> None:
        self.sock.sendall(b"".join(frames))

    def hear(self) -> tuple[int, int, int, bytes]:
        """The next frame: kind, flags, stream and content."""
        head = self._exactly(9)
        length, kind, flags = int.from_bytes(head[:3], "big"), head[3], head[4]
        return kind, flags, int.from_bytes(head[5:], "big"), self._exactly(length)

    def hear_until(self, wanted: int, flag: int = 0) -> tuple[int, int, int, bytes]:
        while True:
            heard = self.hear()
            if heard[0] == wanted and heard[1] & flag == flag:
                return heard

    def hear_request(self) -> bytes:
        """Read a whole request; its message with the five bytes before it."""
        message = b""
        while True:
            _, flags, _, content = self.hear_until(DATA)
            message += content
            if flags & END_STREAM:
                return message

    def _exactly(self, count: int) -> bytes:
        content = b""
        while len(content) < count:
            piece = self.sock.recv(count - len(content))
            if not piece:
                raise ConnectionResetError
            content += piece
        return content


@contextlib.contextmanager
def talking(
    script: Callable[[Server], None], bytes_max: int = 1 << 20
) -> Iterator[Http2Connection]:
    """A connection to a server that does what `script` says, and hangs up."""
    ours, theirs = socket.socketpair()
    faults: list[BaseException] = []

    def serve() -> None:
        with theirs, contextlib.suppress(OSError):
            try:
                script(Server(theirs))
            except AssertionError as fault:
                faults.append(fault)
            theirs.shutdown(socket.SHUT_WR)
            while theirs.recv(1 << 16):
                pass

    thread = threading.Thread(target=serve)
    thread.start()
    connection = Http2Connection(ours, b"", "r:1", bytes_max=bytes_max, headers_max=10_000)
    try:
        yield connection
    finally:
        connection.close()
        thread.join()
    assert faults == []


def headers(stream: int, *pairs: tuple[str, bytes], flags: int = END_HEADERS) -> bytes:
    return frame(HEADERS, flags, stream, hpack.encode(list(pairs)))


def message(text: bytes) -> bytes:
    return b"\x00" + struct.pack(">I", len(text)) + text


def ended(stream: int, *messages: bytes) -> bytes:
    """A whole answer that is OK."""
    parts = [headers(stream, (":status", b"200"))]
    parts += [frame(DATA, 0, stream, message(one)) for one in messages]
    return b"".join([*parts, headers(stream, *OK, flags=END_HEADERS | END_STREAM)])


def call(connection: Http2Connection, request: bytes = b"please") -> http2.Answer:
    return connection.call("/s/M", request, (), WAIT_MS)


def test_a_request_is_what_grpc_expects() -> None:
    def script(server: Server) -> None:
        server.say(HELLO)
        _, flags, stream, block = server.hear_until(HEADERS)
        assert flags & END_HEADERS
        said = dict(hpack.decode(block))
        assert said[":method"] == b"POST"
        assert said[":path"] == b"/s/M"
        assert said[":authority"] == b"r:1"
        assert said["te"] == b"trailers"
        assert said["content-type"] == b"application/grpc+json"
        assert said["grpc-timeout"] == b"60000m"
        assert said["k"] == b"v"
        kind, flags, stream, content = server.hear()
        assert (kind, flags, stream, content) == (DATA, END_STREAM, 1, message(b"please"))
        server.say(ended(1, b"one", b"two"))

    with talking(script) as connection:
        answer = connection.call("/s/M", b"please", (("k", "v"),), WAIT_MS)
    assert answer.messages == [b"one", b"two"]
    assert answer.code == 0


def test_calls_follow_each_other_on_streams_of_their_own() -> None:
    def script(server: Server) -> None:
        server.say(HELLO)
        for stream in (1, 3, 5):
            server.hear_request()
            server.say(ended(stream, bytes((stream,))), frame(RST_STREAM, 0, stream, bytes(4)))

    with talking(script) as connection:
        assert [call(connection).messages for _ in range(3)] == [[b"\x01"], [b"\x03"], [b"\x05"]]


def test_a_long_request_waits_for_room() -> None:
    request = os.urandom(200_000)
    opened: list[int] = []

    def script(server: Server) -> None:
        small = struct.pack(">HI", http2.INITIAL_WINDOW_SIZE, 100_000)
        server.say(frame(SETTINGS, 0, 0, small))
        heard = b""
        while len(heard) < len(message(request)):
            kind, flags, _, content = server.hear()
            if kind != DATA:
                continue
            assert len(content) <= 16_384
            heard += content
            room = struct.pack(">I", len(content))
            opened.append(len(content))
            server.say(frame(WINDOW_UPDATE, 0, 0, room), frame(WINDOW_UPDATE, 0, 1, room))
            assert bool(flags & END_STREAM) == (len(heard) == len(message(request)))
        assert heard == message(request)
        server.say(ended(1, b"got it"))

    with talking(script) as connection:
        assert call(connection, request).messages == [b"got it"]
    assert len(opened) > 10


def test_pings_are_answered_and_settings_acknowledged() -> None:
    def script(server: Server) -> None:
        server.hear_request()
        server.say(HELLO, frame(PING, 0, 0, b"12345678"))
        assert server.hear() == (SETTINGS, ACK, 0, b"")
        assert server.hear() == (PING, ACK, 0, b"12345678")
        server.say(ended(1, b"x"))

    with talking(script) as connection:
        assert call(connection).messages == [b"x"]


def test_pieces_padding_and_continuations_are_put_together() -> None:
    whole = message(b"in three pieces")

    def script(server: Server) -> None:
        server.hear_request()
        block = hpack.encode([(":status", b"200"), ("a", b"b" * 50)])
        server.say(
            HELLO,
            frame(HEADERS, 0, 1, block[:20]),
            frame(CONTINUATION, END_HEADERS, 1, block[20:]),
            *(frame(DATA, 0, 1, piece) for piece in (whole[:3], whole[3:9])),
            frame(DATA, PADDED, 1, b"\x04" + whole[9:] + bytes(4)),
            headers(1, *OK, ("note-bin", b"w6Q"), flags=END_HEADERS | END_STREAM),
            frame(99, 0, 1, b"of a later RFC"),
        )

    with talking(script) as connection:
        answer = call(connection)
    assert answer.messages == [b"in three pieces"]
    assert dict(answer.metadata)["note-bin"] == "ä".encode()
    assert dict(answer.metadata)["a"] == "b" * 50


def test_a_refusal_is_an_answer() -> None:
    def script(server: Server) -> None:
        server.hear_request()
        end = END_HEADERS | END_STREAM
        said = ((":status", b"200"), ("grpc-status", b"5"), ("grpc-message", b"no j%C3%B6b"))
        server.say(HELLO, headers(1, *said, flags=end))

    with talking(script) as connection:
        answer = call(connection)
    assert (answer.code, answer.details, answer.messages) == (5, "no jöb", [])


def away(server: Server) -> None:
    server.hear_request()
    server.say(HELLO, frame(GOAWAY, 0, 0, bytes(8)))


def declined(server: Server) -> None:
    server.hear_request()
    server.say(HELLO, frame(RST_STREAM, 0, 1, struct.pack(">I", http2.REFUSED_STREAM)))


def closed_early(server: Server) -> None:
    server.say(HELLO)
    server.hear_until(DATA)  # the first piece of a request that has more


@pytest.mark.parametrize("script", [away, declined, closed_early])
def test_what_the_server_did_not_look_at_was_not_sent(script: Callable[[Server], None]) -> None:
    with talking(script) as connection, pytest.raises(Unreached):
        call(connection, b"x" * 100_000 if script is closed_early else b"x")


def hung_up(server: Server) -> None:
    server.say(HELLO)
    server.hear_request()


def cut_off(server: Server) -> None:
    hung_up(server)
    server.say(ended(1, b"answer")[:-3])


def reset(server: Server) -> None:
    hung_up(server)
    server.say(frame(RST_STREAM, 0, 1, struct.pack(">I", 2)))


def looked_at(server: Server) -> None:
    hung_up(server)
    server.say(frame(GOAWAY, 0, 0, struct.pack(">II", 1, 0)))


def no_grpc(server: Server) -> None:
    hung_up(server)
    server.say(headers(1, (":status", b"502"), flags=END_HEADERS | END_STREAM))


def compressed(server: Server) -> None:
    hung_up(server)
    server.say(headers(1, (":status", b"200")), frame(DATA, 0, 1, b"\x01\x00\x00\x00\x00"))


def no_headers(server: Server) -> None:
    hung_up(server)
    server.say(frame(HEADERS, END_HEADERS, 1, b"\xff\xff\xff\xff\xff\xff\xff\xff"))


def endless_headers(server: Server) -> None:
    hung_up(server)
    server.say(frame(HEADERS, 0, 1, b""), *[frame(CONTINUATION, 0, 1, bytes(5_000))] * 3)


def huge_frame(server: Server) -> None:
    hung_up(server)
    server.say(b"\xff\xff\xff\x00\x00\x00\x00\x00\x01")


@pytest.mark.parametrize(
    "script",
    [
        hung_up,
        cut_off,
        reset,
        looked_at,
        no_grpc,
        compressed,
        no_headers,
        endless_headers,
        huge_frame,
    ],
)
def test_what_was_sent_whole_may_have_been_done(script: Callable[[Server], None]) -> None:
    with talking(script) as connection, pytest.raises(NoAnswer):
        call(connection)


def test_a_server_of_another_kind_has_no_such_method() -> None:
    def script(server: Server) -> None:
        server.hear_request()
        server.say(HELLO, headers(1, (":status", b"404"), flags=END_HEADERS | END_STREAM))

    with talking(script) as connection:
        assert call(connection).code == 12


def test_an_answer_above_the_limit_is_not_read() -> None:
    def script(server: Server) -> None:
        server.hear_request()
        server.say(
            HELLO, headers(1, (":status", b"200")), frame(DATA, 0, 1, b"\x00\x00\x00\x04\x00")
        )

    with (
        talking(script, bytes_max=1_000) as connection,
        pytest.raises(TooLong, match="1,024"),
    ):
        call(connection)
    with (
        talking(hung_up, bytes_max=1_000) as connection,
        pytest.raises(TooLong, match="1,001"),
    ):
        call(connection, bytes(1_001))


def test_a_server_that_says_nothing_is_not_waited_for() -> None:
    done = threading.Event()

    def script(server: Server) -> None:
        server.hear_request()
        done.wait(60)

    with talking(script) as connection:
        with pytest.raises(NoAnswer, match="no answer within"):
            connection.call("/s/M", b"", (), 50)
        done.set()


def test_a_connection_that_ended_meanwhile_is_over() -> None:
    go, gone = threading.Event(), threading.Event()

    def script(server: Server) -> None:
        server.hear_request()
        server.say(HELLO, ended(1, b"x"))
        go.wait(60)
        server.say(frame(PING, 0, 0, bytes(8)), frame(GOAWAY, 0, 0, struct.pack(">II", 1, 0)))
        gone.set()
        server.hear_until(PING, ACK)

    with talking(script) as connection:
        call(connection)
        assert not connection.is_over()
        go.set()
        assert gone.wait(60)
        assert connection.is_over()


def test_a_connection_of_a_program_with_thousands_of_files_is_looked_at() -> None:
    # select(2) takes no descriptor above 1,023; poll(2) does.
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, 2_048), hard))
    ours, theirs = socket.socketpair()
    high = socket.socket(fileno=fcntl.fcntl(ours.fileno(), fcntl.F_DUPFD_CLOEXEC, 1_024))
    try:
        connection = Http2Connection(high, b"", "r:1", bytes_max=1 << 20, headers_max=10_000)
        with ours, theirs, contextlib.closing(connection):
            assert not connection.is_over()
            theirs.shutdown(socket.SHUT_WR)
            assert connection.is_over()
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


# ---- found by fuzzing


def test_headers_that_go_on_before_they_began_are_no_answer() -> None:
    def script(server: Server) -> None:
        server.say(HELLO, frame(CONTINUATION, END_HEADERS, 1, hpack.encode(OK)))

    with talking(script) as connection, pytest.raises(NoAnswer, match="headers go on"):
        call(connection)


@pytest.mark.parametrize(
    "said",
    [
        ("grpc-status", b"9" * 5_000),
        ("grpc-status", "\u0663".encode()),
        ("grpc-status-details-bin", b"AAAAA"),
    ],
)
def test_an_answer_whose_headers_are_not_grpcs_is_none(said: tuple[str, bytes]) -> None:
    def script(server: Server) -> None:
        server.say(HELLO, headers(1, *OK, said, flags=END_HEADERS | END_STREAM))

    with talking(script) as connection, pytest.raises(NoAnswer, match="not one of gRPC"):
        call(connection)


def test_a_connection_on_which_too_much_is_said_after_a_call_is_over() -> None:
    def script(server: Server) -> None:
        server.say(HELLO, ended(1), frame(DATA, 0, 1, b"\x00\xff\xff\xff\xff"))

    with talking(script) as connection:
        call(connection)
        assert connection.is_over()
