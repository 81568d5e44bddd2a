"""Checks that a replica answers at an address, before a request is sent to it.

gRPC would report the same later and less clearly, and nothing about certificates.
"""

from __future__ import annotations

import contextlib
import socket
from typing import TYPE_CHECKING, Any, Final

from launcher.identity import REPLICA_HOST

# ssl is imported where it is used: it costs more than the rest of a command that needs none.
if TYPE_CHECKING:
    from launcher.tls import Credentials

# RFC 9113: what a client begins with (3.4), and a SETTINGS frame without settings (6.5), with
# which a server begins, too.
_PREFACE: Final = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
_SETTINGS: Final = b"\x00\x00\x00\x04\x00\x00\x00\x00\x00"
_FRAME_HEADER_BYTES: Final = 9
_FRAME_TYPE: Final = 3  # the byte of a frame's header that says which frame it is

WANTS_TLS: Final = "it wants a certificate"
NO_TLS: Final = "it does not speak TLS"


class Unreached(Exception):
    """No replica can be reached: the reason in a few words, and what a person can do.

    `is_distrust`: the two sides do not trust each other, so waiting does not help. `is_refused`:
    no process listens there, or no host has that name.
    """

    def __init__(
        self, reason: str, hint: str = "", *, is_distrust: bool = False, is_refused: bool = False
    ) -> None:
        super().__init__(reason)
        self.hint = hint
        self.is_distrust = is_distrust
        self.is_refused = is_refused


def reach(server: str, timeout_ms: int, credentials: Credentials | None = None) -> None:
    """Return if `server` (`host:port`) answers the beginning of HTTP/2, as a replica does even when
    it is busy. With credentials the connection uses TLS, and both sides are verified.

    Raises:
        Unreached: with the operating system's reason, or the certificate that was refused.
    """
    sock, _ = greet(server, timeout_ms, credentials)
    sock.close()


def greet(
    server: str, timeout_ms: int, credentials: Credentials | None = None
) -> tuple[socket.socket, bytes]:
    """Return a connection on which both sides began HTTP/2, and the header of the server's first
    frame. Bytes after that header were not read.

    Raises:
        Unreached: as `reach` does.
    """
    timeout_s = timeout_ms / 1000
    try:
        with contextlib.ExitStack() as stack:
            sock = stack.enter_context(_connected(server, timeout_s))
            if credentials is None:
                header = _greet_plainly(sock, server, timeout_s)
            else:
                sock = stack.enter_context(_behind_tls(sock, credentials))
                header = _greet_behind_tls(sock, credentials)
            if header[_FRAME_TYPE] != _SETTINGS[_FRAME_TYPE]:
                raise Unreached("not a replica")
            stack.pop_all()
            return sock, header
    except TimeoutError as error:
        raise Unreached("no answer") from error
    except OSError as error:
        is_unknown = isinstance(error, socket.gaierror) and error.errno == socket.EAI_NONAME
        is_refused = isinstance(error, ConnectionRefusedError) or is_unknown
        raise Unreached((error.strerror or str(error)).lower(), is_refused=is_refused) from error


def _connected(server: str, timeout_s: float) -> socket.socket:
    host, _, port = server.rpartition(":")
    host = host.strip("[]")
    # As bytes, which Python hands on: for a str it imports its tables of international names.
    name: Any = host.encode() if host.isascii() else host
    sock = socket.create_connection((name, int(port)), timeout_s)
    sock.settimeout(timeout_s)
    return sock


def _greet_plainly(sock: socket.socket, server: str, timeout_s: float) -> bytes:
    header = _answered(sock)
    if len(header) == _FRAME_HEADER_BYTES:
        return header
    if _speaks_tls(server, timeout_s):
        hint = "give --tls DIR or RAFTCRON_TLS; an executor, [tls] in its configuration"
        raise Unreached(WANTS_TLS, hint, is_distrust=True)
    raise Unreached("connection closed")


def _behind_tls(sock: socket.socket, credentials: Credentials) -> socket.socket:
    import ssl

    from launcher.tls import fault

    try:
        return credentials.context().wrap_socket(sock, server_hostname=REPLICA_HOST)
    except ssl.SSLCertVerificationError as error:
        hint = f"it was checked against {credentials.files.ca}: is that of the same cell?"
        raise Unreached(f"its certificate {fault(error)}", hint, is_distrust=True) from error
    except ssl.SSLEOFError as error:
        raise Unreached("connection closed") from error
    except ssl.SSLError as error:
        hint = "give it [tls] in its configuration, or leave TLS here"
        raise Unreached(NO_TLS, hint, is_distrust=True) from error


def _greet_behind_tls(sock: socket.socket, credentials: Credentials) -> bytes:
    try:
        header = _answered(sock)
    except TimeoutError:
        raise
    except OSError:
        header = b""
    if len(header) == _FRAME_HEADER_BYTES:
        return header
    # In TLS 1.3 a client learns only here that its certificate was refused.
    hint = f"does its [tls] ca name the authority of {credentials.files.cert}; are clocks right?"
    text = f"it does not accept the certificate of {credentials.identity}"
    raise Unreached(text, hint, is_distrust=True)


def _answered(sock: socket.socket) -> bytes:
    """Send our first bytes; return the first bytes of the answer."""
    sock.sendall(_PREFACE + _SETTINGS)
    header = b""
    while len(header) < _FRAME_HEADER_BYTES:
        piece = sock.recv(_FRAME_HEADER_BYTES - len(header))
        if not piece:
            break
        header += piece
    return header


def _speaks_tls(server: str, timeout_s: float) -> bool:
    """Return whether a server that closed a connection of plain HTTP/2 speaks TLS."""
    import ssl

    from launcher.tls import TlsSocket

    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.sslsocket_class = TlsSocket
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    try:
        with _connected(server, timeout_s) as sock, context.wrap_socket(sock):
            return True
    except OSError:
        return False
