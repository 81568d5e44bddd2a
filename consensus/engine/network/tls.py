"""TLS between replicas: checks of the files, contexts that reload them, identities in certificates.

A replica's certificate has the URI `raftcron://CELL/replica/ID` among its alternative names; names
are identities, addresses are not. Both sides require TLS 1.3 and the cell's authority.
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
import os
import re
import ssl
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any, Final

from consensus.config import TlsFiles
from consensus.errors import BadConfig

_log = logging.getLogger(__name__)
SCHEME: Final = "raftcron://"
_REPLICA: Final = re.compile(r"raftcron://([^/]+)/replica/([^/]+)")
_PART: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*")
WARN_BEFORE_DAYS: Final = 30
LOOK_EVERY_S: Final = 1.0
"""The shortest time between two checks of the files."""
_WAY_OUT: Final = "`raftcron certs issue` makes a new one"


def replica_uri(cell: str, replica: str) -> str:
    """Return the URI in the certificate of `replica`."""
    return f"{SCHEME}{cell}/replica/{replica}"


def proven_replica(certificate: Mapping[str, Any] | None, cell: str) -> str | None:
    """Return the replica of `cell` that a certificate (as from `getpeercert`) identifies. None if
    it identifies another role, another cell, nobody, or more than one identity.
    """
    names = (certificate or {}).get("subjectAltName", ())
    ours = [value for kind, value in names if kind == "URI" and value.startswith(SCHEME)]
    found = _REPLICA.fullmatch(ours[0]) if len(ours) == 1 else None
    if found is None or found[1] != cell or not _PART.fullmatch(found[2]):
        return None
    return found[2]


def check_files(files: TlsFiles, cell: str, replica: str) -> None:
    """Check that a peer would accept `files` as `replica` of `cell` now; log a warning if they
    expire soon.

    Raises:
        BadConfig: a file cannot be read or is not what it should be, others may read the key, the
            certificate is not the authority's, not for now or not this replica's.
    """
    shown = _try(files)
    if proven_replica(shown, cell) != replica:
        names = [value for _, value in shown.get("subjectAltName", ())]
        raise BadConfig(
            f"{files.certificate}: states {', '.join(names) or 'no identity'}, and this is"
            f" {replica_uri(cell, replica)}; `raftcron certs issue DIR replica {replica}` makes the"
            " right one"
        )
    _warn(files, shown)


class Contexts:
    """The TLS contexts for both sides of a connection. They are created again when a file changes,
    so that renewed certificates need no restart; existing connections continue.
    """

    def __init__(
        self,
        files: TlsFiles,
        cell: str,
        mono: Callable[[], float],
        is_revoked: Callable[[str], bool] = lambda digest: False,
    ) -> None:
        """Read the files, and check everything but the replica's name. `is_revoked` says whether
        the certificate with that SHA-256 (hex) is refused; any thread calls it.

        Raises:
            BadConfig: as `check_files`.
        """
        self._files, self._cell, self._mono = files, cell, mono
        self._is_revoked = is_revoked
        self._looking = threading.Lock()
        self._stamps = _stamps(files)
        self._looked_at = mono()
        replica = proven_replica(_try(files), cell)
        if replica is None:
            what = f"is of no replica of cell {cell!r}"
            raise BadConfig(f"{files.certificate}: {what}; {_WAY_OUT}")
        self._replica = replica
        self._server = make_context(files, ssl.PROTOCOL_TLS_SERVER)
        self._client = make_context(files, ssl.PROTOCOL_TLS_CLIENT)

    def server(self) -> ssl.SSLContext:
        """Return the context for incoming connections."""
        self._look()
        return self._server

    def client(self) -> ssl.SSLContext:
        """Return the context for outgoing connections."""
        self._look()
        return self._client

    def authenticate(self, sock: ssl.SSLSocket) -> str:
        """Return the replica that the certificate of the other side identifies.

        Raises:
            ConnectionRefusedError: it identifies no replica of the cell, or was revoked.
        """
        replica = proven_replica(sock.getpeercert(), self._cell)
        if replica is None:
            raise ConnectionRefusedError(f"its certificate is of no replica of cell {self._cell!r}")
        digest = hashlib.sha256(sock.getpeercert(binary_form=True) or b"").hexdigest()
        if self._is_revoked(digest):
            raise ConnectionRefusedError(f"its certificate {digest[:16]} of {replica} was revoked")
        return replica

    def _look(self) -> None:
        # Two threads call this; only one of them checks the files.
        if self._looking.acquire(blocking=False):
            try:
                if self._mono() - self._looked_at >= LOOK_EVERY_S:
                    self._looked_at = self._mono()
                    self._reload()
            finally:
                self._looking.release()

    def _reload(self) -> None:
        stamps = _stamps(self._files)
        if stamps == self._stamps:
            return
        # Recorded before they are tried: incomplete files are tried again when they change.
        self._stamps = stamps
        try:
            check_files(self._files, self._cell, self._replica)
            server = make_context(self._files, ssl.PROTOCOL_TLS_SERVER)
            client = make_context(self._files, ssl.PROTOCOL_TLS_CLIENT)
        except BadConfig as error:
            _log.error("the certificate that was loaded stays in use: %s", error)
            return
        self._server, self._client = server, client
        _log.info("%s: a new certificate is in use", self._files.certificate)


def make_context(files: TlsFiles, protocol: int) -> ssl.SSLContext:
    """Return a context for one side. Raises BadConfig as `check_files`."""
    context = ssl.SSLContext(protocol)
    context.minimum_version = context.maximum_version = ssl.TLSVersion.TLSv1_3
    context.check_hostname = False  # the id in the certificate is compared instead
    context.verify_mode = ssl.CERT_REQUIRED
    if protocol == ssl.PROTOCOL_TLS_SERVER:
        context.num_tickets = 0  # each connection authenticates itself
    try:
        context.load_verify_locations(files.authority)
    except (OSError, ValueError) as error:
        what = f"no authority's certificate in PEM: {error}"
        way_out = "`raftcron certs issue` puts ca.pem beside each certificate"
        raise BadConfig(f"{files.authority}: {what}; {way_out}") from error
    try:
        # OpenSSL would ask for a key's password on the terminal.
        context.load_cert_chain(files.certificate, files.key, password="")
    except (OSError, ValueError) as error:
        if getattr(error, "reason", None) == "KEY_VALUES_MISMATCH":
            what = f"{files.key}: is not the key of {files.certificate}; take both from one folder"
        else:
            both = f"{files.certificate}, {files.key}"
            what = f"{both}: not a certificate and its key, both PEM and unencrypted: {error}"
        raise BadConfig(f"{what}; {_WAY_OUT}") from error
    return context


def _try(files: TlsFiles) -> dict[str, Any]:
    """Perform a handshake of the certificate with itself, in memory; return its contents."""
    for path in (files.authority, files.certificate, files.key):
        _check_readable(path, is_key=path == files.key)
    contexts = [make_context(files, p) for p in (ssl.PROTOCOL_TLS_CLIENT, ssl.PROTOCOL_TLS_SERVER)]
    there, back = ssl.MemoryBIO(), ssl.MemoryBIO()
    client = contexts[0].wrap_bio(back, there)
    server = contexts[1].wrap_bio(there, back, server_side=True)
    try:
        for side in (client, server, client, server):
            with contextlib.suppress(ssl.SSLWantReadError):
                side.do_handshake()
    except ssl.SSLError as error:
        what = getattr(error, "verify_message", None) or error.reason or str(error)
        raise BadConfig(
            f"{files.certificate}: {files.authority} does not vouch for it as a replica's now:"
            f" {what}; {_WAY_OUT}"
        ) from error
    return dict(server.getpeercert() or {})


def _check_readable(path: str, *, is_key: bool) -> None:
    try:
        with open(path, "rb") as file:
            mode = os.fstat(file.fileno()).st_mode & 0o777
    except OSError as error:
        raise BadConfig(
            f"{path}: {(error.strerror or 'cannot be read').lower()}; `raftcron certs issue` makes"
            " authority, certificate and key"
        ) from error
    if is_key and mode & 0o077:
        raise BadConfig(f"{path}: others may use this private key (mode {mode:04o}); chmod 600 it")


def _warn(files: TlsFiles, shown: Mapping[str, Any]) -> None:
    end_s = ssl.cert_time_to_seconds(shown["notAfter"])
    # Certificates expire in wall time; nothing else is decided by it here.
    left_days = int((end_s - time.time()) // 86_400)  # noqa: TID251
    if left_days < WARN_BEFORE_DAYS:
        text = "%s: ends in %d days; %s, which is taken without a restart"
        _log.warning(text, files.certificate, left_days, _WAY_OUT)


def _stamps(files: TlsFiles) -> list[tuple[int, int, int] | None]:
    found: list[tuple[int, int, int] | None] = []
    for path in (files.authority, files.certificate, files.key):
        try:
            status = os.stat(path)
            found.append((status.st_mtime_ns, status.st_size, status.st_ino))
        except OSError:
            found.append(None)
    return found
