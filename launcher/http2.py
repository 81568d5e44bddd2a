"""gRPC calls over one connection of HTTP/2: what a client of a cell needs, and no more.

Theory of operation. To import grpc costs seven times what Python costs to start, so the command
line and programs that submit tasks speak the protocol themselves (RFC 9113; doc/PROTOCOL-HTTP2.md
of grpc/grpc). One call is under way at a time, without a thread: frames are read while its answer
is waited for. Answers have windows that do not close (2 GiB), and headers need no dynamic table.
Servers, and replicas among each other, use grpc.

A call that failed either was certainly not handled (`Unreached`) or may have been (`NoAnswer`). A
server acts only on a whole message. So a call did not reach it until its last byte was given to the
kernel, nor where the server says that it did not look at the stream (GOAWAY, REFUSED_STREAM).
"""

from __future__ import annotations

import binascii
import contextlib
import re
import select
import socket
import struct
import time
from collections.abc import Sequence
from typing import Final, NamedTuple

from launcher import hpack
from launcher.reach import Unreached

DATA, HEADERS, RST_STREAM, SETTINGS = 0, 1, 3, 4
PING, GOAWAY, WINDOW_UPDATE, CONTINUATION = 6, 7, 8, 9
END_STREAM, END_HEADERS, PADDED, PRIORITY, ACK = 0x1, 0x4, 0x8, 0x20, 0x1
HEADER_TABLE_SIZE, ENABLE_PUSH, INITIAL_WINDOW_SIZE = 1, 2, 4
MAX_FRAME_SIZE, MAX_HEADER_LIST_SIZE = 5, 6
REFUSED_STREAM: Final = 7
UNIMPLEMENTED: Final = 12
"""gRPC's code of a server that does not know the call."""

_FRAME_HEADER_BYTES: Final = 9
_FRAME_BYTES_OURS: Final = 1 << 20
"""The largest frame that is read."""
_FRAME_BYTES_THEIRS: Final = 16_384
"""The largest frame that is sent: every server reads it."""
_WINDOW_START: Final = 65_535
_WINDOW_MAX: Final = (1 << 31) - 1
_RECEIVE_BYTES: Final = 1 << 16
_TIMEOUT_MS_MAX: Final = 99_999_999  # grpc-timeout has eight digits

_STATUS: Final = re.compile("[0-9]{1,9}", re.ASCII)

Metadata = Sequence[tuple[str, str | bytes]]


class NoAnswer(Exception):
    """The call was sent and its answer did not come: it may have been handled. Says why, in a few
    words. `is_fault`: the server says that it has a bug."""

    def __init__(self, reason: str, *, is_fault: bool = False) -> None:
        super().__init__(reason)
        self.is_fault = is_fault


class Unreadable(NoAnswer):
    """The answer came, and cannot be read: it is that of another program, or version."""


class TooLong(Exception):
    """A message is longer than it may be: the request, which was not sent, or an answer."""


class Answer(NamedTuple):
    """How a call ended: its messages, in order, and what the server said at the end."""

    messages: list[bytes]
    code: int
    details: str
    metadata: Metadata


