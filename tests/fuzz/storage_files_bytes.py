"""What any bytes in the place of a stored file may do: be refused, and never be taken for another.

Snapshots, segments, the manifests beside them, and objects that are encrypted. Some targets make
checksums right, so that what is behind them is reached too.
"""

from __future__ import annotations

import atexit
import hashlib
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

import msgspec

from snapshots import format as form
from snapshots import manifest, zstd
from snapshots.disk import create, put_frames, read_snapshot, verify_snapshot
from snapshots.encrypted import EncryptedStore, FileKeys, Key
from snapshots.errors import SnapshotError, StoreError
from snapshots.format import SegmentHeader, SnapshotHeader
from snapshots.layout import parse_segment_name, parse_snapshot_name, segment_name, snapshot_name
from snapshots.manifest import Generation, Manifest, SegmentName
from snapshots.segments import open_segment, verify_segment
from tests.fakes.memory_store import MemoryStore
from tests.fuzz.subject import Finding, Subject, check_same

CELL: Final = "prod"
_KEYS: Final = FileKeys([Key.of(bytes(32))])
_SNAPSHOT: Final = SnapshotHeader(CELL, 1, 7, 4711, bytes(16), 1_795_190_400_000)
_SEGMENT: Final = SegmentHeader(CELL, 1, 3, "runs", 10, 20, 3, bytes(16))
_SHM: Final = Path("/dev/shm")
_FOLDER: Final = tempfile.TemporaryDirectory(dir=_SHM if _SHM.is_dir() else None)
atexit.register(_FOLDER.cleanup)


def snapshot(content: bytes) -> bool:
    """As the file of a snapshot."""
    path = _written(snapshot_name(_SNAPSHOT.term, _SNAPSHOT.index), content)
    with suppress(SnapshotError):
        file, pieces = read_snapshot(path, CELL)
        size = sum(map(len, pieces))
        check_same(file.content_bytes, size, "the size of a snapshot")
        return True
    return False


def sealed_snapshot(content: bytes) -> bool:
    """As a header and frames of a snapshot whose checksums are right."""
    length, content = content[:1], content[1:]
    header, blocks = content[: sum(length)], content[sum(length) :]
    path = _sealed(snapshot_name(7, 4711), form.SNAPSHOT_MAGIC, header, [blocks])
    with suppress(SnapshotError):
        file = verify_snapshot(path, CELL)
        check_same(len(blocks), file.content_bytes, "the size of a snapshot")
        return True
    return False


def segment(content: bytes) -> bool:
    """As the file of a segment: what its sections are is in the file that was verified, or it is
    refused."""
    return _reads_segment(_written(segment_name(1, 3, "runs"), content))


def sealed_segment(content: bytes) -> bool:
    """As the table and the frames of a segment whose checksums are right."""
    length, content = content[:1], content[1:]
    table, blocks = content[: sum(length)], content[sum(length) :]
    lead = msgspec.msgpack.encode(_SEGMENT)
    path = _sealed(segment_name(1, 3, "runs"), form.SEGMENT_MAGIC, lead, [table, blocks])
    return _reads_segment(path)


def _reads_segment(path: Path) -> bool:
    is_good = False
    with suppress(SnapshotError):
        verify_segment(path, CELL)
        is_good = True
    with suppress(SnapshotError):
        sections = open_segment(path, CELL)
        for number in range(len(sections)):
            sections.read(number)
    return is_good


def sealed_manifest(content: bytes) -> bool:
    """As the text of a manifest or a marker whose checksum is right."""
    is_good = False
    summed = content + b',\n "sum": "%s"\n}\n' % hashlib.sha256(content).hexdigest().encode()
    for text in (content, summed):
        for kind in (Manifest, Generation):
            with suppress(SnapshotError):
                found: Any = manifest.decode(text, "manifest.json", CELL, kind)
                again = manifest.decode(manifest.encode(found), "manifest.json", CELL, kind)
                check_same(found, again, "a manifest")
                is_good = True
    return is_good


def encrypted(content: bytes) -> bool:
    """As an object of an encrypted store: only what was put there comes out."""
    inner = MemoryStore()
    store = EncryptedStore(inner, _KEYS, inner.url)
    inner.objects["a/b"] = content
    place = Path(_FOLDER.name) / "got"
    found = []
    with suppress(StoreError):
        found.append(store.get("a/b", 1 << 20))
    with suppress(StoreError):
        store.get_file("a/b", place)
        found.append(place.read_bytes())
    if any(one != _SECRET for one in found) or len(found) == 1:
        raise Finding(f"{found} came out of an object that nobody put there")
    return bool(found)


def names(content: bytes) -> bool:
    """As the name of a file: one that is read is written in one way."""
    text = content.decode("utf-8", "replace")
    position = parse_snapshot_name(text)
    if position is not None:
        check_same(text, snapshot_name(*position), "a name")
    place = parse_segment_name(text)
    if place is not None:
        check_same(text, segment_name(*place), "a name")
    return position is not None or place is not None


def _written(name: str, content: bytes) -> Path:
    path = Path(_FOLDER.name) / name
    path.write_bytes(content)
    return path


def _sealed(name: str, magic: bytes, header: bytes, blocks: list[bytes]) -> Path:
    """Write a file with right checksums around any header and content."""
    path = Path(_FOLDER.name) / name
    lead = form.LEAD.pack(magic, form.FORMAT_VERSION, len(header)) + header
    with create(path) as file:
        put_frames(file, lead, _frames(blocks))
    return path


def _frames(blocks: list[bytes]) -> Iterator[tuple[bytes, bytes]]:
    for block in blocks:
        yield block, zstd.compress_checked(block)


_SECRET: Final = b"what is stored"


def _stored() -> bytes:
    inner = MemoryStore()
    EncryptedStore(inner, _KEYS, inner.url).put("a/b", _SECRET)
    return inner.objects["a/b"]


def _read_sealed(magic: bytes, header: msgspec.Struct, *blocks: bytes) -> bytes:
    return _sealed("seed", magic, msgspec.msgpack.encode(header), list(blocks)).read_bytes()


_SECTION: Final = zstd.compress_checked(b"rows")
_TABLE: Final = (len(_SECTION) + form.LENGTH.size).to_bytes(4, "big")
_MANIFEST: Final = Manifest(
    cell=CELL, generation=1, term=7, index=4711, taken_ms=1, state_digest="aa", file_bytes=9,
    checksum="bb", content_bytes=4, segments=[SegmentName("s", 1, 2, 3, 4, "cc")],
)  # fmt: skip
_HEADER: Final = msgspec.msgpack.encode(_SNAPSHOT)

SUBJECT: Final = Subject(
    (snapshot, sealed_snapshot, segment, sealed_segment, sealed_manifest, encrypted, names),
    {
        "snapshot": [_read_sealed(form.SNAPSHOT_MAGIC, _SNAPSHOT, b"state")],
        "sealed_snapshot": [bytes([len(_HEADER)]) + _HEADER + b"state"],
        "segment": [_read_sealed(form.SEGMENT_MAGIC, _SEGMENT, _TABLE, b"rows")],
        "sealed_segment": [b"\x04" + _TABLE + b"rows"],
        "sealed_manifest": [
            manifest.encode(_MANIFEST),
            manifest.encode(Generation(cell=CELL, generation=2, id="x")),
            manifest.encode(_MANIFEST).partition(b',\n "sum"')[0],
        ],
        "encrypted": [_stored()],
        "names": [snapshot_name(7, 4711).encode(), segment_name(1, 3, "runs").encode()],
    },
)
