"""Connections of targets: name, check of the address, TCP, TLS, all before a deadline.

Theory of operation. The address that was checked is the one that is connected to, so that a name
which answers differently the second time leads nowhere. A timeout of a socket counts from its last
byte; a server that sends a byte a second would never reach it. So one thread looks at all
connections ten times a second, and shuts down those whose time is over or whose launch is
cancelled: whoever waits for them gets an end of file or an error.
"""

from __future__ import annotations

import contextlib
import ipaddress
import socket
import ssl
import threading
from collections.abc import Iterator
from typing import Any, Final

from launcher.clock import boot_ms
from launcher.targets.addresses import Address, Allowed, address_of
from launcher.targets.target import NotAllowed, NotReached
from launcher.worker.context import Cancellation

LOOK_S: Final = 0.1
RESOLVING_MAX: Final = 64
"""Names that are looked up at once. The system's resolver cannot be interrupted: a thread of its
own waits for it, as long as it takes."""
TRY_S: Final = 5.0
"""How long one address of several may take to accept a connection."""

_resolving = threading.BoundedSemaphore(RESOLVING_MAX)


class Deadlines:
    """Shuts down sockets whose time is over; one thread for all of them, as long as there are
    any."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._pause = threading.Event()  # never set: it waits
        self._watched: dict[int, tuple[socket.socket, int, Cancellation]] = {}
        self._numbers = 0
        self._is_running = False

    @contextlib.contextmanager
    def watch(self, end: socket.socket, until_ms: int, cancelled: Cancellation) -> Iterator[None]:
        """Watch a socket while this is open, until `until_ms` of the boot clock."""
        with self._lock:
            self._numbers += 1
            number = self._numbers
            self._watched[number] = (end, until_ms, cancelled)
            if not self._is_running:
                self._is_running = True
                threading.Thread(target=self._run, name="raftcron-deadlines", daemon=True).start()
        try:
            yield
        finally:
            with self._lock:
                self._watched.pop(number, None)

    def _run(self) -> None:
        while True:
            self._pause.wait(LOOK_S)
            now_ms = boot_ms()
            with self._lock:
                if not self._watched:
                    self._is_running = False
                    return
                for number, (end, until_ms, cancelled) in list(self._watched.items()):
                    if now_ms >= until_ms or cancelled:
                        del self._watched[number]
                        # Of the class itself: that of SSLSocket would change what a reader uses.
                        with contextlib.suppress(OSError):
                            socket.socket.shutdown(end, socket.SHUT_RDWR)


DEADLINES: Final = Deadlines()


def connected(
    host: str, port: int, allowed: Allowed | None, until_ms: int, cancelled: Cancellation
) -> socket.socket:
    """Return a TCP connection to a host, by the first of its allowed addresses that accepts one.
    Without `allowed` all addresses are.

    Raises:
        NotReached: no address accepted before `until_ms`, or the name is not known.
        NotAllowed: none of its addresses is allowed.
    """
    addresses = _resolved(host, port, until_ms, cancelled)
    refused = ""
    problem = "it has no address"
    for family, place in addresses:
        found = ipaddress.ip_address(str(place[0]).partition("%")[0])
        if allowed is not None and (why := allowed.address(found)):
            refused = refused or why
            continue
        end = socket.socket(family, socket.SOCK_STREAM)
        left_s = (until_ms - boot_ms()) / 1000
        if left_s <= 0 or cancelled:
            end.close()
            raise NotReached(f"{host}: no connection in time")
        try:
            end.settimeout(min(left_s, TRY_S))
            end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            end.connect(place)
        except OSError as error:
            end.close()
            problem = f"{found} port {port}: {_said(error)}"
            continue
        return end
    if refused and problem == "it has no address":
        raise NotAllowed(f"{host}: {refused}")
    raise NotReached(f"{host}: {problem}")


def secured(
    end: socket.socket, host: str, context: ssl.SSLContext, until_ms: int, cancelled: Cancellation
) -> socket.socket:
    """Return the connection with TLS over it; `host` is checked against the certificate.

    Raises:
        NotReached: there is no TLS at the other end, or its certificate is not trusted. A
            certificate that has expired may be renewed before the next try.
    """
    try:
        wrapped = context.wrap_socket(end, server_hostname=host, do_handshake_on_connect=False)
    except (ssl.SSLError, ValueError, OSError) as error:
        end.close()
        raise NotReached(f"{host}: TLS: {_said(error)}") from error
    try:
        with DEADLINES.watch(wrapped, until_ms, cancelled):
            wrapped.settimeout(max(0.001, (until_ms - boot_ms()) / 1000))
            wrapped.do_handshake()
    except (OSError, ValueError) as error:
        wrapped.close()
        raise NotReached(f"{host}: TLS: {_said(error)}") from error
    return wrapped


def _resolved(
    host: str, port: int, until_ms: int, cancelled: Cancellation
) -> list[tuple[socket.AddressFamily, Any]]:
    """Return the addresses of a host, in the order of the system."""
    literal: Address | None = address_of(host)
    if literal is not None:
        family = socket.AF_INET if literal.version == 4 else socket.AF_INET6
        return [(family, (str(literal), port))]
    found: list[tuple[socket.AddressFamily, Any]] = []
    problem: list[str] = []
    done = threading.Event()

    def resolve() -> None:
        try:
            for family, _, _, _, place in socket.getaddrinfo(host, port, type=socket.SOCK_STREAM):
                found.append((family, place))
        except (OSError, UnicodeError) as error:
            problem.append(_said(error))
        finally:
            _resolving.release()
            done.set()

    if not _resolving.acquire(timeout=max(0.0, (until_ms - boot_ms()) / 1000)):
        raise NotReached(f"{host}: {RESOLVING_MAX} names are being looked up, and none was found")
    threading.Thread(target=resolve, name="raftcron-resolver", daemon=True).start()
    while not done.wait(LOOK_S):
        if boot_ms() >= until_ms or cancelled:
            raise NotReached(f"{host}: its address was not found in time")
    if problem:
        raise NotReached(f"{host}: {problem[0]}")
    return found


def _said(error: Exception) -> str:
    """Return what an error says, without its number."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"the certificate is not trusted: {error.verify_message}"
    if isinstance(error, ssl.SSLError):
        return error.reason or "the handshake failed"
    if isinstance(error, TimeoutError):
        return "no answer in time"
    return (getattr(error, "strerror", None) or str(error) or type(error).__name__).lower()
