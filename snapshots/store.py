"""The interface of object storage: objects with names, and conditional writes.

All calls block; make them in a thread of their own. Every error of the store is raised as
StoreError (`snapshots.errors`). Names are relative to the store's prefix.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Final, Protocol

import msgspec

from snapshots.errors import invariant

NAME_BYTES_MAX: Final = 800
"""S3 allows 1,024 bytes, including the prefix."""
_NAME = re.compile(r"[A-Za-z0-9._=+@:-]+(/[A-Za-z0-9._=+@:-]+)*")

Tell = Callable[[int], None]
"""Called with the number of bytes transferred so far."""


class ObjectEntry(msgspec.Struct, frozen=True):
    """An object in a listing; `modified_ms` is by the store's clock."""

    name: str
    size: int
    modified_ms: int


class SignedPut(msgspec.Struct, frozen=True):
    """A signed URL with which a client without credentials may put one object, also repeatedly,
    until it expires. The client must send `headers`. The URL is a secret.
    """

    url: str
    headers: dict[str, str]


class ObjectStore(Protocol):
    """A flat namespace of objects. An object is visible to every client once `put` returns."""

    @property
    def url(self) -> str:
        """The store's URL, normalised and without secrets. It identifies the store."""

    def conditional(self) -> bool:
        """Return whether the store honours `put(if_absent=True)`; tested once."""

    def put(self, name: str, content: bytes, *, if_absent: bool = False) -> bool:
        """Put an object. With `if_absent`, return False if the name exists already; it may be our
        own object, if the answer to an earlier attempt was lost.
        """

    def put_file(
        self, name: str, path: Path, *, if_absent: bool = False, progress: Tell | None = None
    ) -> bool:
        """Put the file at `path`, as a multipart upload if it is large. Otherwise like `put`."""

    def sign_put(self, name: str, size: int, sha256: bytes, valid_s: int) -> SignedPut | None:
        """Return a URL for a put of exactly these bytes within `valid_s` seconds; None if the store
        cannot sign URLs.
        """

    def get(self, name: str, bytes_max: int) -> bytes:
        """Return an object.

        Raises:
            ObjectMissing: there is no object. ObjectDamaged: it is truncated, or longer
                than `bytes_max`.
        """

    def get_file(self, name: str, path: Path) -> int:
        """Write an object to `path`, synced, and replace an existing file; return its size.

        Raises:
            ObjectMissing, ObjectDamaged: see `get`; `path` may be incomplete.
            OSError: the write failed.
        """

    def head(self, name: str) -> ObjectEntry | None:
        """Return the object's entry, None if there is none."""

    def list(self, prefix: str) -> Iterator[ObjectEntry]:
        """Yield all objects whose names begin with `prefix`, in order of names."""

    def delete(self, names: Sequence[str]) -> None:
        """Delete objects; missing ones are no error."""

    def close(self) -> None:
        """Close the connections."""


def is_name(name: str) -> bool:
    """Return whether `name` is a valid object name."""
    is_good = len(name) <= NAME_BYTES_MAX and _NAME.fullmatch(name) is not None
    return is_good and not {".", ".."} & {*name.split("/")}


def check_name(name: str) -> str:
    """Return `name` if it is a valid object name; otherwise stop, because the caller has a bug."""
    invariant(is_name(name), f"{name!r} cannot be an object's name")
    return name


PROBE: Final = "raftcron-probe"
"""The probe object of `conditional`; it is removed again."""


def probe_conditional(store: ObjectStore) -> bool:
    """Return whether a second conditional put of one name is refused."""
    store.delete([PROBE])
    try:
        first = store.put(PROBE, b"first", if_absent=True)
        second = store.put(PROBE, b"second", if_absent=True)
        return first and not second and store.get(PROBE, 64) == b"first"
    finally:
        store.delete([PROBE])
