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
    key = ec.generate_private_key(ec.SECP256R1())
    name = _subject(identity)
    end_s = _end_s(now_s, days)
    builder = _builder(identity, name, key.public_key(), now_s, end_s).issuer_name(name)
    builder = builder.add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
    builder = builder.add_extension(_usage(is_authority=True), critical=True)
    builder = builder.add_extension(
        x509.SubjectAlternativeName([x509.UniformResourceIdentifier(identity.uri)]), critical=False
    )
    return _made(identity, builder.sign(key, hashes.SHA256()), key, end_s)


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
    key = ec.generate_private_key(ec.SECP256R1())
    signer = authority.key.public_key()
    builder = _builder(identity, _subject(identity), key.public_key(), now_s, min(end_s, last_s))
    builder = builder.issuer_name(authority.certificate.subject)
    builder = builder.add_extension(x509.BasicConstraints(False, None), critical=True)
    builder = builder.add_extension(_usage(is_authority=False), critical=True)
    builder = builder.add_extension(x509.ExtendedKeyUsage(_purposes(kind)), critical=False)
    builder = builder.add_extension(x509.SubjectAlternativeName(_names(identity)), critical=False)
    builder = builder.add_extension(
        x509.AuthorityKeyIdentifier.from_issuer_public_key(signer), critical=False
    )
    return _made(identity, builder.sign(authority.key, hashes.SHA256()), key, end_s)


def _checked(text: str, what: str) -> str:
    if not is_name(text):
        raise InvalidInput(f"{what}: {text[:100]!r} is not a name", NAME_RULE)
    return text


def _end_s(now_s: int, days: int) -> int:
    if not 1 <= days <= DAYS_MAX:
        raise InvalidInput(f"days {days} is not between 1 and {DAYS_MAX}")
    return now_s + days * DAY_S + SKEW_S


def _subject(identity: Identity) -> x509.Name:
    return x509.Name(
        [
            x509.NameAttribute(NameOID.ORGANIZATION_NAME, identity.cell),
            x509.NameAttribute(NameOID.ORGANIZATIONAL_UNIT_NAME, identity.kind),
            x509.NameAttribute(NameOID.COMMON_NAME, identity.name),
        ]
    )


def _builder(
    identity: Identity, name: x509.Name, key: ec.EllipticCurvePublicKey, now_s: int, end_s: int
) -> x509.CertificateBuilder:
    """Return a builder with the fields of every certificate: name, key, serial, times, key id."""
    return (
        x509.CertificateBuilder()
        .subject_name(name)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(_moment(now_s - SKEW_S))
        .not_valid_after(_moment(end_s))
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key), critical=False)
    )


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


def _purposes(kind: str) -> list[x509.ObjectIdentifier]:
    """Return the permitted uses: replicas are servers and clients, all others only clients."""
    client = [ExtendedKeyUsageOID.CLIENT_AUTH]
    return [ExtendedKeyUsageOID.SERVER_AUTH, *client] if kind == REPLICA else client


def _names(identity: Identity) -> list[x509.GeneralName]:
    names: list[x509.GeneralName] = [x509.UniformResourceIdentifier(identity.uri)]
    if identity.kind == REPLICA:
        names.append(x509.DNSName(REPLICA_HOST))
    return names


def _made(
    identity: Identity, certificate: x509.Certificate, key: ec.EllipticCurvePrivateKey, end_s: int
) -> Made:
    private = key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )
    return Made(identity, certificate.public_bytes(serialization.Encoding.PEM), private, end_s)
