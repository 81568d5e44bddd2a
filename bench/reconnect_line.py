"""One gRPC stream over one plain connection, in a few hundred bytes of HTTP/2.

For ten thousand executors on the cores of the cell that they are to burden: grpcio would take more
of them than the leader has. It speaks what a `Pool.Connect` needs and nothing else; what it sends
is far below the window that a server opens for a stream, and what it is sent is not bounded.
"""

from __future__ import annotations

import asyncio
import re
import struct
from typing import Final

from bench.http2 import (
    ACK,
    DATA,
    END_HEADERS,
    END_STREAM,
    GOAWAY,
    HEADERS,
    PING,
    PREFACE,
    RECEIVE_BYTES,
    RST_STREAM,
    SETTINGS,
    WINDOW_MAX,
    WINDOW_START,
    WINDOW_UPDATE,
    frame,
    header_block,
)

PATH: Final = "/raftcron.pool.v1.Pool/Connect"
STREAM: Final = 1
CANCELLED: Final = "1"
"""The status of who comes while too many wait."""
_STATUS: Final = re.compile(rb"grpc-status([\x01-\x7e])", re.DOTALL)
_NUMBERS: Final = struct.pack(">HIHI", 1, 0, 4, WINDOW_MAX)
_GREETING: Final = (
    PREFACE
    + frame(SETTINGS, 0, 0, _NUMBERS)
    + frame(WINDOW_UPDATE, 0, 0, (WINDOW_MAX - WINDOW_START).to_bytes(4, "big"))
)


class LineEnded(Exception):
    """The stream is over. `trailers`: what the server said of it, as it wrote it; `is_late`: nobody
    has said anything in time."""

    def __init__(self, message: str, trailers: bytes = b"", *, is_late: bool = False) -> None:
        super().__init__(message)
        self.trailers = trailers
        self.is_late = is_late

    def said(self, key: str) -> str:
        """Return the value of a trailer that is written as it is, "" if there is none."""
        _, _, rest = self.trailers.partition(key.encode())
        if not rest or rest[0] > 126:
            return ""
        return rest[1 : 1 + rest[0]].decode(errors="replace")


class Line(asyncio.BufferedProtocol):
    """The client's end. Messages gather in `received`; `wake` is set when there is one, and at the
    end. All share one buffer, which is read before anybody else gets it."""

    _space = bytearray(RECEIVE_BYTES)

    def __init__(self) -> None:
        self.received: list[bytes] = []
        self.wake = asyncio.Event()
        self.over: LineEnded | None = None
        self._transport: asyncio.Transport | None = None
        self._ready: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._rest = b""
        self._content = b""
        self._trailers = b""

    @classmethod
    async def open(cls, host: str, port: int, connect_s: float) -> Line:
        """Return a stream whose server has answered.

        Raises:
            LineEnded: it did not within `connect_s`.
        """
        loop = asyncio.get_running_loop()
        line: Line | None = None
        try:
            async with asyncio.timeout(connect_s):
                _, line = await loop.create_connection(cls, host, port)
                await line._ready
        except (OSError, TimeoutError) as error:
            if line is not None:
                line.close()
            is_late = isinstance(error, TimeoutError)
            raise LineEnded(f"not reached: {error!r}", is_late=is_late) from None
        line._write(frame(HEADERS, END_HEADERS, STREAM, header_block(f"{host}:{port}", PATH)))
        return line

    def send(self, message: bytes) -> None:
        """Send one message."""
        content = b"\0" + len(message).to_bytes(4, "big") + message
        self._write(frame(DATA, 0, STREAM, content))

    async def read(self) -> list[bytes]:
        """Return the messages that have come, at least one.

        Raises:
            LineEnded: nothing more will come.
        """
        while not self.received:
            if self.over is not None:
                raise self.over
            self.wake.clear()
            await self.wake.wait()
        received, self.received = self.received, []
        return received

    def close(self) -> None:
        """End the connection."""
        if self._transport is not None:
            self._transport.close()

    def _write(self, content: bytes) -> None:
        if self._transport is not None and not self._transport.is_closing():
            self._transport.write(content)

    # --- asyncio.BufferedProtocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Greet."""
        if not isinstance(transport, asyncio.Transport):
            raise TypeError("a stream transport is needed")
        self._transport = transport
        self._write(_GREETING)

    def connection_lost(self, error: Exception | None) -> None:
        """Nothing more will come."""
        self._end(f"the connection ended: {error or 'closed'}")

    def get_buffer(self, sizehint: int) -> bytearray:
        """Return where to put what comes."""
        return self._space

    def buffer_updated(self, nbytes: int) -> None:
        """Take every whole frame."""
        buffer = self._rest + bytes(self._space[:nbytes])
        at, end = 0, len(buffer)
        while end - at >= 9:
            size = int.from_bytes(buffer[at : at + 3], "big")
            if end - at < 9 + size:
                break
            self._take(buffer[at + 3], buffer[at + 4], buffer[at + 9 : at + 9 + size])
            at += 9 + size
        self._rest = buffer[at:]

    def _take(self, kind: int, flags: int, content: bytes) -> None:
        if kind == DATA:
            self._gather(content)
        elif kind == HEADERS:
            self._trailers += content
        elif kind == SETTINGS and not flags & ACK:
            self._write(frame(SETTINGS, ACK, 0, b""))
            if not self._ready.done():
                self._ready.set_result(None)
        elif kind == PING and not flags & ACK:
            self._write(frame(PING, ACK, 0, content))
        if kind in (RST_STREAM, GOAWAY) or (kind in (DATA, HEADERS) and flags & END_STREAM):
            self._end("ended by the replica")

    def _gather(self, content: bytes) -> None:
        self._content += content
        while len(self._content) >= 5:
            end = 5 + int.from_bytes(self._content[1:5], "big")
            if len(self._content) < end:
                return
            self.received.append(self._content[5:end])
            self._content = self._content[end:]
            self.wake.set()

    def _end(self, why: str) -> None:
        if self.over is None:
            found = _STATUS.search(self._trailers)
            status = self._trailers[found.end() :][: found[1][0]].decode() if found else "?"
            is_late = status == CANCELLED
            self.over = LineEnded(f"{why}, status {status}", self._trailers, is_late=is_late)
            if not self._ready.done():
                self._ready.set_exception(self.over)
                self._ready.exception()  # whoever opens it may have given up
        self.wake.set()
