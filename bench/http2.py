"""A gRPC client in a few hundred bytes of HTTP/2, for a server that is measured on the same cores.

grpcio costs more per call than an etcd node does, and what the client takes the server lacks. This
one can do unary calls over one plain connection and nothing else: request headers are constant
bytes, answers are not decompressed. A call succeeded if its answer had a message: a gRPC server
that fails a unary call sends none.
"""

from __future__ import annotations

import asyncio
import struct
from typing import Final

PREFACE: Final = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
DATA, HEADERS, RST_STREAM, SETTINGS, PING, GOAWAY, WINDOW_UPDATE = 0, 1, 3, 4, 6, 7, 8
END_STREAM, END_HEADERS, ACK = 0x1, 0x4, 0x1
FRAME_BYTES: Final = 16_384
RECEIVE_BYTES: Final = 65_536
WINDOW_START: Final = 65_535
WINDOW_MAX: Final = 2**31 - 1
_INITIAL_WINDOW: Final = 4
"""Number of the setting that says how much a stream may send at once (RFC 9113, 6.5.2)."""


class CallFailed(Exception):
    """The server refused the call, or the connection ended before its answer."""


def frame(kind: int, flags: int, stream: int, content: bytes) -> bytes:
    """Return one HTTP/2 frame."""
    return (
        len(content).to_bytes(3, "big") + bytes((kind, flags)) + stream.to_bytes(4, "big") + content
    )


def header_block(authority: str, path: str) -> bytes:
    """Return the headers of a call, all as literals that no table remembers (RFC 7541, 6.2.2)."""

    def text(value: str) -> bytes:
        raw = value.encode()
        if len(raw) > 126:
            raise ValueError(f"{value!r} is too long for a one-byte length")
        return bytes((len(raw),)) + raw

    return (
        b"\x83\x86"  # :method POST, :scheme http
        + (b"\x04" + text(path))
        + (b"\x01" + text(authority))
        + (b"\x0f\x10" + text("application/grpc"))  # 31 of the static table: content-type
        + (b"\x00" + text("te") + text("trailers"))
    )


