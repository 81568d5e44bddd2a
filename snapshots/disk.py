"""Snapshots as files in one directory, written atomically and read back.

`segments.py` writes and reads segments in the same way.

A file is written under a temporary name, synced and renamed. Then its directory is synced, and the
file is read from the start and compared with the intended content (DESIGN.md,
"Crash points of the disk").
"""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import BinaryIO, Final, Generic, TypeVar

import msgspec

from snapshots import format as form
from snapshots import zstd
from snapshots.errors import (
    SnapshotCorrupt,
    SnapshotError,
    SnapshotForeign,
    SnapshotMissing,
    invariant,
)
from snapshots.format import OutputHeader, SegmentHeader, SnapshotHeader
from snapshots.layout import parse_snapshot_name, snapshot_name

UNFINISHED: Final = ".unfinished"
_BUFFER_BYTES: Final = 1 << 20
_UNREADABLE: Final = frozenset({errno.EIO, errno.EBADMSG, errno.EUCLEAN, errno.EISDIR})
"""Errors that count as damage of a file; others, such as too many open files, are raised."""


H = TypeVar("H", SnapshotHeader, SegmentHeader, OutputHeader)


class VerifiedFile(msgspec.Struct, Generic[H], frozen=True):
    """A file on a disk that was read and verified. `checksum` is the SHA-256 of all bytes before
    the checksum, `content_digest` that of the content.
    """

    path: Path
    header: H
    content_bytes: int
    content_digest: bytes
    file_bytes: int
    checksum: bytes


SnapshotFile = VerifiedFile[SnapshotHeader]


# --- snapshots


def write_snapshot(
    directory: Path, header: SnapshotHeader, pieces: Iterable[bytes]
) -> SnapshotFile:
    """Write a snapshot durably to the existing `directory`; return it as it was read back.

    Raises:
        OSError: the write failed; existing snapshots are unchanged. Errors of `pieces` pass.
        SnapshotCorrupt: the file reads back differently; it was removed.
    """
    path = directory / snapshot_name(header.term, header.index)
    blocks = ((block, zstd.compress(block)) for block in zstd.blocks(pieces))
    return write_file(path, form.SNAPSHOT_MAGIC, header, blocks, verify_snapshot)


def verify_snapshot(path: Path, cell: str) -> SnapshotFile:
    """Verify the whole snapshot at `path` and return its description.

    Raises:
        SnapshotMissing, SnapshotCorrupt, SnapshotUnsupported, SnapshotForeign: it cannot be used.
        OSError: the read failed.
    """
    file = read_file(path, form.SNAPSHOT_MAGIC, SnapshotHeader, form.CONTENT_BYTES_MAX)
    header = file.header
    if header.cell != cell:
        raise SnapshotForeign(path.name, f"it is of cell {header.cell!r}, not {cell!r}")
    named = parse_snapshot_name(path.name)
    if named is not None and named != (header.term, header.index):
        inside = snapshot_name(header.term, header.index)
        raise SnapshotCorrupt(path.name, f"its content belongs to {inside}")
    return file


def read_snapshot(path: Path, cell: str) -> tuple[SnapshotFile, Iterator[bytes]]:
    """Return the snapshot at `path`, verified, and its content in pieces of at most 1 MiB.

    Raises:
        as `verify_snapshot`. The pieces raise SnapshotCorrupt if the file changed meanwhile; the
            last piece is returned only after all of them were verified again.
    """
    file = verify_snapshot(path, cell)
    return file, _content(file)


def list_snapshots(directory: Path) -> list[Path]:
    """Return the snapshots in `directory`, newest position first; nothing is verified."""
    found = [
        (name, path) for path in files_in(directory) if (name := parse_snapshot_name(path.name))
    ]
    return [path for _, path in sorted(found, reverse=True)]


# --- any file


def sync_directory(directory: Path) -> None:
    """Sync `directory`, so that the names in it are durable.

    Raises:
        OSError: the sync failed.
    """
    opened = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(opened)
    finally:
        os.close(opened)


def move_into_place(unfinished: Path, path: Path) -> None:
    """Rename a synced file durably, and replace a file of the new name.

    Raises:
        OSError: the sync failed, and no file of that name is left: a second sync might succeed
            without writing what the first one lost.
    """
    os.replace(unfinished, path)
    try:
        sync_directory(path.parent)
    except OSError:
        path.unlink(missing_ok=True)
        raise


def remove_unfinished(directory: Path) -> list[Path]:
    """Remove unfinished files that crashes left in `directory`; return their names."""
    found = sorted(directory.glob(f"*{UNFINISHED}"))
    for path in found:
        path.unlink(missing_ok=True)
    return found


def files_in(directory: Path) -> Iterator[Path]:
    """Yield the entries of a directory; nothing if it does not exist."""
    try:
        yield from directory.iterdir()
    except FileNotFoundError:
        return


