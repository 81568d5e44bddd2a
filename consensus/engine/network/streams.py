"""A TCP connection with or without TLS: a Connection on a non-blocking socket.

A stream goes through steps: looking up the name, dialling, TLS handshake, open, leaving (written
bytes are still sent), closed. An incoming connection has completed its handshake before
(`handshakes`). Events that happen in `write` are reported at the next poll, because owners are
called only from there. Exceptions of owners are not caught here.
"""

from __future__ import annotations

import contextlib
import enum
import selectors
import socket
import ssl
import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable
from selectors import EVENT_READ, EVENT_WRITE
from typing import Final

from consensus.engine.network.lookups import Lookups
from consensus.engine.network.net import Owner
from consensus.engine.network.tcp import check_dialled, reason_of, tune
from consensus.engine.network.tls import Contexts
from consensus.engine.network.wire import opens_with_hello
from consensus.limits import LEAVING_MAX

READ_BYTES: Final = 256 * 1024
RECORD_BYTES: Final = 32 * 1024
"""TLS returns one record at a time, of at most 16 KiB."""
TURN_BYTES: Final = 2 * 1024 * 1024
"""How much of one connection is read before the others are handled."""
WRITE_BYTES: Final = 256 * 1024
"""How much one call gives to TLS, which encrypts it as a whole."""
BLOCKED: Final = (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError)
FOUND_WITHIN_S: Final = 5.0
DIALLED_WITHIN_S: Final = 1.5
"""The timeout of a dial: if the first packet is lost, dialling again is faster than TCP's retry."""
SHAKEN_WITHIN_S: Final = 5.0


class Step(enum.Enum):
    """The step of a stream."""

    LOOKING = enum.auto()
    DIALLING = enum.auto()
    SHAKING = enum.auto()
    OPEN = enum.auto()
    LEAVING = enum.auto()
    OVER = enum.auto()


class Streams(ABC):
    """The streams of one replica, and the selector in which their sockets wait: the base of
    `SocketNetwork`, used in the tick thread.

    A stream is `waiting` while a timeout runs, and `leaving` while it only sends its last bytes.
    `soon` are calls for the next poll, which does not wait then. `opens` says whether an incoming
    connection without TLS that sent these first bytes may be used; None: it needs more of them.
    """

    def __init__(self, contexts: Contexts | None) -> None:
        self.contexts = contexts
        self.lookups = Lookups(self.ring, self.mono)
        self.opens: Callable[[bytes], bool | None] = opens_with_hello
        self.selector = selectors.DefaultSelector()
        self.streams: set[Stream] = set()
        self.waiting: dict[Stream, None] = {}
        self.leaving: dict[Stream, None] = {}  # the oldest first
        self.soon: list[Callable[[], None]] = []
        self._wake_up, self._rope = socket.socketpair()
        self._wake_up.setblocking(False)
        self._rope.setblocking(False)
        self._is_rung = False
        self.selector.register(self._wake_up, EVENT_READ, self.take_wake_up)

    def mono(self) -> float:
        """Return seconds of a monotonic clock."""
        return time.monotonic()

    def ring(self) -> None:
        """Wake `poll`; from any thread."""
        if not self._is_rung:
            self._is_rung = True
            with contextlib.suppress(OSError):
                self._rope.send(b"!")

    def take_wake_up(self, _: int) -> None:
        """Read the byte of `ring`."""
        # The flag is cleared last: work of an earlier `ring` is handled after this poll. If the
        # flag stayed set after the byte was read, later calls of `ring` would have no effect.
        with contextlib.suppress(BlockingIOError):
            self._wake_up.recv(4096)
        self._is_rung = False

    def poll(self, timeout_s: float) -> None:
        """Wait for events or `ring`, at most `timeout_s`, and call the owners."""
        events = self.selector.select(0.0 if self.soon else timeout_s)
        soon, self.soon = self.soon, []
        for call in soon:
            call()
        for key, mask in events:
            key.data(mask)
        self.take_callers()
        if self.waiting:
            now = self.mono()
            for stream in list(self.waiting):
                stream.tend(now)

    @abstractmethod
    def take_callers(self) -> None:
        """Accept connections that have passed their handshakes."""

    def close(self) -> None:
        """Close everything at once, without further events."""
        for stream in list(self.streams):
            stream.close()
        self.selector.close()
        for sock in (self._wake_up, self._rope):
            sock.close()