class Connection(asyncio.BufferedProtocol):
    """One connection; any number of calls may be under way."""

    def __init__(self, authority: str) -> None:
        self._authority = authority
        self._blocks: dict[str, bytes] = {}
        self._transport: asyncio.Transport | None = None
        self._space = bytearray(RECEIVE_BYTES)
        self._rest = b""
        self._next_stream = 1
        self._answers: dict[int, asyncio.Future[bytes]] = {}
        self._messages: dict[int, bytes] = {}
        self._window = WINDOW_START
        self._initial = WINDOW_START
        self._windows: dict[int, int] = {}
        self._more = asyncio.Event()
        self._over: str | None = None

    @classmethod
    async def open(cls, host: str, port: int) -> Connection:
        """Connect. Raises OSError."""
        loop = asyncio.get_running_loop()
        _, protocol = await loop.create_connection(lambda: cls(f"{host}:{port}"), host, port)
        return protocol

    async def close(self) -> None:
        """End the connection; calls under way fail."""
        if self._transport is not None:
            self._transport.close()

    async def call(self, path: str, message: bytes) -> bytes:
        """Return the answer's message. Raises CallFailed."""
        if self._over is not None:
            raise CallFailed(self._over)
        stream, self._next_stream = self._next_stream, self._next_stream + 2
        answer: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        self._answers[stream] = answer
        content = b"\0" + len(message).to_bytes(4, "big") + message
        start = frame(HEADERS, END_HEADERS, stream, self._block(path))
        if len(content) <= min(FRAME_BYTES, self._window, self._initial):
            self._window -= len(content)
            self._write(start + frame(DATA, END_STREAM, stream, content))
        else:
            self._write(start)
            await self._send_slowly(stream, content)
        try:
            return await answer
        finally:
            self._answers.pop(stream, None)
            self._messages.pop(stream, None)
            self._windows.pop(stream, None)

    def _block(self, path: str) -> bytes:
        if path not in self._blocks:
            self._blocks[path] = header_block(self._authority, path)
        return self._blocks[path]

    async def _send_slowly(self, stream: int, content: bytes) -> None:
        """Send in pieces, as fast as the server lets us."""
        self._windows[stream] = self._initial
        at = 0
        while at < len(content):
            room = min(FRAME_BYTES, self._window, self._windows[stream], len(content) - at)
            if room <= 0:
                self._more.clear()
                await self._more.wait()
                if self._over is not None:
                    return
                continue
            last = at + room == len(content)
            piece = frame(DATA, END_STREAM if last else 0, stream, content[at : at + room])
            self._write(piece)
            self._window -= room
            self._windows[stream] -= room
            at += room

    def _write(self, content: bytes) -> None:
        if self._transport is not None:
            self._transport.write(content)

    # --- asyncio.Protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Greet: no table of headers, and no bounds on what we are sent."""
        if not isinstance(transport, asyncio.Transport):
            raise TypeError("a stream transport is needed")
        self._transport = transport
        settings = struct.pack(">HIHIHI", 1, 0, 2, 0, _INITIAL_WINDOW, WINDOW_MAX)
        grow = (WINDOW_MAX - WINDOW_START).to_bytes(4, "big")
        greeting = frame(SETTINGS, 0, 0, settings) + frame(WINDOW_UPDATE, 0, 0, grow)
        self._write(PREFACE + greeting)

    def connection_lost(self, error: Exception | None) -> None:
        """Fail what is under way."""
        self._fail_all(f"the connection ended: {error or 'closed'}")

    def get_buffer(self, sizehint: int) -> bytearray:
        """Return where to put what comes."""
        return self._space

    def buffer_updated(self, nbytes: int) -> None:
        """Take every whole frame."""
        buffer = self._rest + self._space[:nbytes]
        at, end = 0, len(buffer)
        while end - at >= 9:
            size = int.from_bytes(buffer[at : at + 3], "big")
            if end - at < 9 + size:
                break
            stream = int.from_bytes(buffer[at + 5 : at + 9], "big") & WINDOW_MAX
            self._take(
                buffer[at + 3], buffer[at + 4], stream, bytes(buffer[at + 9 : at + 9 + size])
            )
            at += 9 + size
        self._rest = bytes(buffer[at:])

    def _take(self, kind: int, flags: int, stream: int, content: bytes) -> None:
        if kind in (DATA, HEADERS):
            if kind == DATA and content:
                self._messages[stream] = self._messages.get(stream, b"") + content
            if flags & END_STREAM:
                self._finish(stream)
        elif kind == WINDOW_UPDATE:
            self._grow(stream, int.from_bytes(content, "big"))
        elif kind == SETTINGS and not flags & ACK:
            self._set(content)
        elif kind == PING and not flags & ACK:
            self._write(frame(PING, ACK, 0, content))
        elif kind == RST_STREAM:
            self._messages.pop(stream, None)
            self._finish(stream)
        elif kind == GOAWAY:
            self._fail_all("the server says goodbye")

    def _grow(self, stream: int, by: int) -> None:
        if stream == 0:
            self._window += by
        elif stream in self._windows:
            self._windows[stream] += by
        self._more.set()

    def _set(self, content: bytes) -> None:
        for number, value in struct.iter_unpack(">HI", content):
            if number == _INITIAL_WINDOW:
                for stream in self._windows:
                    self._windows[stream] += value - self._initial
                self._initial = value
        self._more.set()
        self._write(frame(SETTINGS, ACK, 0, b""))

    def _finish(self, stream: int) -> None:
        answer, message = self._answers.get(stream), self._messages.get(stream)
        if answer is None or answer.done():
            return
        if message is None:
            answer.set_exception(CallFailed("the server refused the call"))
        else:
            answer.set_result(message[5:])

    def _fail_all(self, reason: str) -> None:
        self._over = reason
        self._more.set()
        for answer in self._answers.values():
            if not answer.done():
                answer.set_exception(CallFailed(reason))