class Http2Connection:
    """Makes one call after the other on a socket on which both sides began HTTP/2. After an
    exception, or where `is_over`, it is of no more use. Not thread-safe."""

    def __init__(
        self,
        sock: socket.socket,
        header: bytes,
        authority: str,
        *,
        bytes_max: int,
        headers_max: int,
    ) -> None:
        """`header` is that of the server's first frame, already read (`launcher.reach.greet`).
        Messages are at most `bytes_max` long either way, the headers of an answer `headers_max`."""
        self._sock = sock
        self._unread = bytearray(header)
        self._authority = authority
        self._bytes_max, self._headers_max = bytes_max, headers_max
        self._stream = -1
        self._window, self._stream_window, self._window_start = _WINDOW_START, 0, _WINDOW_START
        self._received = 0  # bytes of the connection's window that were used up
        self._is_closing = False  # the server takes no more calls
        self._fragments: bytearray | None = None  # of headers that are not whole yet
        self._is_end = False
        self._greeting: bytes = _settings(
            {
                HEADER_TABLE_SIZE: 0,
                ENABLE_PUSH: 0,
                INITIAL_WINDOW_SIZE: _WINDOW_MAX,
                MAX_FRAME_SIZE: _FRAME_BYTES_OURS,
                MAX_HEADER_LIST_SIZE: headers_max,
            }
        ) + _window_update(_WINDOW_MAX - _WINDOW_START)

    def call(self, path: str, request: bytes, metadata: Metadata, timeout_ms: int) -> Answer:
        """Return how a call ended; a refusal is an answer, too.

        Raises:
            Unreached: it was not handled. NoAnswer: it may have been.
            TooLong: a message is too long: the request, which was not sent, or an answer.
        """
        if len(request) > self._bytes_max:
            raise TooLong(f"a request of {len(request):,} bytes is above {self._bytes_max:,}")
        self._deadline_s = time.monotonic() + timeout_ms / 1000
        self._stream += 2
        self._stream_window = self._window_start
        self._call = _Call(self._bytes_max)
        try:
            self._send(path, request, metadata, timeout_ms)
        except TimeoutError as error:  # the message is not whole, here and below
            raise Unreached("it does not take the request") from error
        except (OSError, NoAnswer) as error:
            raise Unreached("connection lost") from error
        while not self._call.is_ended:
            try:
                self._read_frame()
            except TimeoutError as error:
                raise too_late(timeout_ms) from error
            except OSError as error:
                raise NoAnswer("connection lost") from error
        return self._call.answer()

    def is_over(self) -> bool:
        """Return whether the server ended the connection, or said that it will; reads what came
        meanwhile and answers it."""
        came = select.poll()  # select() takes no descriptor above 1,023
        try:
            came.register(self._sock, select.POLLIN)
            self._deadline_s = time.monotonic() + 1
            while self._unread or came.poll(0):
                self._read_frame()
        except (OSError, NoAnswer, TooLong, Unreached):
            return True
        return self._is_closing

    def close(self) -> None:
        """Close the socket; idempotent."""
        self._sock.close()

    # ---- what is sent

    def _send(self, path: str, request: bytes, metadata: Metadata, timeout_ms: int) -> None:
        block = _request_headers(self._authority, path, metadata, timeout_ms)
        pieces = [self._greeting, _frame(HEADERS, END_HEADERS, self._stream, block)]
        self._greeting = b""
        if self._received:
            pieces.append(_window_update(self._received))
            self._received = 0
        rest = memoryview(b"\x00" + struct.pack(">I", len(request)) + request)
        while rest and not self._call.is_ended:
            room = min(self._window, self._stream_window, _FRAME_BYTES_THEIRS)
            if room <= 0:
                self._write(b"".join(pieces))
                pieces.clear()
                self._read_frame()
                continue
            piece, rest = bytes(rest[:room]), rest[room:]
            self._window -= len(piece)
            self._stream_window -= len(piece)
            pieces.append(_frame(DATA, 0 if rest else END_STREAM, self._stream, piece))
        self._write(b"".join(pieces))

    def _write(self, content: bytes) -> None:
        if content:
            self._sock.settimeout(self._left_s())
            self._sock.sendall(content)

    def _left_s(self) -> float:
        left_s = self._deadline_s - time.monotonic()
        if left_s <= 0:
            raise TimeoutError
        return left_s

    # ---- what is read

    def _read_frame(self) -> None:
        """Read one frame and do what it says."""
        header = self._take(_FRAME_HEADER_BYTES)
        length = int.from_bytes(header[:3], "big")
        kind, flags = header[3], header[4]
        stream = int.from_bytes(header[5:], "big") & _WINDOW_MAX
        if length > _FRAME_BYTES_OURS:
            raise Unreadable("it does not speak HTTP/2")
        content = self._take(length)
        if kind == DATA:
            self._received += length
        if kind in (HEADERS, CONTINUATION):
            self._note_headers(kind, flags, stream, content)
        elif stream == 0:
            self._obey(kind, flags, content)
        elif stream != self._stream:
            return  # the rest of a call that is over
        elif kind == DATA:
            self._call.note_content(_unpadded(flags, content), is_end=bool(flags & END_STREAM))
        elif kind == WINDOW_UPDATE:
            self._stream_window += _number(content)
        elif kind == RST_STREAM:
            if _number(content) == REFUSED_STREAM:
                raise Unreached("connection lost")
            if not self._call.is_ended:
                raise NoAnswer("it broke off the call")

    def _take(self, length: int) -> bytes:
        while len(self._unread) < length:
            self._sock.settimeout(self._left_s())
            piece = self._sock.recv(_RECEIVE_BYTES)
            if not piece:
                raise ConnectionResetError
            self._unread += piece
        content = bytes(self._unread[:length])
        del self._unread[:length]
        return content

    def _obey(self, kind: int, flags: int, content: bytes) -> None:
        """What concerns the connection as a whole."""
        if kind == SETTINGS and not flags & ACK:
            for at in range(0, len(content) - 5, 6):
                key, value = struct.unpack_from(">HI", content, at)
                if key == INITIAL_WINDOW_SIZE:
                    self._stream_window += value - self._window_start
                    self._window_start = value
            self._acknowledge(SETTINGS, b"")
        elif kind == PING and not flags & ACK:
            self._acknowledge(PING, content)
        elif kind == WINDOW_UPDATE:
            self._window += _number(content)
        elif kind == GOAWAY:
            self._is_closing = True
            if self._stream > _number(content):
                raise Unreached("connection lost")

    def _acknowledge(self, kind: int, content: bytes) -> None:
        # Who has hung up takes no more, but may have said how the call ended: that is still read.
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            self._write(_frame(kind, ACK, 0, content))

    def _note_headers(self, kind: int, flags: int, stream: int, content: bytes) -> None:
        if kind == HEADERS:
            content = _unpadded(flags, content)
            self._fragments = bytearray(content[5:] if flags & PRIORITY else content)
            self._is_end = bool(flags & END_STREAM)
        elif self._fragments is None:
            raise Unreadable("it does not speak HTTP/2: headers go on that did not begin")
        else:
            self._fragments += content
        if len(self._fragments) > self._headers_max:
            raise Unreadable("it sends too much of a header")
        if flags & END_HEADERS:
            block, self._fragments = bytes(self._fragments), None
            if stream == self._stream:
                try:
                    headers = hpack.decode(block)
                except hpack.BadHeaders as error:
                    raise Unreadable(f"it does not speak HTTP/2: {error}") from error
                self._call.note_headers(headers, is_end=self._is_end)


