"""Certificates for tests: an authority, and what it issues for whomever a test asks.

EC P-256. Authorities and keys are made once per process; certificates are cheap.
"""

from __future__ import annotations

import datetime
import functools
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from consensus.config import TlsFiles

CELL = "default"
BOTH = (ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH)


class Authority:
    """A key that signs certificates, and its own certificate."""

    def __init__(self, name: str) -> None:
        self.key = ec.generate_private_key(ec.SECP256R1())
        self.name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, f"authority {name}")])
        usage = x509.BasicConstraints(ca=True, path_length=0)
        builder = _builder(self.name, self.key.public_key(), -1, 3_650).issuer_name(self.name)
        self.certificate = builder.add_extension(usage, critical=True).sign(
            self.key, hashes.SHA256()
        )

    def issue(
        self,
        key: ec.EllipticCurvePrivateKey,
        uris: tuple[str, ...],
        days: tuple[float, float],
        usages: tuple[x509.ObjectIdentifier, ...],
    ) -> x509.Certificate:
        """Return a certificate that states `uris`, good for `days` around now."""
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "anybody")])
        builder = _builder(subject, key.public_key(), *days).issuer_name(self.name)
        usage = x509.BasicConstraints(ca=False, path_length=None)
        builder = builder.add_extension(usage, critical=True)
        builder = builder.add_extension(x509.ExtendedKeyUsage(list(usages)), critical=False)
        if uris:
            names = [x509.UniformResourceIdentifier(uri) for uri in uris]
            builder = builder.add_extension(x509.SubjectAlternativeName(names), critical=False)
        return builder.sign(self.key, hashes.SHA256())


@functools.cache
def authority(name: str) -> Authority:
    """Return the authority called `name`, the same one each time."""
    return Authority(name)


@functools.cache
def private_key(name: str) -> ec.EllipticCurvePrivateKey:
    """Return the key called `name`, the same one each time."""
    return ec.generate_private_key(ec.SECP256R1())


def files_of(
    folder: Path,
    replica: str = "r1",
    *,
    uris: tuple[str, ...] | None = None,
    by: str = "cell",
    days: tuple[float, float] = (-1, 365),
    usages: tuple[x509.ObjectIdentifier, ...] = BOTH,
    trusts: str = "cell",
) -> TlsFiles:
    """Write what a replica is given into `folder`, which is made; `by` signs it, it `trusts`."""
    folder.mkdir(parents=True, exist_ok=True)
    stated = (f"raftcron://{CELL}/replica/{replica}",) if uris is None else uris
    key = private_key(replica)
    certificate = authority(by).issue(key, stated, days, usages)
    files = TlsFiles(
        authority=str(folder / "ca.pem"),
        certificate=str(folder / "cert.pem"),
        key=str(folder / "key.pem"),
    )
    put(files.authority, pem(authority(trusts).certificate))
    put(files.certificate, pem(certificate))
    put(files.key, key_pem(key))
    return files


def pem(certificate: x509.Certificate) -> bytes:
    return certificate.public_bytes(serialization.Encoding.PEM)


def key_pem(key: ec.EllipticCurvePrivateKey, password: bytes | None = None) -> bytes:
    how = serialization.BestAvailableEncryption(password) if password else None
    return key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        how or serialization.NoEncryption(),
    )


def put(path: str, content: bytes) -> None:
    """Put a file of its owner alone in the place of who had the name."""
    fresh = Path(path + ".new")
    fresh.write_bytes(content)
    fresh.chmod(0o600)
    fresh.replace(path)


def _builder(
    subject: x509.Name, key: ec.EllipticCurvePublicKey, begin_days: float, end_days: float
) -> x509.CertificateBuilder:
    now = datetime.datetime.now(datetime.UTC)
    builder = x509.CertificateBuilder().subject_name(subject).public_key(key)
    builder = builder.serial_number(x509.random_serial_number())
    return builder.not_valid_before(now + datetime.timedelta(days=begin_days)).not_valid_after(
        now + datetime.timedelta(days=end_days)
    )
