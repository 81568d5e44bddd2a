"""Accepts connections and performs handshakes in a thread of its own, so that unauthenticated
callers take no time of the tick thread.

A connection is passed to the tick thread after a TLS handshake with the certificate of a replica of
the cell or, without TLS, after a complete Hello. Until then it occupies one of `HANDSHAKES_MAX`
places, at most half of them from one address. If all are occupied, a new connection replaces the
oldest one that has had its `GRACE_S`, first one that has sent nothing; if there is none, the new
connection is closed.
"""

from __future__ import annotations

import contextlib
import errno
import selectors
import socket
import ssl
import threading
from collections import deque
from typing import Final

from consensus.engine.network.streams import SHAKEN_WITHIN_S, Streams
from consensus.engine.network.tcp import Complaints, reason_of, tune
from consensus.limits import HANDSHAKES_MAX, HELLO_BYTES_MAX

ACCEPTS_MAX: Final = 16
"""How many connections are accepted before the others are handled."""
ACCEPT_AGAIN_S: Final = 0.2
GRACE_S: Final = 0.1
"""How long a caller keeps its place in any case. A peer sends its Hello at once."""
LOOK_EVERY_S: Final = 0.1
IDLE_S: Final = 5.0
"""The longest pause where nobody is to be looked at; a new caller ends it."""
LOOK_AGAIN_S: Final = 0.02
READY_MAX: Final = 64
"""Connections that may wait for the tick thread; a replica has two peers."""
_HOST_MAX: Final = HANDSHAKES_MAX // 2
_CLOSE_WAIT: Final = 8
"""TCP_INFO's state of a connection that the other side has closed."""
_SHORT: Final = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)


class Unproven:
    """A connection that has not authenticated or sent its Hello yet."""

    def __init__(self, sock: socket.socket, host: str, since: float) -> None:
        self.sock, self.host, self.since = sock, host, since
        self.is_silent = True
        self.is_over = False


