"""Reads certificates, also expired ones."""

from __future__ import annotations

import msgspec
from cryptography import x509
from cryptography.hazmat.primitives import hashes

from cron.certs.making import DAY_S
from cron.errors import InvalidInput
from launcher.identity import Identity, only_identity


class Shown(msgspec.Struct, frozen=True):
    """The contents of a certificate, for display. Times are seconds since the epoch;
    `digest` is the SHA-256 (hex) of its DER, by which it is revoked."""

    file: str
    subject: str
    issuer: str
    serial: str
    identity: Identity | None
    not_before_s: int
    not_after_s: int
    digest: str

    def days_left(self, now_s: int) -> int:
        """Return the whole days until it expires; negative once it has."""
        return (self.not_after_s - now_s) // DAY_S

    def trouble(self, now_s: int) -> str:
        """Return why it is not valid now; "" if it is valid."""
        if now_s > self.not_after_s:
            return "expired"
        if now_s < self.not_before_s:
            return "not valid yet"
        return "" if self.identity else "states no raftcron:// identity"


def read_certificates(content: bytes, file: str) -> list[Shown]:
    """Return all certificates in a PEM text; `file` is its name.

    Raises:
        InvalidInput: there is no certificate, or one cannot be read.
    """
    if b"PRIVATE KEY-----" in content:
        raise InvalidInput(f"{file}: is a private key", "name the certificate beside it")
    try:
        found = x509.load_pem_x509_certificates(content)
    except ValueError as error:
        hint = "certificates are PEM files such as cert.pem"
        raise InvalidInput(f"{file}: no certificate can be read", hint) from error
    return [_shown(one, file) for one in found]


def _shown(certificate: x509.Certificate, file: str) -> Shown:
    return Shown(
        file=file,
        subject=certificate.subject.rfc4514_string(),
        issuer=certificate.issuer.rfc4514_string(),
        serial=f"{certificate.serial_number:x}",
        identity=_identity(certificate),
        not_before_s=int(certificate.not_valid_before_utc.timestamp()),
        not_after_s=int(certificate.not_valid_after_utc.timestamp()),
        digest=certificate.fingerprint(hashes.SHA256()).hex(),
    )


def _identity(certificate: x509.Certificate) -> Identity | None:
    try:
        names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except (x509.ExtensionNotFound, ValueError):
        return None
    return only_identity(names.get_values_for_type(x509.UniformResourceIdentifier))
