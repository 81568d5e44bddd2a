"""Object storage as the rest of the code sees it: names, bytes, and who was first.

All calls block, and belong into a thread of their own. They raise StoreError and nothing else of
the store's doing (`snapshots.errors`). Names are relative to the store's prefix.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Final, Protocol

import msgspec

from snapshots.errors import invariant

NAME_BYTES_MAX: Final = 800
"""S3 allows 1,024 with the prefix."""
_NAME = re.compile(r"[A-Za-z0-9._=+@:-]+(/[A-Za-z0-9._=+@:-]+)*")

Tell = Callable[[int], None]
"""Called with the number of bytes that are done."""


class ObjectEntry(msgspec.Struct, frozen=True):
    """An object in a listing; `modified_ms` is the store's own time."""

    name: str
    size: int
    modified_ms: int


class SignedPut(msgspec.Struct, frozen=True):
    """A URL with which somebody without credentials may put one object, once or again, until it
    expires; `headers` must be sent with it. A secret."""

    url: str
    headers: dict[str, str]


class ObjectStore(Protocol):
    """A flat space of names. What is put is there for everybody once the call returns."""

    @property
    def url(self) -> str:
        """Where it is, normalised and without secrets: by this people and cells know it."""

    def conditional(self) -> bool:
        """Whether `put(if_absent=True)` is honoured; tried once with an object of its own."""

    def put(self, name: str, content: bytes, *, if_absent: bool = False) -> bool:
        """Put an object. Returns False, where `if_absent`, if one is there already: perhaps our
        own, if the answer to an earlier try was lost."""

    def put_file(
        self, name: str, path: Path, *, if_absent: bool = False, progress: Tell | None = None
    ) -> bool:
        """Put the file at `path`, in parts if it is large. As `put` otherwise."""

    def sign_put(self, name: str, size: int, sha256: bytes, valid_s: int) -> SignedPut | None:
        """Return a URL for a put of exactly these bytes within `valid_s` seconds; None where the
        store takes no puts from others."""

    def get(self, name: str, bytes_max: int) -> bytes:
        """Return an object.

        Raises:
            ObjectMissing: there is none. ObjectDamaged: it is cut, or longer than `bytes_max`.
        """

    def get_file(self, name: str, path: Path, *, progress: Tell | None = None) -> int:
        """Write an object to `path`, synced, over what is there; return its size.

        Raises:
            ObjectMissing, ObjectDamaged: see `get`; `path` may be half written.
            OSError: the disk refused.
        """

    def head(self, name: str) -> ObjectEntry | None:
        """Return the object's entry, None if there is none."""

    def list(self, prefix: str) -> Iterator[ObjectEntry]:
        """Yield all objects whose names begin with `prefix`, in order of names."""

    def delete(self, names: Sequence[str]) -> None:
        """Delete objects; missing ones are no error."""

    def close(self) -> None:
        """Let go of connections."""


def is_name(name: str) -> bool:
    """Return whether `name` may be an object's."""
    is_good = len(name) <= NAME_BYTES_MAX and _NAME.fullmatch(name) is not None
    return is_good and not {".", ".."} & {*name.split("/")}


def check_name(name: str) -> str:
    """Return `name` if it may be an object's; anything else is a bug of the caller."""
    invariant(is_name(name), f"{name!r} cannot be an object's name")
    return name


PROBE: Final = "raftcron-probe"
"""What `conditional` tries with; removed again."""


def probe_conditional(store: ObjectStore) -> bool:
    """Return whether a second conditional put of one name is refused."""
    store.delete([PROBE])
    try:
        first = store.put(PROBE, b"first", if_absent=True)
        second = store.put(PROBE, b"second", if_absent=True)
        return first and not second and store.get(PROBE, 64) == b"first"
    finally:
        store.delete([PROBE])
