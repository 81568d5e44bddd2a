"""The Network of a real replica: sockets that never block, in one selector, plain or with TLS 1.3.

Everything happens in `poll`, in the tick thread, but that names are looked up elsewhere, and that
callers are accepted and shaken hands with in a thread of their own (`handshakes`). Without TLS
only loopback addresses are dialled and listened on.
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
"""Callers that the kernel keeps until they are accepted; a crowd fills it in a moment."""
CALLERS_MAX: Final = 8
"""How many callers one `poll` takes: half of STRANGERS_MAX, so that those of the poll before were
heard before they could have to leave."""
FOUND_WITHIN_S: Final = 5.0
"""How long the start waits for the name that this replica listens on."""


class SocketNetwork:
    """A Network of TCP connections. Between `poll`s it does nothing."""

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
        self._bell, self._rope = socket.socketpair()
        self._bell.setblocking(False)
        self._rope.setblocking(False)
        self._is_rung = False
        self._selector.register(self._bell, selectors.EVENT_READ, self._take_bell)
        self._handshakes: Handshakes | None = None
        self._accept: Callable[[Connection], None] | None = None
        self._streams: set[Stream] = set()
        self._waiting: dict[Stream, None] = {}
        self._leaving: dict[Stream, None] = {}  # the oldest first
        self._news: list[Callable[[], None]] = []

    # --- Network

    def listen(self, address: str, accept: Callable[[Connection], None]) -> None:
        """Hand every connection that comes in to `accept`. A name is waited for, at most 5 s.

        Raises:
            ConsensusError: the address cannot be listened on.
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
        """Begin to connect to the replica `expected` at `address`."""
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
        """Wait for news or the bell, at most `timeout_s`, and tell the owners."""
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
        """End everything, at once; nobody is told."""
        if self._handshakes is not None:
            self._handshakes.close()
        for stream in list(self._streams):
            stream.close()
        self._selector.close()
        for sock in (self._bell, self._rope):
            sock.close()

    # --- called by streams

    def mono(self) -> float:
        """Return seconds that never go back."""
        return time.monotonic()

    def watch(self, stream: Stream, mask: int, *, is_new: bool) -> None:
        """Call `stream.ready` when its socket is ready for `mask`."""
        change = self._selector.register if is_new else self._selector.modify
        change(stream.descriptor, mask, stream.ready)

    def unwatch(self, stream: Stream) -> None:
        """Forget its socket."""
        self._selector.unregister(stream.descriptor)

    def wait(self, stream: Stream, *, is_waiting: bool) -> None:
        """Call `stream.tend` at each poll, or no more."""
        if is_waiting:
            self._waiting[stream] = None
        else:
            self._waiting.pop(stream, None)

    def soon(self, news: Callable[[], None]) -> None:
        """Call `news` at the next poll."""
        self._news.append(news)

    def leaving(self, stream: Stream) -> None:
        """It only waits for its last bytes to leave."""
        if len(self._leaving) >= LEAVING_MAX:
            next(iter(self._leaving)).close()
        self._leaving[stream] = None

    def forget(self, stream: Stream) -> None:
        """It is over."""
        self._streams.discard(stream)
        self._leaving.pop(stream, None)

    # --- what poll finds

    def _take_bell(self, _: int) -> None:
        # The mark falls last: a ring before it has left its work, which is looked at after a poll;
        # a byte taken under a mark that stays up would silence the bell for ever.
        with contextlib.suppress(BlockingIOError):
            self._bell.recv(4096)
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
            self._take_bell(0)
        return ip


def _nothing() -> None:
    """Do nothing at a poll that is not to wait."""
