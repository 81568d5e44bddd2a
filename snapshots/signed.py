"""Signatures of manifests and of markers of generations, with the certificates of a cell.

Without them, a checksum finds damage, and whoever can write the store can write a snapshot with
jobs of its own. The signature of a manifest binds the checksum of its snapshot, and the State in
that the digests of all segments. These members are the last ones before `sum`:

    "signed": {"at_ms": 1764316800000, "certificate": "-----BEGIN CERTIFICATE-----..."},
    "signature": "MEUCIQ..."

The signature is of the object's name and of all bytes before the comma that precedes `"signature"`,
so an object cannot be put under another name. A certificate has to come from the cell's authority,
be that of a replica of the cell, and be valid at `at_ms`: an older backup outlives the certificate
of its writer.
"""

from __future__ import annotations

import base64
import datetime
import re
from collections.abc import Callable, Collection
from typing import Annotated, Final

import msgspec
from cryptography import x509
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, padding, rsa

from snapshots.errors import SnapshotUnsigned, SnapshotUntrusted

CERTIFICATES_MAX: Final = 5
"""Certificates from a signer's to the authority's."""
_DOMAIN: Final = b"raftcron signed object 1\0"
_SIGNATURE: Final = b',\n "signature": "%s"'
_SIGNED: Final = re.compile(
    rb'(.*),\n "signed": (\{[^\n]*\}),\n "signature": "([A-Za-z0-9+/=]{1,4096})"', re.DOTALL
)


class Credentials(msgspec.Struct, frozen=True):
    """The authority's certificates, and a replica's certificate and key, as PEM."""

    authority: bytes
    certificate: bytes
    key: bytes


class Signed(msgspec.Struct, frozen=True):
    """What a signed object says of its signature. `certificate` may have those between, too."""

    at_ms: Annotated[int, msgspec.Meta(ge=0, le=253_402_300_799_999)]
    certificate: Annotated[str, msgspec.Meta(max_length=65_536)]


class Trust(msgspec.Struct, frozen=True):
    """Who may have written manifests and markers, and as whom this process writes them.

    `signers` is how the identity of every replica begins, as a URI in its certificate. `revoked`
    returns the SHA-256 (hex) of certificates that count no more. With `takes_unsigned`, an object
    without a signature is taken as it is; a wrong signature never is.
    """

    credentials: Callable[[], Credentials]
    signers: str
    now_ms: Callable[[], int]
    revoked: Callable[[], Collection[str]] = tuple
    takes_unsigned: bool = False

    def sign(self, name: str, body: bytes) -> bytes:
        """Return the text of an object, which will be called `name`, with its signature."""
        ours = self.credentials()
        signed = Signed(self.now_ms(), ours.certificate.decode("ascii"))
        body += b',\n "signed": ' + msgspec.json.encode(signed)
        signature = _sign(ours.key, _DOMAIN + name.encode() + b"\0" + body)
        return body + _SIGNATURE % base64.b64encode(signature)

    def check(self, name: str, body: bytes) -> str:
        """Return the SHA-256 (hex) of the certificate that signed an object, "" if none did.

        Raises:
            SnapshotUnsigned: it has no signature. SnapshotUntrusted: the signature does not count.
        """
        found = _SIGNED.fullmatch(body)
        if found is None:
            if self.takes_unsigned:
                return ""
            raise SnapshotUnsigned(name, "no replica of the cell has signed it")
        try:
            stated = msgspec.json.decode(found[2], type=Signed)
            chain = x509.load_pem_x509_certificates(stated.certificate.encode())
            signature = base64.b64decode(found[3], validate=True)
            content = body[: found.end(2)]
            _verify(chain[0], signature, _DOMAIN + name.encode() + b"\0" + content)
            self._check_chain(chain, stated.at_ms)
        except InvalidSignature as error:
            text = "its signature is not of these bytes under this name"
            raise SnapshotUntrusted(name, text) from error
        except (ValueError, TypeError, UnsupportedAlgorithm) as error:
            raise SnapshotUntrusted(name, f"its signature cannot count: {error}") from error
        digest = chain[0].fingerprint(hashes.SHA256()).hex()
        if digest in self.revoked():
            raise SnapshotUntrusted(name, f"the certificate that signed it is revoked: {digest}")
        return digest

    def _check_chain(self, chain: list[x509.Certificate], at_ms: int) -> None:
        """Raise ValueError unless the first certificate is that of a replica of the cell, comes
        from its authority, and was valid at that time."""
        names = chain[0].extensions.get_extension_for_class(x509.SubjectAlternativeName).value
        ours = [
            name
            for name in names.get_values_for_type(x509.UniformResourceIdentifier)
            if name.startswith(self.signers.partition("//")[0])
        ]
        if len(ours) != 1 or not ours[0].startswith(self.signers):
            raise ValueError(f"the certificate is not that of {self.signers}")
        moment = datetime.datetime.fromtimestamp(at_ms / 1000, datetime.UTC)
        authorities = x509.load_pem_x509_certificates(self.credentials().authority)
        for number, one in enumerate(chain[:CERTIFICATES_MAX]):
            if not one.not_valid_before_utc <= moment <= one.not_valid_after_utc:
                raise ValueError(f"a certificate was not valid at {moment:%Y-%m-%d %H:%M} UTC")
            if any(_has_issued(other, one, moment) for other in authorities):
                return
            if len(chain) <= number + 1 or not _has_issued(chain[number + 1], one, moment):
                break
        raise ValueError("the certificate does not come from the cell's authority")


def _has_issued(issuer: x509.Certificate, one: x509.Certificate, moment: datetime.datetime) -> bool:
    """Return whether an authority has issued a certificate, and was valid at that time."""
    try:
        one.verify_directly_issued_by(issuer)
        limits = issuer.extensions.get_extension_for_class(x509.BasicConstraints).value
    except (InvalidSignature, ValueError, TypeError, x509.ExtensionNotFound):
        return False
    return limits.ca and issuer.not_valid_before_utc <= moment <= issuer.not_valid_after_utc


def _sign(pem: bytes, content: bytes) -> bytes:
    key = serialization.load_pem_private_key(pem, password=None)
    if isinstance(key, ec.EllipticCurvePrivateKey):
        return key.sign(content, ec.ECDSA(hashes.SHA256()))
    if isinstance(key, rsa.RSAPrivateKey):
        return key.sign(content, padding.PKCS1v15(), hashes.SHA256())
    if isinstance(key, ed25519.Ed25519PrivateKey):
        return key.sign(content)
    raise UnsupportedAlgorithm("keys are of an elliptic curve, RSA or Ed25519")


def _verify(certificate: x509.Certificate, signature: bytes, content: bytes) -> None:
    key = certificate.public_key()
    if isinstance(key, ec.EllipticCurvePublicKey):
        key.verify(signature, content, ec.ECDSA(hashes.SHA256()))
    elif isinstance(key, rsa.RSAPublicKey):
        key.verify(signature, content, padding.PKCS1v15(), hashes.SHA256())
    elif isinstance(key, ed25519.Ed25519PublicKey):
        key.verify(signature, content)
    else:
        raise ValueError("a key of that kind signs nothing here")
