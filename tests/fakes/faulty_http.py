"""A proxy in front of an HTTP server that spoils what passes: errors, hangs, cuts, other bytes."""

from __future__ import annotations

import http.client
import socket
import struct
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

_SLOW_DOWN = b"<Error><Code>SlowDown</Code><Message>Reduce your request rate.</Message></Error>"
_BROKEN = b"<Error><Code>InternalError</Code><Message>We are sorry.</Message></Error>"
_DENIED = b"<Error><Code>AccessDenied</Code><Message>Access Denied</Message></Error>"
_ANSWERS = {"slow-down": (503, _SLOW_DOWN), "broken": (500, _BROKEN), "denied": (403, _DENIED)}


class FaultyHttp:
    """`fault`: "" for none, slow-down, broken, denied, reset, hang, cut (half of the body), altered
    (a flipped byte in the body), deaf (the request is served, the answer lost). `only` limits it to
    methods, `times` to so many requests."""

    def __init__(self, target: int) -> None:
        self.fault = ""
        self.only: tuple[str, ...] = ()
        self.times = -1
        self.seen: list[str] = []
        self.let_go = threading.Event()
        self._target = target
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        self._server.daemon_threads = True
        self._server.block_on_close = False
        self.port = int(self._server.server_address[1])
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)

    def _take_fault(self, method: str) -> str:
        if not self.fault or (self.only and method not in self.only) or self.times == 0:
            return ""
        self.times -= 1
        return self.fault

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        outer = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def log_message(self, *_: Any) -> None:
                pass

            def serve(self) -> None:
                outer.seen.append(f"{self.command} {self.path}")
                size = int(self.headers.get("Content-Length") or 0)
                if self.headers.get("Expect"):
                    self.send_response_only(100)
                    self.end_headers()
                body = self.rfile.read(size)
                outer.answer(self, body)

            do_GET = do_PUT = do_POST = do_DELETE = do_HEAD = serve  # noqa: N815

        return Handler

    def answer(self, request: BaseHTTPRequestHandler, body: bytes) -> None:
        """Serve one request, or spoil it."""
        fault = self._take_fault(request.command)
        if fault in _ANSWERS:
            status, content = _ANSWERS[fault]
            self._send(request, status, {}, content)
        elif fault == "hang":
            self.let_go.wait(30)
            request.close_connection = True
        elif fault == "reset":
            self._reset(request)
        else:
            status, headers, content = self._ask(request, body)
            if fault == "deaf":
                self._reset(request)
            elif fault == "altered" and content:
                middle = len(content) // 2
                flipped = bytes([content[middle] ^ 1])
                content = content[:middle] + flipped + content[middle + 1 :]
                self._send(request, status, headers, content)
            elif fault == "cut" and content:
                self._send(request, status, headers, content, cut=len(content) // 2)
            else:
                self._send(request, status, headers, content)

    def _reset(self, request: BaseHTTPRequestHandler) -> None:
        linger = struct.pack("ii", 1, 0)
        request.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
        request.close_connection = True
        request.connection.close()

    def _ask(
        self, request: BaseHTTPRequestHandler, body: bytes
    ) -> tuple[int, dict[str, str], bytes]:
        upstream = http.client.HTTPConnection("127.0.0.1", self._target, timeout=20)
        headers = {name: value for name, value in request.headers.items() if name != "Expect"}
        upstream.request(request.command, request.path, body, headers)
        answer = upstream.getresponse()
        content = answer.read()
        kept = {name: value for name, value in answer.getheaders() if name.lower() != "connection"}
        upstream.close()
        return answer.status, kept, content

    def _send(
        self, request: BaseHTTPRequestHandler, status: int, headers: dict[str, str],
        content: bytes, cut: int | None = None,
    ) -> None:  # fmt: skip
        request.send_response_only(status)
        lengths = {name.lower() for name in headers}
        for name, value in headers.items():
            request.send_header(name, value)
        if "content-length" not in lengths:
            request.send_header("Content-Length", str(len(content)))
        request.end_headers()
        if request.command != "HEAD":
            request.wfile.write(content if cut is None else content[:cut])
        if cut is not None:
            request.wfile.flush()
            request.close_connection = True

    def close(self) -> None:
        """End it."""
        self.let_go.set()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join(5)

    def start(self) -> None:
        """Serve."""
        self._thread.start()


@contextmanager
def faulty_http(target: int) -> Iterator[FaultyHttp]:
    """A proxy to the port `target` of this machine."""
    proxy = FaultyHttp(target)
    proxy.start()
    try:
        yield proxy
    finally:
        proxy.close()
