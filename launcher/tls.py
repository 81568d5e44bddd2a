"""TLS with the cell's own certificates: reads and checks their files.

Both sides present a certificate of the cell's authority. A certificate is verified here, as the
other side would, before any connection: TLS 1.3 does not tell a client why it was refused.
"""

from __future__ import annotations

import contextlib
import os
import ssl
from pathlib import Path
from typing import Any, Final

import msgspec

from launcher.errors import BadConfig
from launcher.identity import REPLICA_HOST, Identity, only_identity

ALPN: Final = "h2"
PEM_BYTES_MAX: Final = 1 << 20
"""One file: a certificate is below a thousand bytes."""
_NEW: Final = "`raftcron certs issue` makes a new one"

FAULTS: Final[dict[int, str]] = {
    # X509_V_ERR_... of OpenSSL's x509_vfy.h
    9: "is not valid yet: a clock is wrong",
    10: "has expired",
    18: "is signed by itself, not by the cell's authority",
    19: "is of another authority",
    20: "is of another authority",
    21: "is of another authority",
    26: "is not for this purpose",
    62: "is not a replica's",
}
"""What is wrong with a certificate, by OpenSSL's number."""


class TlsFiles(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """PEM files: the cell's authority, our own certificate and its private key."""

    ca: str
    cert: str
    key: str

    def below(self, folder: Path) -> TlsFiles:
        """Return the same files with relative names relative to `folder`."""
        return TlsFiles(str(folder / self.ca), str(folder / self.cert), str(folder / self.key))


class Credentials(msgspec.Struct, frozen=True):
    """The content of the files, read once and checked: whose certificate it is, and until when it
    and the authority's are valid; the authority's 0 where that is not known."""

    files: TlsFiles
    authority: bytes
    certificate: bytes
    key: bytes
    identity: Identity
    not_after_s: int
    authority_not_after_s: int = 0

    def context(self) -> ssl.SSLContext:
        """Return a context for connections to replicas: TLS 1.3, our certificate, and only the
        cell's authority."""
        context = _context(ssl.PROTOCOL_TLS_CLIENT, self.files, self.authority)
        context.set_alpn_protocols([ALPN])
        context.sslsocket_class = TlsSocket
        return context

    def server_context(self) -> ssl.SSLContext:
        """Return a context for a server whose clients may show a certificate of the cell's
        authority, or none: TLS 1.3, and our certificate."""
        context = _context(ssl.PROTOCOL_TLS_SERVER, self.files, self.authority)
        context.verify_mode = ssl.CERT_OPTIONAL
        return context


class TlsSocket(ssl.SSLSocket):
    """A socket that closes itself if the other side resets the connection.

    `wrap_socket` reads from it. If that fails, nobody else has its descriptor.
    """

    def recv(self, buflen: int = 1024, flags: int = 0) -> bytes:
        """Return what arrived, as `socket.recv` does."""
        try:
            return super().recv(buflen, flags)
        except ConnectionError:
            self.close()
            raise


def files_of(folder: str) -> TlsFiles:
    """Return the files in a folder that `raftcron certs issue` made."""
    return TlsFiles("ca.pem", "cert.pem", "key.pem").below(Path(folder))


def load_credentials(files: TlsFiles) -> Credentials:
    """Return the certificate and key in `files`, after verifying them against the authority.

    Raises:
        BadConfig: a file cannot be read, others may read the key, or the certificate is invalid now
            or has no identity; the message names the file, the hint says what to do.
    """
    authority, certificate = (read_pem(name) for name in (files.ca, files.cert))
    key = read_pem(files.key, is_key=True)
    shown = _tried(files, authority)
    names = shown.get("subjectAltName", ())
    identity = only_identity(value for kind, value in names if kind == "URI")
    if identity is None:
        raise BadConfig(f"{files.cert}: it states no raftcron:// identity", _NEW)
    end_s = int(ssl.cert_time_to_seconds(shown["notAfter"]))
    known = _context(ssl.PROTOCOL_TLS_CLIENT, files, authority).get_ca_certs()
    ends = (str(one.get("notAfter", "")) for one in known)
    authority_end_s = min((int(ssl.cert_time_to_seconds(end)) for end in ends if end), default=0)
    return Credentials(files, authority, certificate, key, identity, end_s, authority_end_s)


def check_identity(credentials: Credentials, wanted: Identity) -> None:
    """Check that the certificate has the identity `wanted`.

    Raises:
        BadConfig: it has another one.
    """
    if credentials.identity != wanted:
        message = f"{credentials.files.cert}: it is of {credentials.identity}, and this is {wanted}"
        hint = f"`raftcron certs issue DIR {wanted.kind} {wanted.name}` makes the right one"
        raise BadConfig(message, hint)


def fault(error: ssl.SSLCertVerificationError) -> str:
    """Return what is wrong with a certificate, as the end of a sentence."""
    return FAULTS.get(error.verify_code, f"is refused: {error.verify_message}")


def read_pem(name: str, *, is_key: bool = False) -> bytes:
    """Return the content of a file of certificates, or of a private key.

    Raises:
        BadConfig: it cannot be read, or other users may read the key.
    """
    try:
        with open(name, "rb") as file:
            status = os.fstat(file.fileno())
            content = file.read(PEM_BYTES_MAX + 1)
    except OSError as error:
        reason = (error.strerror or "cannot be read").lower()
        hint = "`raftcron certs issue` makes ca.pem, cert.pem and key.pem"
        raise BadConfig(f"{name}: {reason}", hint) from error
    # A key of root that a group reads is permitted to others than root, as in PostgreSQL:
    # Kubernetes mounts secrets so (`fsGroup`), and newer releases of systemd show credentials so.
    forbidden = 0o037 if status.st_uid == 0 and os.geteuid() != 0 else 0o077
    if is_key and status.st_mode & forbidden:
        mode = f"{status.st_mode & 0o777:04o}"
        raise BadConfig(
            f"{name}: others may use this private key (mode {mode})", f"chmod 600 {name}"
        )
    if len(content) > PEM_BYTES_MAX:
        raise BadConfig(f"{name}: is larger than {PEM_BYTES_MAX} bytes", "is it the right file?")
    return content


def _context(protocol: int, files: TlsFiles, authority: bytes) -> ssl.SSLContext:
    context = ssl.SSLContext(protocol)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    try:
        context.load_verify_locations(cadata=authority.decode())
    except (ssl.SSLError, ValueError) as error:
        hint = "ca.pem comes with each certificate of `raftcron certs issue`"
        raise BadConfig(f"{files.ca}: no certificate of an authority is in it", hint) from error
    try:
        # A key with a password would be asked for on the terminal.
        context.load_cert_chain(files.cert, files.key, password="")
    except OSError as error:  # of which SSLError is one
        if getattr(error, "reason", "") == "KEY_VALUES_MISMATCH":
            message = f"{files.key}: is not the key of {files.cert}"
            raise BadConfig(
                message, "take both from one folder of `raftcron certs issue`"
            ) from error
        message = f"{files.cert}, {files.key}: not a certificate and its key in PEM, unencrypted"
        raise BadConfig(message, _NEW) from error
    return context


def _tried(files: TlsFiles, authority: bytes) -> dict[str, Any]:
    """Present our certificate to a server in memory; return the fields that it read."""
    theirs = _context(ssl.PROTOCOL_TLS_SERVER, files, authority)
    theirs.verify_mode = ssl.CERT_REQUIRED
    ours = _context(ssl.PROTOCOL_TLS_CLIENT, files, authority)
    ours.check_hostname, ours.verify_mode = False, ssl.CERT_NONE
    there, back = ssl.MemoryBIO(), ssl.MemoryBIO()
    client = ours.wrap_bio(back, there, server_hostname=REPLICA_HOST)
    server = theirs.wrap_bio(there, back, server_side=True)
    try:
        for side in (client, server, client, server):
            with contextlib.suppress(ssl.SSLWantReadError):
                side.do_handshake()
    except ssl.SSLCertVerificationError as error:
        message = f"{files.cert}: the certificate {fault(error)}"
        raise BadConfig(message, f"{_NEW}; `raftcron certs show` tells of both") from error
    shown: dict[str, Any] = dict(server.getpeercert() or {})
    return shown