class Handshakes:
    """The thread `consensus-callers` and its results for the tick thread: `ready` has sockets, each
    with its authenticated replica (None without TLS); `failure` is the error that ended the thread.
    """

    def __init__(self, home: Streams, listener: socket.socket) -> None:
        self.ready: deque[tuple[socket.socket, str | None]] = deque()
        self.failure: Exception | None = None
        self._home = home
        self._listener = listener
        self._complaints = Complaints(home.mono)
        self._selector = selectors.DefaultSelector()
        self._selector.register(listener, selectors.EVENT_READ)
        self._accept_at: float | None = None
        self._hosts: dict[str, dict[Unproven, None]] = {}  # the oldest first
        self._partial: dict[Unproven, None] = {}  # callers whose handshake is in progress
        self._count = 0
        self._is_over = False
        self._thread = threading.Thread(target=self._run, name="consensus-callers", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """End the thread, and close every connection that was not passed on."""
        self._is_over = True
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RD)  # wakes the thread
        self._thread.join()
        for sock, _ in self.ready:
            sock.close()

    def _run(self) -> None:
        try:
            while not self._is_over:
                is_idle = not self._hosts and self._accept_at is None
                pause_s = IDLE_S if is_idle else LOOK_AGAIN_S if self._partial else LOOK_EVERY_S
                for key, _ in self._selector.select(pause_s):
                    if isinstance(key.data, Unproven):
                        if not key.data.is_over:
                            self._read(key.data)
                    else:
                        self._take_callers()
                self._tend(self._home.mono())
        except Exception as error:  # noqa: BLE001 - a bug ends the replica, not this thread alone
            self.failure = error
            self._home.ring()
        for caller in [one for ours in self._hosts.values() for one in ours]:
            caller.sock.close()
        self._selector.close()
        self._listener.close()

    def _take_callers(self) -> None:
        for _ in range(ACCEPTS_MAX):
            try:
                sock, address = self._listener.accept()
            except BlockingIOError:
                return
            except OSError as error:
                if error.errno in _SHORT:
                    self._pause_accepting(error)
                    return
                continue  # that connection is closed already
            caller = Unproven(sock, str(address[0]), self._home.mono())
            if not self._make_room(caller):
                sock.close()
                self._complaints.say("crowd", f"too many callers: {caller.host} has to come again")
                continue
            self._hosts.setdefault(caller.host, {})[caller] = None
            self._count += 1
            self._begin(caller)

    def _make_room(self, caller: Unproven) -> bool:
        """Return whether there is a place for a new connection; close an older one if need be."""
        ours = self._hosts.get(caller.host, {})
        if len(ours) >= _HOST_MAX:
            crowd = ours
        elif self._count >= HANDSHAKES_MAX:
            crowd = max(self._hosts.values(), key=len)
        else:
            return True
        had_grace = [one for one in crowd if caller.since - one.since >= GRACE_S]
        oldest = next((one for one in had_grace if one.is_silent), next(iter(had_grace), None))
        if oldest is None:
            return False
        self._fail(oldest, "others wait, and it has neither proven nor said anything")
        return True

    def _begin(self, caller: Unproven) -> None:
        try:
            tune(caller.sock)
            contexts = self._home.contexts
            if contexts is not None:
                # Raises if it is closed already; `wrap_socket` would leak the descriptor.
                caller.sock.getpeername()
                caller.sock = contexts.server().wrap_socket(
                    caller.sock, server_side=True, do_handshake_on_connect=False
                )
            self._selector.register(caller.sock, selectors.EVENT_READ, caller)
        except (OSError, ValueError) as error:
            self._fail(caller, reason_of(error))

    def _read(self, caller: Unproven) -> None:
        caller.is_silent = False
        try:
            proven = self._shake(caller)
        except ssl.SSLWantReadError:
            self._selector.modify(caller.sock, selectors.EVENT_READ, caller)
        except ssl.SSLWantWriteError:
            both = selectors.EVENT_READ | selectors.EVENT_WRITE
            self._selector.modify(caller.sock, both, caller)
        except BlockingIOError:
            # A part of a Hello: the socket stays readable, so it must not be selected.
            self._selector.unregister(caller.sock)
            self._partial[caller] = None
        except (OSError, ValueError) as error:
            self._fail(caller, reason_of(error))
        else:
            if len(self.ready) >= READY_MAX:
                self._fail(caller, "others wait, and there are too many")
                return
            self._forget(caller)
            self.ready.append((caller.sock, proven))
            self._home.ring()

    def _shake(self, caller: Unproven) -> str | None:
        """Continue the handshake of a readable caller; return its identity when it is complete."""
        sock, contexts = caller.sock, self._home.contexts
        if contexts is None or not isinstance(sock, ssl.SSLSocket):
            begun = sock.recv(2 * HELLO_BYTES_MAX, socket.MSG_PEEK)
            opens = self._home.opens(begun) if begun else False
            is_over = sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 1)[0] == _CLOSE_WAIT
            if not begun or (opens is None and is_over):
                raise ConnectionResetError("closed by the other side")
            if opens is None:
                raise BlockingIOError
            if not opens:
                raise ConnectionRefusedError("it does not begin with a hello")
            return None
        sock.do_handshake()
        return contexts.authenticate(sock)

    def _tend(self, now: float) -> None:
        partial, self._partial = self._partial, {}
        for caller in partial:
            if not caller.is_over:
                self._selector.register(caller.sock, selectors.EVENT_READ, caller)
        for ours in list(self._hosts.values()):
            for caller in list(ours):
                if now - caller.since < SHAKEN_WITHIN_S:
                    break
                self._fail(caller, f"it did not introduce itself in {SHAKEN_WITHIN_S:g} s")
        if self._accept_at is not None and now >= self._accept_at:
            self._accept_at = None
            self._selector.register(self._listener, selectors.EVENT_READ)

    def _pause_accepting(self, error: OSError) -> None:
        # The listener stays readable; connections in its queue are accepted when there are places.
        self._complaints.say("accept", f"cannot accept: {(error.strerror or '').lower()}")
        self._selector.unregister(self._listener)
        self._accept_at = self._home.mono() + ACCEPT_AGAIN_S

    def _fail(self, caller: Unproven, reason: str) -> None:
        self._complaints.say("stranger", f"connection of a stranger ended: {reason}")
        self._forget(caller)
        caller.sock.close()

    def _forget(self, caller: Unproven) -> None:
        caller.is_over = True
        ours = self._hosts[caller.host]
        del ours[caller]
        if not ours:
            del self._hosts[caller.host]
        self._count -= 1
        with contextlib.suppress(KeyError, ValueError):
            self._selector.unregister(caller.sock)
