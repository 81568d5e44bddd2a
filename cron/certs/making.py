"""Creates certificates: a cell's authority, and those that it issues, as PEM; writes no files.

They use ECDSA on P-256 with SHA-256, because gRPC's TLS library does not support Ed25519. The
library `cryptography` draws serial numbers and keys from the system's random source.
"""

from __future__ import annotations

import datetime
from typing import Final

import msgspec
from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from cron.errors import InvalidInput
from launcher.identity import (
    AUTHORITY,
    KINDS,
    NAME_RULE,
    REPLICA,
    REPLICA_HOST,
    Identity,
    is_name,
    only_identity,
)

SKEW_S: Final = 3_600
"""A certificate is valid from an hour before its creation until an hour after its last day: clocks
of machines differ, and an authority of 30 days can then issue a certificate of 30 days."""
DAYS_MAX: Final = 36_500
DAY_S: Final = 86_400


class Made(msgspec.Struct, frozen=True):
    """A certificate and its private key, both PEM, and its expiry in seconds since the epoch."""

    identity: Identity
    certificate: bytes
    key: bytes
    not_after_s: int


class Authority(msgspec.Struct, frozen=True):
    """A cell's authority with its key, which can issue certificates."""

    cell: str
    certificate: x509.Certificate
    key: ec.EllipticCurvePrivateKey

    @property
    def pem(self) -> bytes:
        """The authority's certificate, which every member of the cell gets."""
        return self.certificate.public_bytes(serialization.Encoding.PEM)


def make_authority(cell: str, *, now_s: int, days: int) -> Made:
    """Return a new authority of `cell`, valid for `days`.

    Raises:
        InvalidInput: the name or the number of days is not valid.
    """
    identity = Identity(_checked(cell, "cell"), AUTHORITY, cell)
    extensions: list[x509.ExtensionType] = [
        x509.BasicConstraints(ca=True, path_length=0),
        _usage(is_authority=True),
        x509.SubjectAlternativeName([x509.UniformResourceIdentifier(identity.uri)]),
    ]
    return _made(identity, None, now_s, _end_s(now_s, days), extensions)


def read_authority(certificate: bytes, key: bytes, place: str) -> Authority:
    """Return the authority of two PEM texts; `place` names their folder in messages.

    Raises:
        InvalidInput: they cannot be read, do not belong together, or are not an authority's.
    """
    hint = "name the folder that `raftcron certs init` made"
    try:
        read = x509.load_pem_x509_certificate(certificate)
        private = serialization.load_pem_private_key(key, password=None)
        names = read.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
        uris = names.get_values_for_type(x509.UniformResourceIdentifier)
    except (ValueError, TypeError, UnsupportedAlgorithm, x509.ExtensionNotFound) as error:
        raise InvalidInput(f"{place}: no authority can be read: {error}", hint) from error
    identity = only_identity(uris)
    if identity is None or identity.kind != AUTHORITY:
        raise InvalidInput(f"{place}: ca.pem is not a cell's authority", hint)
    if not isinstance(private, ec.EllipticCurvePrivateKey):
        raise InvalidInput(f"{place}: ca.key is not an elliptic curve's", hint)
    if read.public_key() != private.public_key():
        raise InvalidInput(f"{place}: ca.key is not the key of ca.pem", hint)
    return Authority(identity.cell, read, private)


def issue(authority: Authority, kind: str, name: str, *, now_s: int, days: int) -> Made:
    """Return a certificate of the authority for the `kind` called `name`, valid for `days`.

    Raises:
        InvalidInput: kind, name or days are not valid, or the authority expires earlier.
    """
    if kind not in KINDS:
        raise InvalidInput(f"kind {kind!r} is none of {', '.join(KINDS)}")
    identity = Identity(authority.cell, kind, _checked(name, kind))
    end_s = _end_s(now_s, days)
    last_s = int(authority.certificate.not_valid_after_utc.timestamp())
    left = max(0, (last_s - now_s) // DAY_S)
    if days > left:
        raise InvalidInput(
            f"{days} days are more than the authority of {authority.cell} has left: {left}",
            f"--days {left}" if left else "make a new authority with `raftcron certs init`",
        )
    purposes = [ExtendedKeyUsageOID.CLIENT_AUTH]
    names: list[x509.GeneralName] = [x509.UniformResourceIdentifier(identity.uri)]
    if kind == REPLICA:  # a replica is a server, too
        purposes.insert(0, ExtendedKeyUsageOID.SERVER_AUTH)
        names.append(x509.DNSName(REPLICA_HOST))
    extensions: list[x509.ExtensionType] = [
        x509.BasicConstraints(ca=False, path_length=None),
        _usage(is_authority=False),
        x509.ExtendedKeyUsage(purposes),
        x509.SubjectAlternativeName(names),
        x509.AuthorityKeyIdentifier.from_issuer_public_key(authority.key.public_key()),
    ]
    return _made(identity, authority, now_s, min(end_s, last_s), extensions)


def _checked(text: str, what: str) -> str:
    if not is_name(text):
        raise InvalidInput(f"{what}: {text[:100]!r} is not a name", NAME_RULE)
    return text


def _end_s(now_s: int, days: int) -> int:
    if not 1 <= days <= DAYS_MAX:
        raise InvalidInput(f"days {days} is not between 1 and {DAYS_MAX}")
    return now_s + days * DAY_S + SKEW_S


def _moment(seconds: int) -> datetime.datetime:
    return datetime.datetime.fromtimestamp(seconds, datetime.UTC)


def _usage(*, is_authority: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not is_authority,
        key_cert_sign=is_authority,
        crl_sign=is_authority,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )


def _made(
    identity: Identity,
    authority: Authority | None,
    now_s: int,
    end_s: int,
    extensions: list[x509.ExtensionType],
) -> Made:
    """Return a certificate with a new key that the authority signs; without one it signs itself."""
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name(
        [
            x509.NameAttribute(NameOID.ORGANIZATION_NAME, identity.cell),
            x509.NameAttribute(NameOID.ORGANIZATIONAL_UNIT_NAME, identity.kind),
            x509.NameAttribute(NameOID.COMMON_NAME, identity.name),
        ]
    )
    builder = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(authority.certificate.subject if authority else subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(_moment(now_s - SKEW_S))
        .not_valid_after(_moment(end_s))
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
    )
    for extension in extensions:
        is_critical = isinstance(extension, x509.BasicConstraints | x509.KeyUsage)
        builder = builder.add_extension(extension, critical=is_critical)
    certificate = builder.sign(authority.key if authority else key, hashes.SHA256())
    private = key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )
    return Made(identity, certificate.public_bytes(serialization.Encoding.PEM), private, end_s)
