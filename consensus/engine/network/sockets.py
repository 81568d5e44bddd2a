"""The Network of a real replica: sockets that never block, in one selector, plain or with TLS 1.3.

Everything happens in `poll`, in the tick thread; only names are looked up elsewhere. Without TLS
only loopback addresses are dialled and listened on. Errors of accepting never lose the listener.
"""

from __future__ import annotations

import contextlib
import errno
import selectors
import socket
import time
from collections.abc import Callable
from typing import Final

from consensus.engine.config import TlsFiles, parse_address
from consensus.engine.network.complaints import Complaints
from consensus.engine.network.lookups import Lookups
from consensus.engine.network.net import Connection, Owner
from consensus.engine.network.streams import Stream
from consensus.engine.network.tls import Contexts
from consensus.errors import BadConfig, ConsensusError
from consensus.limits import LEAVING_MAX

BACKLOG: Final = 64
ACCEPTS_MAX: Final = 16
"""How many come in between two looks at those that are there."""
ACCEPT_AGAIN_S: Final = 0.2
FOUND_WITHIN_S: Final = 5.0
"""How long the start waits for the name that this replica listens on."""
_SHORT: Final = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)


class SocketNetwork:
    """A Network of TCP connections. Between `poll`s it does nothing."""

    def __init__(self, tls: TlsFiles | None, cell: str) -> None:
        """Read the certificates, if there are any.

        Raises:
            BadConfig: see `tls.Contexts`.
        """
        self.cell = cell
        self.contexts = Contexts(tls, cell, self.mono) if tls is not None else None
        self.lookups = Lookups(self.ring, self.mono)
        self._complaints = Complaints(self.mono)
        self._selector = selectors.DefaultSelector()
        self._bell, self._rope = socket.socketpair()
        self._bell.setblocking(False)
        self._rope.setblocking(False)
        self._is_rung = False
        self._selector.register(self._bell, selectors.EVENT_READ, self._take_bell)
        self._listener: socket.socket | None = None
        self._accept: Callable[[Connection], None] | None = None
        self._accept_at: float | None = None
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
        self._listener, self._accept = listener, accept
        self._selector.register(listener, selectors.EVENT_READ, self._take_callers)

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
        if self._waiting or self._accept_at is not None:
            self._tend()

    def ring(self) -> None:
        """Wake `poll`; from any thread."""
        if not self._is_rung:
            self._is_rung = True
            with contextlib.suppress(OSError):
                self._rope.send(b"!")

    def close(self) -> None:
        """End everything, at once; nobody is told."""
        for stream in list(self._streams):
            stream.close()
        self._selector.close()
        for sock in (self._listener, self._bell, self._rope):
            if sock is not None:
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

    def _take_callers(self, _: int) -> None:
        listener, accept = self._listener, self._accept
        if listener is None or accept is None:
            return
        for _ in range(ACCEPTS_MAX):
            try:
                sock, _address = listener.accept()
            except BlockingIOError:
                return
            except OSError as error:
                if error.errno in _SHORT:
                    self._pause_accepting(error)
                    return
                continue  # that one is gone already
            stream = Stream(self)
            self._streams.add(stream)
            stream.accepted(sock)
            accept(stream)
            stream.greet()

    def _pause_accepting(self, error: OSError) -> None:
        # The listener stays readable; who waits in its queue is accepted when there is room again.
        self._complaints.say("accept", f"cannot accept: {(error.strerror or '').lower()}")
        if self._listener is not None and self._accept_at is None:
            self._selector.unregister(self._listener)
            self._accept_at = self.mono() + ACCEPT_AGAIN_S

    def _tend(self) -> None:
        now = self.mono()
        for stream in list(self._waiting):
            stream.tend(now)
        if self._listener is not None and self._accept_at is not None and now >= self._accept_at:
            self._accept_at = None
            self._selector.register(self._listener, selectors.EVENT_READ, self._take_callers)

    def _wait_for(self, host: str) -> str:
        until = self.mono() + FOUND_WITHIN_S
        while (ip := self.lookups.find(host)) is None:
            if self.mono() > until:
                raise OSError(f"{host} is not found in {FOUND_WITHIN_S:g} s")
            self._selector.select(0.1)
            self._take_bell(0)
        return ip
