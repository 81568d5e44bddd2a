"""Authorities and what they issued, in folders as `raftcron certs` makes them."""

from __future__ import annotations

import ssl
import time
from pathlib import Path

from cron.access import RevokedCertificate
from cron.certs.files import open_authority, write_authority, write_issued
from cron.certs.making import DAY_S, issue, make_authority
from launcher.identity import certificate_digest
from launcher.tls import Credentials, TlsFiles, files_of, load_credentials

CELL = "berlin"
REPLICA, EXECUTOR, PERSON = ("replica", "r1"), ("executor", "executor-7"), ("person", "ada")


class Certs:
    """Makes authorities when they are first named, and certificates of them, below `folder`."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._count = 0

    def authority(self, name: str = "ours", cell: str = CELL) -> Path:
        """The folder of an authority."""
        place = self.folder / f"{name}-{cell}"
        if not place.exists():
            now_s = int(time.time()) - 100 * DAY_S
            write_authority(place, make_authority(cell, now_s=now_s, days=1_000))
        return place

    def issued(
        self,
        kind: str,
        name: str,
        *,
        authority: str = "ours",
        cell: str = CELL,
        begins_days: int = 0,
    ) -> Path:
        """The folder of a new certificate, good for ten days from `begins_days` on."""
        source = open_authority(self.authority(authority, cell))
        now_s = int(time.time()) + begins_days * DAY_S
        self._count += 1
        out = self.folder / f"out-{self._count}"
        return write_issued(out, source.pem, issue(source, kind, name, now_s=now_s, days=10))

    def files(self, kind: str, name: str, **how: str) -> TlsFiles:
        """The same, as a configuration names it."""
        return files_of(str(self.issued(kind, name, **how)))

    def credentials(self, kind: str, name: str, **how: str) -> Credentials:
        """The same, read."""
        return load_credentials(self.files(kind, name, **how))

    def revoked(self, shown: Credentials) -> dict[str, RevokedCertificate]:
        """What a cell knows that revoked a certificate."""
        digest = certificate_digest(ssl.PEM_cert_to_DER_cert(shown.certificate.decode()))
        identity = shown.identity
        return {digest: RevokedCertificate(digest, identity.kind, identity.name, 1 << 40)}

    def unchecked(
        self, kind: str, name: str, *, trusts: str = "ours", **how: object
    ) -> Credentials:
        """Credentials that a careful program would not start with: expired, or of an authority
        that is not the one it trusts."""
        files = files_of(str(self.issued(kind, name, **how)))  # type: ignore[arg-type]
        known = self.credentials(*REPLICA)
        return Credentials(
            TlsFiles(str(self.authority(trusts) / "ca.pem"), files.cert, files.key),
            (self.authority(trusts) / "ca.pem").read_bytes(),
            Path(files.cert).read_bytes(),
            Path(files.key).read_bytes(),
            known.identity,
            known.not_after_s,
        )
