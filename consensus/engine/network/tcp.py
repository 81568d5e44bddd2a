"""Socket options between replicas, texts for socket errors, and rate-limited log lines about them:
unauthenticated callers can cause any number of errors, and a line for each could fill a disk.
"""

from __future__ import annotations

import logging
import os
import socket
import ssl
from collections.abc import Callable
from typing import Final

from consensus.limits import PART_BYTES

_log = logging.getLogger(__name__)
USER_TIMEOUT_MS: Final = 5_000
"""A connection ends if sent bytes are not acknowledged for so long."""
KEEPALIVE_AFTER_S: Final = 2
KEEPALIVE_EVERY_S: Final = 1
NOT_SENT_BYTES: Final = PART_BYTES
"""Unsent bytes that the kernel may queue; heartbeats wait behind them."""
COMPLAINT_EVERY_S: Final = 60.0
"""At most one line of a kind in this many seconds."""
_TCP_NOTSENT_LOWAT: Final = 25  # Python 3.12 has a constant for it


def tune(sock: socket.socket) -> None:
    """Set `sock` to send without delay, and to detect a dead peer within seconds."""
    sock.setblocking(False)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, KEEPALIVE_AFTER_S)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, KEEPALIVE_EVERY_S)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, USER_TIMEOUT_MS)
    sock.setsockopt(socket.IPPROTO_TCP, _TCP_NOTSENT_LOWAT, NOT_SENT_BYTES)


def check_dialled(sock: socket.socket) -> None:
    """Raise OSError unless the dialled `sock` is connected, and not to itself: TCP allows a socket
    that dials a free port to connect to itself.
    """
    error = sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
    if error:
        raise OSError(error, os.strerror(error))
    if sock.getpeername() == sock.getsockname():
        raise ConnectionResetError("connected to itself")


def reason_of(error: Exception) -> str:
    """Return the text for a socket error."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"its certificate is refused: {error.verify_message}"
    if isinstance(error, ssl.SSLError):
        return f"TLS: {(error.reason or str(error)).lower().replace('_', ' ')}"
    return (error.strerror if isinstance(error, OSError) and error.strerror else str(error)).lower()


class Complaints:
    """Counts and logs errors. `kind` is one of a few constants, never bytes from a socket."""

    def __init__(self, mono: Callable[[], float]) -> None:
        self._mono = mono
        self._logged: dict[str, tuple[float, int]] = {}  # by kind: when, and how many since

    def say(self, kind: str, text: str) -> None:
        """Log `text`, unless a line of its kind was logged recently."""
        now = self._mono()
        at, more = self._logged.get(kind, (now - COMPLAINT_EVERY_S, 0))
        if now - at < COMPLAINT_EVERY_S:
            self._logged[kind] = (at, more + 1)
            return
        self._logged[kind] = (now, 0)
        _log.warning("%s%s", text, f" (and {more} more of this kind)" if more else "")

    def forget(self, kind: str) -> None:
        """Log the next error of `kind` at once: the previous problem is over."""
        self._logged.pop(kind, None)