def write_file(
    path: Path,
    magic: bytes,
    header: H,
    frames: Iterable[tuple[bytes, bytes]],
    verify: Callable[[Path, str], VerifiedFile[H]],
) -> VerifiedFile[H]:
    """Write a file of frames durably under its name; return what `verify` reads back from it.

    `frames` are pairs of content and compressed content.

    Raises:
        OSError: the write failed; existing files are unchanged.
        SnapshotCorrupt: the file reads back differently; it was removed.
    """
    unfinished = path.with_name(path.name + UNFINISHED)
    try:
        with create(unfinished) as file:
            checksum = put_frames(file, form.encode_lead(magic, header), frames)
            file.flush()
            os.fsync(file.fileno())
            # Drop the cached pages, so that the file is read back from the disk.
            with contextlib.suppress(OSError):
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        move_into_place(unfinished, path)
    except BaseException:
        unfinished.unlink(missing_ok=True)
        raise
    try:
        found = verify(path, header.cell)
        if found.checksum != checksum or found.header != header:
            raise SnapshotCorrupt(path.name, "it reads back differently from what was written")
    except (SnapshotError, OSError):
        path.unlink(missing_ok=True)
        raise
    return found


def create(path: Path) -> BinaryIO:
    """Open a new file for writing; replace a file of the same name."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW
    return open(os.open(path, flags, 0o600), "wb", buffering=_BUFFER_BYTES)


def put_frames(file: BinaryIO, lead: bytes, frames: Iterable[tuple[bytes, bytes]]) -> bytes:
    """Write all of a file that begins with `lead`; return its checksum."""
    sums = form.Summing()

    def put(content: bytes) -> None:
        sums.file.update(content)
        file.write(content)

    put(lead)
    for block, frame in frames:
        sums.add_content(block)
        invariant(sums.content_bytes <= form.CONTENT_BYTES_MAX, "snapshot: it is too large")
        put(form.LENGTH.pack(len(frame)))
        put(frame)
    put(sums.end())
    checksum: bytes = sums.file.digest()
    file.write(checksum)
    return checksum


@contextlib.contextmanager
def opened(path: Path) -> Iterator[BinaryIO]:
    """Open a file for reading; errors that mean lost data are raised as SnapshotCorrupt."""
    try:
        with path.open("rb", buffering=_BUFFER_BYTES) as file:
            yield file
    except FileNotFoundError as error:
        raise SnapshotMissing(path.name, "there is no such file") from error
    except OSError as error:
        if error.errno not in _UNREADABLE:
            raise
        text = f"the disk cannot read it: {error.strerror}"
        raise SnapshotCorrupt(path.name, text) from error


def read_file(
    path: Path,
    magic: bytes,
    kind: type[H],
    content_max: int,
    take: Callable[[bytes], object] = lambda block: None,
) -> VerifiedFile[H]:
    """Read a file to its end, pass its content to `take`, and verify the file.

    Raises:
        SnapshotMissing, SnapshotCorrupt, SnapshotUnsupported: it cannot be used.
        OSError: the read failed.
    """
    name = path.name
    sums = form.Summing()
    with opened(path) as file:
        size = os.fstat(file.fileno()).st_size
        lead = file.read(form.LEAD.size)
        encoded = file.read(form.header_bytes(lead, magic, name))
        sums.file.update(lead + encoded)
        for block in _frames(file, sums, name, content_max):
            take(block)
        rest = file.read(form.END.size + form.CHECKSUM_BYTES + 1)
    end = sums.end()
    checksum = rest[form.END.size :]
    sums.file.update(end)
    is_whole = rest[: form.END.size] == end[form.LENGTH.size :]
    if not is_whole or sums.file.digest() != checksum:
        raise SnapshotCorrupt(name, "its checksum does not match")
    header = form.decode_header(lead, encoded, kind, name)
    return VerifiedFile(path, header, sums.content_bytes, sums.content.digest(), size, checksum)


def _frames(file: BinaryIO, sums: form.Summing, name: str, content_max: int) -> Iterator[bytes]:
    """Yield the content of each frame, and add all bytes that are read to `sums`."""
    while True:
        length = file.read(form.LENGTH.size)
        if len(length) < form.LENGTH.size:
            raise SnapshotCorrupt(name, "its end is missing")
        (size,) = form.LENGTH.unpack(length)
        if not size:
            return
        if size > zstd.FRAME_STORED_BYTES_MAX:
            raise SnapshotCorrupt(name, f"a frame of {size} bytes is larger than any")
        frame = file.read(size)
        sums.file.update(length)
        sums.file.update(frame)
        try:
            block = zstd.decompress(frame)
        except zstd.FrameDamaged as error:
            raise SnapshotCorrupt(name, str(error)) from error
        sums.add_content(block)
        if sums.content_bytes > content_max:
            raise SnapshotCorrupt(name, f"it holds more than {content_max} bytes")
        yield block


def _content(file: SnapshotFile) -> Iterator[bytes]:
    """Yield the content of a verified file; the last piece comes after a second verification."""
    name, sums, held = file.path.name, form.Summing(), b""
    with opened(file.path) as source:
        lead = source.read(form.LEAD.size)
        source.read(form.header_bytes(lead, form.SNAPSHOT_MAGIC, name))
        for block in _frames(source, sums, name, form.CONTENT_BYTES_MAX):
            if held:
                yield held
            held = block
    found = (sums.content_bytes, sums.content.digest())
    if found != (file.content_bytes, file.content_digest):
        raise SnapshotCorrupt(name, "it changed while it was read")
    if held:
        yield held
