"""How the sockets between replicas are set, and what their errors are called."""

from __future__ import annotations

import os
import socket
import ssl
from typing import Final

from consensus.limits import PART_BYTES

USER_TIMEOUT_MS: Final = 5_000
"""What was sent and not acknowledged for so long ends the connection."""
KEEPALIVE_AFTER_S: Final = 2
KEEPALIVE_EVERY_S: Final = 1
NOT_SENT_BYTES: Final = PART_BYTES
"""What the kernel keeps beside the bytes that are on the wire. Heartbeats wait behind it."""
_TCP_NOTSENT_LOWAT: Final = 25  # Python 3.12 has a name for it


def tune(sock: socket.socket) -> None:
    """Make `sock` answer at once, and notice within seconds that nobody is there."""
    sock.setblocking(False)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, KEEPALIVE_AFTER_S)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, KEEPALIVE_EVERY_S)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, USER_TIMEOUT_MS)
    sock.setsockopt(socket.IPPROTO_TCP, _TCP_NOTSENT_LOWAT, NOT_SENT_BYTES)


def check_dialled(sock: socket.socket) -> None:
    """Raise OSError unless `sock`, which dialled and is ready, is connected, and to somebody else:
    the dial of a free port can be answered by the very socket that dialled."""
    error = sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
    if error:
        raise OSError(error, os.strerror(error))
    if sock.getpeername() == sock.getsockname():
        raise ConnectionResetError("connected to itself")


def reason_of(error: Exception) -> str:
    """Return what to say of an error of a socket."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"its certificate is refused: {error.verify_message}"
    if isinstance(error, ssl.SSLError):
        return f"TLS: {(error.reason or str(error)).lower().replace('_', ' ')}"
    return (error.strerror if isinstance(error, OSError) and error.strerror else str(error)).lower()