class _Call:
    """What came of one call so far."""

    def __init__(self, bytes_max: int) -> None:
        self.is_ended = False
        self._bytes_max = bytes_max
        self._messages: list[bytes] = []
        self._data = bytearray()
        self._headers: dict[str, bytes] = {}

    def note_headers(self, headers: hpack.Headers, *, is_end: bool) -> None:
        self._headers.update(headers)  # those at the end hold
        self.is_ended = is_end

    def note_content(self, content: bytes, *, is_end: bool) -> None:
        """Take data, and the messages that are whole with it."""
        self._data += content
        at = 0
        while len(self._data) - at >= 5:
            is_compressed, length = struct.unpack_from(">BI", self._data, at)
            if is_compressed:
                raise Unreadable("it compresses its answer, unasked")
            if length > self._bytes_max:
                raise TooLong(f"an answer of {length:,} bytes is above {self._bytes_max:,}")
            if len(self._data) - at - 5 < length:
                break
            self._messages.append(bytes(self._data[at + 5 : at + 5 + length]))
            at += 5 + length
        del self._data[:at]
        self.is_ended = is_end

    def answer(self) -> Answer:
        """Return how the call ended, now that it has.

        Raises:
            NoAnswer: the server did not say how.
        """
        status = self._headers.get("grpc-status", b"").decode(errors="replace")
        if not _STATUS.fullmatch(status):
            if self._headers.get(":status") == b"404":
                return Answer([], UNIMPLEMENTED, "", ())
            raise Unreadable("its answer is not one of gRPC")
        try:
            metadata = [(name, _metadata_value(name, raw)) for name, raw in self._headers.items()]
        except binascii.Error as error:
            raise Unreadable("its answer is not one of gRPC") from error
        details = _unquoted(self._headers.get("grpc-message", b""))
        return Answer(self._messages, int(status), details, metadata)


def too_late(timeout_ms: int) -> NoAnswer:
    """Return what is raised where an answer did not come in time."""
    return NoAnswer(f"no answer within {timeout_ms / 1000:g} s")


def _request_headers(authority: str, path: str, metadata: Metadata, timeout_ms: int) -> bytes:
    timeout = f"{max(1, min(timeout_ms, _TIMEOUT_MS_MAX))}m"
    headers: hpack.Headers = [
        (":method", b"POST"),
        (":scheme", b"http"),
        (":path", path.encode()),
        (":authority", authority.encode()),
        ("te", b"trailers"),
        ("content-type", b"application/grpc+json"),
        ("user-agent", b"raftcron"),
        ("grpc-timeout", timeout.encode()),
    ]
    headers += [(k, v.encode() if isinstance(v, str) else v) for k, v in metadata]
    return hpack.encode(headers)


def _metadata_value(name: str, raw: bytes) -> str | bytes:
    if name.endswith("-bin"):
        return binascii.a2b_base64(raw + b"=" * (-len(raw) % 4))
    return raw.decode(errors="replace")


def _unquoted(raw: bytes) -> str:
    if b"%" in raw:
        from urllib.parse import unquote_to_bytes  # only failures have such a text

        raw = unquote_to_bytes(raw)
    return raw.decode(errors="replace")


def _frame(kind: int, flags: int, stream: int, content: bytes) -> bytes:
    return (
        struct.pack(">HBBBI", len(content) >> 8, len(content) & 255, kind, flags, stream) + content
    )


def _settings(values: dict[int, int]) -> bytes:
    content = b"".join(struct.pack(">HI", key, value) for key, value in values.items())
    return _frame(SETTINGS, 0, 0, content)


def _window_update(count: int) -> bytes:
    return _frame(WINDOW_UPDATE, 0, 0, struct.pack(">I", count))


def _number(content: bytes) -> int:
    """The number of 31 bits with which the content of a frame begins."""
    return int.from_bytes(content[:4], "big") & _WINDOW_MAX


def _unpadded(flags: int, content: bytes) -> bytes:
    return content[1 : len(content) - content[0]] if flags & PADDED and content else content
