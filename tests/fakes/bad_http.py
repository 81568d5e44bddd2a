"""An HTTP server that answers as a test says, byte by byte, and in every bad way.

Each connection is served by a function that gets the socket and the request that arrived on it.
"""

from __future__ import annotations

import contextlib
import socket
import ssl
import struct
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import NamedTuple


class Request(NamedTuple):
    """A request as it arrived."""

    method: str
    path: str
    headers: dict[str, str]
    body: bytes


Answering = Callable[[socket.socket, Request], None]


class BadServer:
    """Listens on a loopback address; `ways` has how it answers, by path."""

    def __init__(self, context: ssl.SSLContext | None = None) -> None:
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listening.getsockname()[1]
        self._context = context
        self.ways: dict[str, Answering] = {}
        self.requests: list[Request] = []
        self.connections = 0
        self.over = threading.Event()
        """Set at the end: ways that go on for ever look at it."""
        self._threads: list[threading.Thread] = []
        thread = threading.Thread(target=self._accept, daemon=True)
        thread.start()
        self._threads.append(thread)

    def url(self, path: str = "/", host: str = "127.0.0.1") -> str:
        """The URL of a path."""
        scheme = "http" if self._context is None else "https"
        return f"{scheme}://{host}:{self.port}{path}"

    def close(self) -> None:
        """End it."""
        self.over.set()
        self._listening.shutdown(socket.SHUT_RDWR)
        self._listening.close()
        for thread in self._threads:
            thread.join(10)

    def _accept(self) -> None:
        while True:
            try:
                end, _ = self._listening.accept()
            except OSError:
                return
            self.connections += 1
            thread = threading.Thread(target=self._serve, args=(end,), daemon=True)
            thread.start()
            self._threads.append(thread)

    def _serve(self, end: socket.socket) -> None:
        with contextlib.suppress(OSError), contextlib.ExitStack() as closing:
            closing.callback(end.close)
            end.settimeout(10)
            if self._context is not None:
                end = self._context.wrap_socket(end, server_side=True)
                closing.callback(end.close)
            request = read(end)
            if request is not None:
                self.requests.append(request)
                self.ways[request.path.partition("?")[0]](end, request)


def read(end: socket.socket) -> Request | None:
    """The request that arrives, None if the connection ends before."""
    received = b""
    while b"\r\n\r\n" not in received:
        piece = end.recv(65_536)
        if not piece:
            return None
        received += piece
    head, _, body = received.partition(b"\r\n\r\n")
    first, *lines = head.decode("latin-1").split("\r\n")
    method, path, _ = first.split(" ")
    headers = {
        name.lower(): value.strip() for name, _, value in (one.partition(":") for one in lines)
    }
    while len(body) < int(headers.get("content-length", 0)):
        body += end.recv(65_536)
    return Request(method, path, headers, body)


def answer(status: str, body: bytes = b"", *headers: str) -> Answering:
    """A proper answer."""
    lines = [f"HTTP/1.1 {status}", f"content-length: {len(body)}", *headers, "", ""]
    return raw("\r\n".join(lines).encode() + body)


def raw(data: bytes) -> Answering:
    """These bytes, and the end of the connection."""

    def way(end: socket.socket, request: Request) -> None:
        end.sendall(data)

    return way


def reset(data: bytes = b"") -> Answering:
    """These bytes, and a reset."""

    def way(end: socket.socket, request: Request) -> None:
        if data:
            end.sendall(data)
        end.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        end.close()

    return way


def trickle(server: BadServer, first: bytes, piece: bytes, pause_s: float = 0.05) -> Answering:
    """`first`, then `piece` again and again for ever, with pauses between."""

    def way(end: socket.socket, request: Request) -> None:
        end.sendall(first)
        while not server.over.wait(pause_s):
            end.sendall(piece)

    return way


def silence(server: BadServer) -> Answering:
    """Nothing at all."""

    def way(end: socket.socket, request: Request) -> None:
        server.over.wait()

    return way


@contextmanager
def bad_server(context: ssl.SSLContext | None = None) -> Iterator[BadServer]:
    """A server while this is open."""
    server = BadServer(context)
    try:
        yield server
    finally:
        server.close()