class Stream:
    """A Connection; see the module's docstring."""

    def __init__(
        self, home: Streams, owner: Owner | None = None, expected: str | None = None
    ) -> None:
        """Create an idle stream. `expected` is the only replica that it may be connected to, None
        for an incoming connection.
        """
        self.proven: str | None = None
        self.unsent_bytes = 0
        self.descriptor = -1
        self._home, self._owner, self._expected = home, owner, expected
        self._step = Step.LOOKING
        self._place = ("", 0)
        self._deadline = 0.0
        self._socket: socket.socket | None = None
        self._queue: deque[memoryview] = deque()
        self._mask = 0
        self._read_bytes = READ_BYTES
        self._reads_want_write = False
        self._is_shut = False

    # --- Connection

    def adopt(self, owner: Owner) -> None:
        """Set the receiver of events."""
        self._owner = owner

    def write(self, content: bytes) -> None:
        """Send as much of `content` as the kernel accepts now, and the rest as soon as possible."""
        if not content or self._step in (Step.LEAVING, Step.OVER):
            return
        self._queue.append(memoryview(content))
        self.unsent_bytes += len(content)
        if self._step is Step.OPEN and len(self._queue) == 1:
            error = self._drain()
            if error is not None:
                self.fail_soon(reason_of(error))

    def close(self, *, after_ms: int = 0) -> None:
        """Close it; with `after_ms`, allow that time to send what was written."""
        self._owner = None
        if self._step is not Step.OPEN or not after_ms:
            self._end()
            return
        self._enter(Step.LEAVING, after_ms / 1000)
        if len(self._home.leaving) >= LEAVING_MAX:
            next(iter(self._home.leaving)).close()
        self._home.leaving[self] = None
        self._leave()

    # --- beginning

    def dial(self, host: str, port: int) -> None:
        """Start to connect."""
        self._place = (host, port)
        self._enter(Step.LOOKING, FOUND_WITHIN_S)
        self._look()

    def accepted(self, sock: socket.socket, proven: str | None) -> None:
        """Use an accepted socket whose other side was authenticated as `proven`."""
        self._socket, self.descriptor, self.proven = sock, sock.fileno(), proven
        self._step = Step.SHAKING

    def greet(self) -> None:
        """Continue with an incoming connection, if it was adopted."""
        if self._step is not Step.SHAKING:
            return
        if isinstance(self._socket, ssl.SSLSocket):
            self._read_bytes = RECORD_BYTES
            self._home.soon.append(lambda: self.ready(EVENT_READ))  # TLS may have read ahead
        self._open()

    # --- called by the network

    def ready(self, mask: int) -> None:
        """Read or write as the socket allows now."""
        match self._step:
            case Step.OPEN:
                if mask & EVENT_READ or self._reads_want_write:
                    self._read()
                if self._queue and self._step is Step.OPEN:
                    self._write_on()
            case Step.DIALLING:
                self._advance(self._begin_tls)
            case Step.SHAKING:
                self._advance(self._shake)
            case Step.LEAVING:
                self._leave()

    def tend(self, now: float) -> None:
        """Check whether the address was found, and whether a timeout has passed."""
        if self._step is Step.LOOKING:
            self._look()
        if now >= self._deadline and self._step is not Step.OPEN:
            self._fail(f"no end of {self._step.name.lower()} in time")

    # --- dialling

    def _look(self) -> None:
        try:
            ip = self._home.lookups.find(self._place[0])
        except OSError as error:
            self.fail_soon(reason_of(error))
            return
        if ip is not None:
            self._enter(Step.DIALLING, DIALLED_WITHIN_S)
            self._dial(ip)

    def _dial(self, ip: str) -> None:
        family = socket.AF_INET6 if ":" in ip else socket.AF_INET
        try:
            sock = socket.socket(family, socket.SOCK_STREAM)
            self._socket, self.descriptor = sock, sock.fileno()
            tune(sock)
            sock.connect((ip, self._place[1]))
        except BlockingIOError:
            pass
        except OSError as error:  # no descriptor left, no route
            self.fail_soon(reason_of(error))
            return
        self._watch(EVENT_WRITE)

    def _advance(self, step: Callable[[], bool]) -> None:
        # The owner is called outside the `try`: its exceptions are no socket errors.
        try:
            is_open = step()
        except (OSError, ValueError) as error:
            self._fail(reason_of(error))
            return
        if is_open:
            self._open()

    # --- TLS

    def _begin_tls(self) -> bool:
        sock, contexts = self._socket_of(), self._home.contexts
        check_dialled(sock)
        self._enter(Step.SHAKING, SHAKEN_WITHIN_S)
        if contexts is None:
            return True
        self._read_bytes = RECORD_BYTES
        sock.getpeername()  # raises if it is closed; `wrap_socket` would leak the descriptor
        self._socket = contexts.client().wrap_socket(sock, do_handshake_on_connect=False)
        return self._shake()

    def _shake(self) -> bool:
        sock, contexts = self._socket_of(), self._home.contexts
        if contexts is None or not isinstance(sock, ssl.SSLSocket):
            return True
        try:
            sock.do_handshake()
        except ssl.SSLWantReadError:
            self._watch(EVENT_READ)
            return False
        except ssl.SSLWantWriteError:
            self._watch(EVENT_READ | EVENT_WRITE)
            return False
        self.proven = contexts.authenticate(sock)
        if self._expected != self.proven:
            raise ConnectionRefusedError(
                f"its certificate is of {self.proven}, not of {self._expected}"
            )
        return True

    def _open(self) -> None:
        self._step = Step.OPEN
        self._home.waiting.pop(self, None)
        self._watch(EVENT_READ)
        if self._owner is not None:
            self._owner.connected()
        if self._queue and self._step is Step.OPEN:
            self._write_on()

    # --- bytes

    def _read(self) -> None:
        taken_bytes = 0
        while taken_bytes < TURN_BYTES:
            try:
                received = self._socket_of().recv(self._read_bytes)
            except BLOCKED as error:
                self._reads_want_write = isinstance(error, ssl.SSLWantWriteError)
                self._watch_bytes()
                return
            except OSError as error:
                self._fail(reason_of(error))
                return
            if not received:
                self._fail("closed by the other side")
                return
            taken_bytes += len(received)
            if self._owner is not None:
                self._owner.received(received)
            if self._step is not Step.OPEN:
                return
            if len(received) < self._read_bytes == READ_BYTES:
                return  # a plain socket has no more; TLS gives a record at a time
        if isinstance(self._socket, ssl.SSLSocket) and self._socket.pending():
            self._home.soon.append(lambda: self.ready(EVENT_READ))  # select does not report it

    def _write_on(self) -> None:
        error = self._drain()
        if error is not None:
            self._fail(reason_of(error))

    def _drain(self) -> OSError | None:
        """Write as much as the kernel accepts. A piece that TLS could not send stays first and
        unchanged, because OpenSSL requires the same piece again.
        """
        sock, queue = self._socket_of(), self._queue
        try:
            while queue:
                head = queue[0]
                count = sock.send(head if len(head) <= WRITE_BYTES else head[:WRITE_BYTES])
                self.unsent_bytes -= count
                if count == len(head):
                    queue.popleft()
                else:
                    queue[0] = head[count:]
        except BLOCKED:
            pass
        except OSError as error:
            return error
        self._watch_bytes()
        return None

    def _watch_bytes(self) -> None:
        is_blocked = bool(self._queue) or self._reads_want_write
        self._watch(EVENT_READ | EVENT_WRITE if is_blocked else EVENT_READ)

    # --- the end

    def _leave(self) -> None:
        """Write the rest, then read until the other side closes: closing with unread bytes would
        send a reset, which may discard what was written.
        """
        if self._drain() is not None:
            self._end()
            return
        sock = self._socket_of()
        try:
            if not self._queue and not self._is_shut:
                self._is_shut = True
                sock.shutdown(socket.SHUT_WR)
            taken_bytes = 0
            while taken_bytes < TURN_BYTES:
                received = sock.recv(self._read_bytes)
                taken_bytes += len(received)
                if not received:
                    self._end()
                    return
        except BLOCKED:
            pass
        except OSError:
            self._end()

    def fail_soon(self, reason: str) -> None:
        """Close it, and call the owner at the next poll, because the owner may be calling now."""
        self._end()
        self._home.soon.append(lambda: self._fail(reason))

    def _fail(self, reason: str) -> None:
        self._end()
        owner, self._owner = self._owner, None
        if owner is not None:
            owner.closed(reason)

    def _end(self) -> None:
        if self._step is Step.OVER:
            return
        self._step = Step.OVER
        self._queue.clear()
        self.unsent_bytes = 0
        home = self._home
        if self._mask:
            home.selector.unregister(self.descriptor)
        if self._socket is not None:
            self._socket.close()
        home.streams.discard(self)
        home.waiting.pop(self, None)
        home.leaving.pop(self, None)

    # --- helpers

    def _enter(self, step: Step, within_s: float) -> None:
        self._step = step
        self._deadline = self._home.mono() + within_s
        self._home.waiting[self] = None

    def _watch(self, mask: int) -> None:
        if mask != self._mask:
            selector = self._home.selector
            change = selector.modify if self._mask else selector.register
            change(self.descriptor, mask, self.ready)
            self._mask = mask

    def _socket_of(self) -> socket.socket:
        if self._socket is None:
            raise ConnectionResetError("not connected")
        return self._socket
