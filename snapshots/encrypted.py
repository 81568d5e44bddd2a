"""Object storage that sees only ciphertext: wraps another store, and encrypts with AES-256-GCM.

Whoever can write the store but has no key can neither read an object, nor change one, nor put one
under the name of another. It can delete objects, and so make an older snapshot the newest.

    offset  bytes
         0      8  magic: 89 "RCENCR" 0A
         8      2  version: 1 with a key of a file, 2 with a data key of a key service
        10      8  id of the key
        18     32  salt
        50   1024  only in version 2: length of the wrapped data key (2 bytes), the key, zeros
                   chunks: each up to 1 MiB of content, encrypted, and a tag of 16 bytes

The key of an object is derived from the store's key and the salt (HKDF, RFC 5869), the nonce of a
chunk from its number and whether it is the last one (STREAM: Hoang, Reyhanitabar, Rogaway, Vizár,
"Online Authenticated-Encryption and its Nonce-Reuse Misuse-Resistance", 2015). The header and the
object's name are authenticated with each chunk. The salt is a MAC of name and content, so equal
contents under one name give equal bytes, as the caller expects of segments.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import re
import struct
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import BinaryIO, Final, Protocol

import msgspec
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from snapshots.disk import UNFINISHED, create
from snapshots.errors import BadStoreUrl, ObjectDamaged
from snapshots.format import ENCRYPTED
from snapshots.store import ObjectEntry, ObjectStore, SignedPut, Tell

WITH_FILE: Final = 1
WITH_SERVICE: Final = 2
"""Versions: where the key of an object comes from."""
WRAPPED_BYTES: Final = 1_024
"""The room for a wrapped data key, always the same: the size of an object tells that of its
content."""
DATA_KEY_S: Final = 3_600.0
"""How long one data key encrypts; each object has a key of its own, derived from that."""
UNWRAPPED_MAX: Final = 1_000
"""Data keys that a process remembers, so that a list of objects asks the service a few times."""
KEY_BYTES: Final = 32
CHUNK_BYTES: Final = 1 << 20
TAG_BYTES: Final = 16
_LEAD: Final = struct.Struct(">8sH8s32s")
_NONCE: Final = struct.Struct(">11sB")
_LINE: Final = re.compile(rf"[0-9a-f]{{{2 * KEY_BYTES}}}")
_MAKE: Final = "`raftcron snapshot key FILE` makes one"
KEYS_MAX: Final = 100
"""Keys in a file. Only the first one encrypts."""


class Key(msgspec.Struct, frozen=True):
    """A key of 32 random bytes; `id` tells it from other keys and says nothing about it."""

    id: bytes
    secret: bytes

    @classmethod
    def of(cls, secret: bytes) -> Key:
        """Return the key of these bytes."""
        return cls(hmac.digest(secret, b"raftcron key id", "sha256")[:8], secret)


class Keys(Protocol):
    """Where the keys of a store come from. Any thread may ask."""

    version: int
    field_bytes: int
    """How many bytes a header has for them."""

    def current(self) -> tuple[Key, bytes]:
        """Return the key that encrypts now, and the field of the header for it.

        Raises:
            StoreError: there is none now.
        """

    def find(self, number: bytes, field: bytes) -> Key | None:
        """Return the key of an object whose header has this id and field, None if it is not ours.

        Raises:
            StoreError: nobody can tell now.
        """


class FileKeys:
    """The keys of a file, of which the first one encrypts."""

    version = WITH_FILE
    field_bytes = 0

    def __init__(self, keys: Sequence[Key]) -> None:
        self._first = keys[0]
        self._keys = {key.id: key for key in keys}

    def current(self) -> tuple[Key, bytes]:
        """Return the first key."""
        return self._first, b""

    def find(self, number: bytes, field: bytes) -> Key | None:
        """Return the key with this id."""
        return self._keys.get(number)


class KeyService(Protocol):
    """A service that keeps keys and does not give them out, such as AWS KMS."""

    def make_key(self, name: str) -> tuple[bytes, bytes]:
        """Return a new data key, and the same wrapped with the key called `name`."""

    def unwrap(self, name: str, wrapped: bytes) -> bytes | None:
        """Return the data key that was wrapped with that very key, None if it was not."""


class ServiceKeys:
    """Data keys of a key service. The first of `names` wraps them; the others only unwrap."""

    version = WITH_SERVICE
    field_bytes = WRAPPED_BYTES

    def __init__(
        self, service: KeyService, names: Sequence[str], mono_s: Callable[[], float]
    ) -> None:
        self._service = service
        self._names = {_id_of(name): name for name in names}
        self._first = names[0]
        self._mono_s = mono_s
        self._lock = threading.Lock()  # guards all below
        self._current: tuple[Key, bytes] | None = None
        self._until_s = 0.0
        self._known: dict[bytes, Key] = {}

    def current(self) -> tuple[Key, bytes]:
        """Return a data key that is at most an hour old."""
        with self._lock:
            if self._current is None or self._mono_s() >= self._until_s:
                secret, wrapped = self._service.make_key(self._first)
                if len(wrapped) + 2 > WRAPPED_BYTES or len(secret) != KEY_BYTES:
                    text = f"its data keys are of {len(secret)} bytes, wrapped {len(wrapped)}"
                    raise BadStoreUrl(f"kms {self._first}", text, "use a symmetric key")
                field = len(wrapped).to_bytes(2, "big") + wrapped
                key = Key(_id_of(self._first), secret)
                self._current = key, field.ljust(WRAPPED_BYTES, b"\0")
                self._until_s = self._mono_s() + DATA_KEY_S
                self._remember(self._current[1], key)
            return self._current

    def find(self, number: bytes, field: bytes) -> Key | None:
        """Return the data key in a header, which the service unwraps. A key of another owner does
        not count, though the service could use it: the name is asked for."""
        name, size = self._names.get(number), int.from_bytes(field[:2], "big")
        if name is None or size + 2 > len(field) or any(field[2 + size :]):
            return None
        with self._lock:
            if field in self._known:
                return self._known[field]
        secret = self._service.unwrap(name, field[2 : 2 + size])
        if secret is None or len(secret) != KEY_BYTES:
            return None
        with self._lock:
            self._remember(field, Key(number, secret))
        return Key(number, secret)

    def _remember(self, field: bytes, key: Key) -> None:
        self._known[field] = key
        while len(self._known) > UNWRAPPED_MAX:
            del self._known[next(iter(self._known))]


def _id_of(name: str) -> bytes:
    """Return how headers name a key of a service."""
    return hashlib.sha256(b"raftcron key service " + name.encode()).digest()[:8]


def read_keys(path: Path) -> list[Key]:
    """Return the keys in a file, one of 64 hex digits a line: the first one encrypts.

    Raises:
        BadStoreUrl: the file cannot be read, others may read it, or it has something else.
    """
    try:
        with path.open("r", encoding="ascii") as file:
            mode = os.fstat(file.fileno()).st_mode & 0o777
            lines = file.read((2 * KEY_BYTES + 1) * KEYS_MAX + 1).split()
    except (OSError, ValueError) as error:
        reason = (getattr(error, "strerror", None) or "is not text").lower()
        raise BadStoreUrl(f"key {path}", reason, _MAKE) from error
    if mode & 0o077:
        text = f"others may read it (mode {mode:04o})"
        raise BadStoreUrl(f"key {path}", text, f"chmod 600 {path}")
    if not lines or len(lines) > KEYS_MAX or not all(map(_LINE.fullmatch, lines)):
        text = f"it has not one key of {2 * KEY_BYTES} hex digits a line"
        raise BadStoreUrl(f"key {path}", text, _MAKE)
    return [Key.of(bytes.fromhex(line)) for line in lines]


def write_key(path: Path) -> None:
    """Write a new key into a new file that only its owner may read.

    Raises:
        OSError: the file is there already, or cannot be written.
    """
    with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
        file.write(f"{os.urandom(KEY_BYTES).hex()}\n")
        file.flush()
        os.fsync(file.fileno())


def sealed_bytes(size: int, field_bytes: int = 0) -> int:
    """Return the size of an encrypted object with `size` bytes of content, and a header with a
    field of that size."""
    return _LEAD.size + field_bytes + size + TAG_BYTES * max(1, -(-size // CHUNK_BYTES))


def content_bytes(size: int, field_bytes: int = 0) -> int:
    """Return how many bytes of content an encrypted object of `size` bytes has; -1 if none has
    that size."""
    sealed = size - _LEAD.size - field_bytes
    content = sealed - TAG_BYTES * -(-sealed // (CHUNK_BYTES + TAG_BYTES))
    return content if content >= 0 and sealed_bytes(content, field_bytes) == size else -1


class EncryptedStore:
    """The objects of another store, encrypted with the current one of some keys."""

    def __init__(self, inner: ObjectStore, keys: Keys, url: str) -> None:
        self._inner = inner
        self._keys = keys
        self._lead_bytes = _LEAD.size + keys.field_bytes
        self.url = url

    def conditional(self) -> bool:
        """Return whether the store honours `put(if_absent=True)`."""
        return self._inner.conditional()

    def put(self, name: str, content: bytes, *, if_absent: bool = False) -> bool:
        """Put an object."""
        chunks = (content[at : at + CHUNK_BYTES] for at in range(0, len(content), CHUNK_BYTES))
        sealed = b"".join(self._seal(name, hashlib.sha256(content).digest(), chunks))
        return self._inner.put(name, sealed, if_absent=if_absent)

    def put_file(
        self, name: str, path: Path, *, if_absent: bool = False, progress: Tell | None = None
    ) -> bool:
        """Put a file, which is encrypted into a temporary file beside it."""
        beside = path.with_name(f"{path.name}.sealed{UNFINISHED}")
        size = path.stat().st_size
        tell = progress and (lambda done: progress(min(done, size)))
        try:
            with path.open("rb") as source, create(beside) as sealed:
                digest = hashlib.file_digest(source, "sha256").digest()
                source.seek(0)
                for piece in self._seal(name, digest, _chunks(source, CHUNK_BYTES)):
                    sealed.write(piece)
            return self._inner.put_file(name, beside, if_absent=if_absent, progress=tell)
        finally:
            beside.unlink(missing_ok=True)

    def sign_put(self, name: str, size: int, sha256: bytes, valid_s: int) -> SignedPut | None:
        """Return None: only who has the key can encrypt."""

    def get(self, name: str, bytes_max: int) -> bytes:
        """Return an object."""
        sealed = self._inner.get(name, sealed_bytes(bytes_max, self._keys.field_bytes))
        lead, rest = sealed[: self._lead_bytes], sealed[self._lead_bytes :]
        step = CHUNK_BYTES + TAG_BYTES
        chunks = (rest[at : at + step] for at in range(0, len(rest), step))
        return b"".join(self._unseal(name, lead, chunks))

    def get_file(self, name: str, path: Path) -> int:
        """Write an object to a file."""
        beside = path.with_name(f"{path.name}.sealed{UNFINISHED}")
        done = 0
        try:
            self._inner.get_file(name, beside)
            with beside.open("rb") as sealed, create(path) as file:
                lead = sealed.read(self._lead_bytes)
                for piece in self._unseal(name, lead, _chunks(sealed, CHUNK_BYTES + TAG_BYTES)):
                    file.write(piece)
                    done += len(piece)
                file.flush()
                os.fsync(file.fileno())
        finally:
            beside.unlink(missing_ok=True)
        return done

    def head(self, name: str) -> ObjectEntry | None:
        """Return an object's entry, with the size of its content."""
        entry = self._inner.head(name)
        return None if entry is None else self._entry(entry)

    def list(self, prefix: str) -> Iterator[ObjectEntry]:
        """Yield entries by name, with the sizes of their contents."""
        return map(self._entry, self._inner.list(prefix))

    def delete(self, names: Sequence[str]) -> None:
        """Delete objects."""
        self._inner.delete(names)

    def close(self) -> None:
        """Close the connections."""
        self._inner.close()

    def _entry(self, entry: ObjectEntry) -> ObjectEntry:
        size = content_bytes(entry.size, self._keys.field_bytes)
        return ObjectEntry(entry.name, size, entry.modified_ms)

    def _seal(self, name: str, digest: bytes, chunks: Iterator[bytes]) -> Iterator[bytes]:
        """Yield the bytes of an encrypted object; `digest` is the SHA-256 of its content."""
        key, field = self._keys.current()
        salt = hmac.digest(key.secret, b"raftcron salt" + digest + name.encode(), "sha256")
        lead = _LEAD.pack(ENCRYPTED, self._keys.version, key.id, salt) + field
        yield lead
        encrypt = AESGCM(_derived(key, salt)).encrypt
        for nonce, chunk in _numbered(chunks):
            yield encrypt(nonce, chunk, lead + name.encode())

    def _unseal(self, name: str, lead: bytes, chunks: Iterator[bytes]) -> Iterator[bytes]:
        """Yield the content of an encrypted object.

        Raises:
            ObjectDamaged: it was not written like this under this name with one of the keys.
        """
        if len(lead) < _LEAD.size or not lead.startswith(ENCRYPTED):
            raise ObjectDamaged(self.url, name, "it is not encrypted, and a key is configured")
        _, version, number, salt = _LEAD.unpack_from(lead)
        if version != self._keys.version or len(lead) < self._lead_bytes:
            what = {WITH_FILE: "a key file", WITH_SERVICE: "a key service"}.get(
                version, "something"
            )
            text = f"it is encrypted in version {version}, with {what} that the URL does not name"
            raise ObjectDamaged(self.url, name, text)
        key = self._keys.find(number, lead[_LEAD.size :])
        if key is None:
            text = f"it is encrypted with key {number.hex()}, which the key file or service lacks"
            raise ObjectDamaged(self.url, name, text)
        decrypt: Callable[[bytes, bytes, bytes], bytes] = AESGCM(_derived(key, salt)).decrypt
        try:
            for nonce, chunk in _numbered(chunks):
                yield decrypt(nonce, chunk, lead + name.encode())
        except InvalidTag as error:
            text = "it was changed, cut off, or written under another name"
            raise ObjectDamaged(self.url, name, text) from error


def _derived(key: Key, salt: bytes) -> bytes:
    return HKDF(SHA256(), KEY_BYTES, salt, b"raftcron object").derive(key.secret)


def _numbered(chunks: Iterator[bytes]) -> Iterator[tuple[bytes, bytes]]:
    """Yield each chunk behind its nonce; an empty object has one empty chunk."""
    chunk, number = next(chunks, b""), 0
    for following in chunks:
        yield _NONCE.pack(number.to_bytes(11, "big"), 0), chunk
        chunk, number = following, number + 1
    yield _NONCE.pack(number.to_bytes(11, "big"), 1), chunk


def _chunks(file: BinaryIO, size: int) -> Iterator[bytes]:
    return iter(lambda: file.read(size), b"")
