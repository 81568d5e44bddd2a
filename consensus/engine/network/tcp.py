"""Socket options between replicas, and texts for socket errors."""

from __future__ import annotations

import os
import socket
import ssl
from typing import Final

from consensus.limits import PART_BYTES

USER_TIMEOUT_MS: Final = 5_000
"""A connection ends if sent bytes are not acknowledged for so long."""
KEEPALIVE_AFTER_S: Final = 2
KEEPALIVE_EVERY_S: Final = 1
NOT_SENT_BYTES: Final = PART_BYTES
"""Unsent bytes that the kernel may queue; heartbeats wait behind them."""
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
