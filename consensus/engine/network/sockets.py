"""The Network of a real replica: non-blocking sockets in one selector, plain or with TLS 1.3.

Everything happens in `poll`, in the tick thread, except lookups of names (`lookups`) and the
handshakes of incoming connections (`handshakes`), which have threads of their own. Without TLS,
only loopback addresses are used.
"""

from __future__ import annotations

import contextlib
import selectors
import socket
import time
from collections.abc import Callable
from typing import Final

from consensus.engine.config import TlsFiles, parse_address
from consensus.engine.network.handshakes import Handshakes
from consensus.engine.network.lookups import Lookups
from consensus.engine.network.net import Connection, Owner
from consensus.engine.network.streams import Stream
from consensus.engine.network.tls import Contexts
from consensus.engine.network.wire import opens_with_hello
from consensus.errors import BadConfig, ConsensusError
from consensus.limits import LEAVING_MAX

BACKLOG: Final = 1_024
"""The backlog of the listening socket."""
CALLERS_MAX: Final = 8
"""How many incoming connections one `poll` accepts: half of STRANGERS_MAX, so that those of the
previous poll are read before they may have to be closed.
"""
FOUND_WITHIN_S: Final = 5.0
"""How long the start waits for the lookup of the listen address."""


class SocketNetwork:
    """A Network of TCP connections; it works only during `poll`."""

    def __init__(self, tls: TlsFiles | None, cell: str) -> None:
        """Read the certificates, if there are any.

        Raises:
            BadConfig: see `tls.Contexts`.
        """
        self.cell = cell
        self.contexts = Contexts(tls, cell, self.mono) if tls is not None else None
        self.opens: Callable[[bytes], bool | None] = opens_with_hello
        self.lookups = Lookups(self.ring, self.mono)
        self._selector = selectors.DefaultSelector()
        self._wake_up, self._rope = socket.socketpair()
        self._wake_up.setblocking(False)
        self._rope.setblocking(False)
        self._is_rung = False
        self._selector.register(self._wake_up, selectors.EVENT_READ, self._take_wake_up)
        self._handshakes: Handshakes | None = None
        self._accept: Callable[[Connection], None] | None = None
        self._streams: set[Stream] = set()
        self._waiting: dict[Stream, None] = {}
        self._leaving: dict[Stream, None] = {}  # the oldest first
        self._news: list[Callable[[], None]] = []

    # --- Network

    def listen(self, address: str, accept: Callable[[Connection], None]) -> None:
        """Pass every incoming connection to `accept`. The lookup of a name may take 5 s.

        Raises:
            ConsensusError: it cannot listen on the address.
        """
        host, port = parse_address(address, is_tls=self.contexts is not None)
        listener: socket.socket | None = None
        try:
            ip = self._wait_for(host)
            listener = socket.socket(socket.AF_INET6 if ":" in ip else socket.AF_INET)
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.setblocking(False)
            listener.bind((ip, port))
            listener.listen(BACKLOG)
        except OSError as error:
            if listener is not None:
                listener.close()
            what = (error.strerror or str(error)).lower()
            raise ConsensusError(f"cannot listen on {address}: {what}") from error
        self._accept = accept
        self._handshakes = Handshakes(self, listener)

    def dial(self, address: str, expected: str, owner: Owner) -> Connection:
        """Start to connect to the replica `expected` at `address`."""
        stream = Stream(self, owner, expected)
        self._streams.add(stream)
        try:
            host, port = parse_address(address, is_tls=self.contexts is not None)
        except BadConfig as error:
            stream.fail_soon(str(error))
        else:
            stream.dial(host, port)
        return stream

    def poll(self, timeout_s: float) -> None:
        """Wait for events or `ring`, at most `timeout_s`, and call the owners."""
        events = self._selector.select(0.0 if self._news else timeout_s)
        if self._news:
            news, self._news = self._news, []
            for tell in news:
                tell()
        for key, mask in events:
            key.data(mask)
        self._take_callers()
        if self._waiting:
            now = self.mono()
            for stream in list(self._waiting):
                stream.tend(now)

    def ring(self) -> None:
        """Wake `poll`; from any thread."""
        if not self._is_rung:
            self._is_rung = True
            with contextlib.suppress(OSError):
                self._rope.send(b"!")

    def close(self) -> None:
        """Close everything at once, without further events."""
        if self._handshakes is not None:
            self._handshakes.close()
        for stream in list(self._streams):
            stream.close()
        self._selector.close()
        for sock in (self._wake_up, self._rope):
            sock.close()

    # --- called by streams

    def mono(self) -> float:
        """Return seconds of a monotonic clock."""
        return time.monotonic()

    def watch(self, stream: Stream, mask: int, *, is_new: bool) -> None:
        """Call `stream.ready` when its socket is ready for `mask`."""
        change = self._selector.register if is_new else self._selector.modify
        change(stream.descriptor, mask, stream.ready)

    def unwatch(self, stream: Stream) -> None:
        """Remove its socket from the selector."""
        self._selector.unregister(stream.descriptor)

    def wait(self, stream: Stream, *, is_waiting: bool) -> None:
        """Call `stream.tend` at each poll, or stop calling it."""
        if is_waiting:
            self._waiting[stream] = None
        else:
            self._waiting.pop(stream, None)

    def soon(self, news: Callable[[], None]) -> None:
        """Call `news` at the next poll."""
        self._news.append(news)

    def leaving(self, stream: Stream) -> None:
        """The stream only sends its last bytes."""
        if len(self._leaving) >= LEAVING_MAX:
            next(iter(self._leaving)).close()
        self._leaving[stream] = None

    def forget(self, stream: Stream) -> None:
        """The stream is closed."""
        self._streams.discard(stream)
        self._leaving.pop(stream, None)

    # --- events of poll

    def _take_wake_up(self, _: int) -> None:
        # The flag is cleared last: work of an earlier `ring` is handled after this poll. If the
        # flag stayed set after the byte was read, later calls of `ring` would have no effect.
        with contextlib.suppress(BlockingIOError):
            self._wake_up.recv(4096)
        self._is_rung = False

    def _take_callers(self) -> None:
        if self._handshakes is None or self._accept is None:
            return
        if self._handshakes.failure is not None:
            raise self._handshakes.failure
        for _ in range(min(CALLERS_MAX, len(self._handshakes.ready))):
            sock, proven = self._handshakes.ready.popleft()
            stream = Stream(self)
            self._streams.add(stream)
            stream.accepted(sock, proven)
            self._accept(stream)
            stream.greet()
        if self._handshakes.ready:
            self.soon(_nothing)  # the next poll does not wait

    def _wait_for(self, host: str) -> str:
        until = self.mono() + FOUND_WITHIN_S
        while (ip := self.lookups.find(host)) is None:
            if self.mono() > until:
                raise OSError(f"{host} is not found in {FOUND_WITHIN_S:g} s")
            self._selector.select(0.1)
            self._take_wake_up(0)
        return ip


def _nothing() -> None:
    """Do nothing at a poll that is not to wait."""
