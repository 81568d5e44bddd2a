"""Payloads that are too long for a task: a client stores them, a worker reads them.

Such a task carries a reference: `{"$payload": {"store": ..., "sha256": ..., "bytes": ...}}`. The
payload is in the store under its SHA-256, so the same payload is stored once, and is the same
content. A worker reads from the stores that it was given and from no other: a reference comes from
whoever submits.

Nothing here deletes. A payload is needed until its task is over and forgotten, longer if it becomes
a dead letter; nobody but the store's owner knows how long that is. Give the bucket a lifecycle
rule; each submit of a payload makes it new again.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
from pathlib import Path
from typing import Final, Protocol
from urllib.parse import unquote, urlsplit

import msgspec

from launcher.errors import LauncherError

PAYLOADS: Final = "RAFTCRON_PAYLOADS"
"""The environment variable that names the stores, with commas between them. A client puts into the
first one, a worker reads from all."""
STORED_BYTES_MAX: Final = 64 << 20
"""One payload: a worker has it in memory, several times as long as it is while it is decoded."""
MARK: Final = b'"$payload"'
MARK_WITHIN: Final = 32
"""A reference has its mark within so many bytes from its start."""


class PayloadTooLarge(LauncherError):
    """A payload is too long even for a store."""


class PayloadsAway(LauncherError):
    """A store could not be reached, or refused: another try may do."""


class PayloadGone(LauncherError):
    """A payload is not where its reference says, or is another one: no other try will find it."""


class PayloadStore(Protocol):
    """Where payloads are, by name. Any object with these may be one. `url` names it: a worker looks
    for its own store of the same URL.

    `put` and `get` raise PayloadsAway where the store does not answer; any other error counts as
    that.
    """

    url: str

    def put(self, name: str, content: bytes) -> None:
        """Keep content under a name; if it is there already, make it new again."""

    def get(self, name: str) -> bytes | None:
        """Return the content of a name, None if there is none."""


class Reference(msgspec.Struct, frozen=True):
    """Where a payload is, and what it is."""

    store: str
    sha256: str
    bytes: int


class _Carried(msgspec.Struct, forbid_unknown_fields=True, rename={"payload": "$payload"}):
    payload: Reference


class FileStore:
    """Payloads as files of a folder, which clients and workers share."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.url = folder.as_uri()

    def put(self, name: str, content: bytes) -> None:
        """Write a file, whole or not at all."""
        path = self._folder / name
        part = path.with_name(f"{name}.{os.urandom(8).hex()}.part")
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            with part.open("xb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
            part.replace(path)
        except OSError as error:
            with contextlib.suppress(OSError):
                part.unlink()
            raise PayloadsAway(f"payload cannot be written to {path}: {error.strerror}") from error

    def get(self, name: str) -> bytes | None:
        """Return the content of a file, None if there is none."""
        try:
            return (self._folder / name).read_bytes()
        except FileNotFoundError:
            return None
        except OSError as error:
            text = f"payload {self._folder / name} cannot be read: {error.strerror}"
            raise PayloadsAway(text) from error


_STORES: Final[dict[str, PayloadStore]] = {}


def open_store(said: str | PayloadStore) -> PayloadStore:
    """Return a store by its URL, `s3://bucket/prefix` or `file:///folder`, or one that is there
    already. This process reads from it from now on.

    Raises:
        ValueError: the URL is none of a store.
    """
    if not isinstance(said, str):
        _STORES[said.url] = said
        return said
    url = _url(said)
    if url not in _STORES:
        _STORES[url] = _made(url)
    return _STORES[url]


def first_store() -> PayloadStore | None:
    """Return the store that the environment names first, if it names one.

    Raises:
        ValueError: the URL is none of a store.
    """
    urls = _named()
    return open_store(urls[0]) if urls else None


def put_payload(store: PayloadStore, content: bytes) -> bytes:
    """Store a payload; return the reference that a task carries.

    Raises:
        PayloadTooLarge: it has more than STORED_BYTES_MAX. PayloadsAway: it is not stored.
    """
    if len(content) > STORED_BYTES_MAX:
        raise PayloadTooLarge(
            f"payload has {len(content):,} bytes of JSON, at most {STORED_BYTES_MAX:,} are stored"
        )
    name = hashlib.sha256(content).hexdigest()
    _away(store, "put", name, content)
    return msgspec.json.encode(_Carried(Reference(store.url, name, len(content))))


def whole_payload(payload: bytes) -> bytes:
    """Return a payload as it was submitted: what a reference stands for, others as they are.

    Raises:
        PayloadGone: it is not there, or is another one; or this process does not read its store.
        PayloadsAway: the store does not answer.
    """
    try:
        reference = msgspec.json.decode(payload, type=_Carried).payload
    except msgspec.DecodeError:
        return payload
    if reference.store not in _STORES and reference.store in _named():
        open_store(reference.store)
    store, name = _STORES.get(reference.store), reference.sha256
    if store is None:
        raise PayloadGone(
            f"payload is in {reference.store}, which this worker does not read",
            f"start it with {PAYLOADS}={reference.store}",
        )
    is_name = len(name) == 64 and not set(name) - set("0123456789abcdef")
    content: bytes | None = _away(store, "get", name) if is_name else None
    if content is None:
        raise PayloadGone(
            f"payload {name[:64]} is not in {reference.store}: somebody deleted it",
            "submit the task again, and keep payloads longer than tasks",
        )
    if len(content) != reference.bytes or hashlib.sha256(content).hexdigest() != name:
        raise PayloadGone(f"payload {name} in {reference.store} is not what was submitted")
    return content


def _away(store: PayloadStore, what: str, *given: object) -> bytes | None:
    """Call a store, which may be the user's own."""
    try:
        content: bytes | None = getattr(store, what)(*given)
    except PayloadsAway:
        raise
    except Exception as error:
        raise PayloadsAway(f"{store.url} cannot {what} a payload: {error}") from error
    return content


def _named() -> list[str]:
    return [_url(one) for one in os.environ.get(PAYLOADS, "").split(",") if one.strip()]


def _url(text: str) -> str:
    return text.strip().rstrip("/")


def _made(url: str) -> PayloadStore:
    parts = urlsplit(url)
    if parts.scheme == "s3" and parts.netloc:
        from launcher.payloads_s3 import S3Store

        return S3Store(parts.netloc, parts.path.strip("/"))
    if parts.scheme == "file" and not parts.netloc and parts.path.startswith("/"):
        return FileStore(Path(unquote(parts.path)))
    raise ValueError(f"payloads {url!r}: write s3://bucket/prefix or file:///folder")
