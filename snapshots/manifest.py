"""Manifests of stored snapshots and markers of generations: small JSON objects. Pure.

A manifest is written last: a snapshot without one is not valid. Retention relies on the names in a
manifest, so its last member, `sum`, is the SHA-256 of all bytes before it. A cell with certificates
signs them as well (`snapshots.signed`).
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable
from typing import Annotated, Final, TypeVar

import msgspec

from snapshots.errors import SnapshotCorrupt, SnapshotForeign, SnapshotUnsupported
from snapshots.format import ENCRYPTED, KEY_MISSING

FORMAT: Final = 1
"""The format of manifests and of markers."""
MANIFEST_BYTES_MAX: Final = 64 << 20
"""A manifest with a hundred thousand segments takes 20 MB."""
GENERATION_BYTES_MAX: Final = 16 << 10
STORED_NAME: Final = "lineage"
"""The member that has the generation, in all stored files of format 1."""

_MARKER_HINT: Final = (
    "it says who began this life of the cell: find out who did, and remove it only if that cell "
    "is yours, or never ran"
)

Number = Annotated[int, msgspec.Meta(ge=0, le=2**62)]
Moment = Annotated[int, msgspec.Meta(ge=0, le=253_402_300_799_999)]
"""The end of the year 9999; later times cannot be formatted."""

_SUM = b',\n "sum": "%s"\n}\n'
_SUMMED = re.compile(rb'(.*),\n "sum": "([0-9a-f]{64})"\n}\n', re.DOTALL)


class SegmentName(msgspec.Struct, frozen=True):
    """A segment that a snapshot needs for its history. `digest` is of its content, in hex."""

    name: str
    rows: Number
    from_index: Number
    to_index: Number
    bytes: Number
    digest: str


class Manifest(msgspec.Struct, frozen=True, kw_only=True):
    """A stored snapshot: its position, the size and checksum of its object, and its segments.

    `state_digest` is the State's digest, `checksum` the file's; both in hex. `replica` and
    `release` are those of the uploader. `revoked` are the certificates (SHA-256 in hex) that were
    revoked when it was stored: what they have signed counts no more.
    """

    format: int = FORMAT
    cell: str
    generation: Number = msgspec.field(name=STORED_NAME)
    term: Number
    index: Number
    taken_ms: Moment
    state_digest: str
    file_bytes: Number
    checksum: str
    content_bytes: Number
    replica: str = ""
    release: str = ""
    segments: list[SegmentName] = []
    jobs: Number = 0
    revoked: list[str] = []

    @property
    def position(self) -> tuple[int, int, int]:
        """Return (generation, index, term), which sorts manifests by age."""
        return (self.generation, self.index, self.term)

    @property
    def place(self) -> tuple[int, int, int]:
        """Return (generation, term, index), as in the names of its objects."""
        return (self.generation, self.term, self.index)


class Generation(msgspec.Struct, frozen=True, kw_only=True):
    """The marker of a generation of the cell. `id` identifies the restore that began it."""

    format: int = FORMAT
    cell: str
    generation: Number = msgspec.field(name=STORED_NAME)
    id: str
    from_snapshot: str = ""
    from_index: Number = 0
    claimed_ms: Moment = 0
    by: str = ""
    host: str = ""


class _Formatted(msgspec.Struct):
    format: int


T = TypeVar("T", Manifest, Generation)


Sign = Callable[[bytes], bytes]
"""Returns the text of an object, without its end, with a signature."""


def encode(value: Manifest | Generation, sign: Sign | None = None) -> bytes:
    """Return the JSON text with line breaks, the signature, if any, and as its last member the
    checksum."""
    text = msgspec.json.format(msgspec.json.encode(value), indent=1)
    body = text.removesuffix(b"\n}")
    if sign is not None:
        body = sign(body)
    return body + _SUM % hashlib.sha256(body).hexdigest().encode()


def decode(content: bytes, name: str, cell: str, kind: type[T]) -> T:
    """Return the manifest or marker of `cell` in `content`; `name` is for messages.

    Raises:
        SnapshotCorrupt, SnapshotUnsupported, SnapshotForeign: it cannot be used.
    """
    hint = _MARKER_HINT if kind is Generation else ""
    if content.startswith(ENCRYPTED):
        raise SnapshotCorrupt(name, KEY_MISSING)
    summed = _SUMMED.fullmatch(content)
    if summed is None or hashlib.sha256(summed[1]).hexdigest().encode() != summed[2]:
        raise SnapshotCorrupt(name, "it cannot be read: its checksum does not match", hint)
    try:
        found = msgspec.json.decode(content, type=_Formatted).format
        if found != FORMAT:
            text = f"it has format {found}, and this release reads {FORMAT}"
            raise SnapshotUnsupported(name, text)
        value = msgspec.json.decode(content, type=kind)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise SnapshotCorrupt(name, f"it cannot be read: {error}", hint) from error
    if value.cell != cell:
        raise SnapshotForeign(name, f"it is of cell {value.cell!r}, not {cell!r}")
    return value


def body_of(content: bytes) -> bytes:
    """Return the bytes before the checksum of a decoded manifest or marker."""
    summed = _SUMMED.fullmatch(content)
    return summed[1] if summed is not None else b""
