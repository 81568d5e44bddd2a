"""Snapshots as files of one directory: written whole or not at all, and read back.

`segments.py` writes and reads segments by the same steps.

A file is written under a temporary name, synced, renamed; then its directory is synced, and the
file is read again from the start and compared with what was meant (DESIGN.md,
"Crash points of the disk").
"""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import BinaryIO, Final, TypeVar

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
from snapshots.format import SnapshotHeader
from snapshots.layout import parse_snapshot_name, snapshot_name

UNFINISHED: Final = ".unfinished"
_BUFFER_BYTES: Final = 1 << 20
_UNREADABLE: Final = frozenset({errno.EIO, errno.EBADMSG, errno.EUCLEAN, errno.EISDIR})
"""What the kernel says of a file that is lost; other errors, as too many open files, pass."""

H = TypeVar("H", bound=msgspec.Struct)


class SnapshotFile(msgspec.Struct, frozen=True):
    """A snapshot on a disk, verified. `checksum` is the SHA-256 of all its bytes but itself."""

    path: Path
    header: SnapshotHeader
    content_bytes: int
    content_digest: bytes
    file_bytes: int
    checksum: bytes


class FrameFile(msgspec.Struct):
    """What reading a file to its end has shown."""

    lead: bytes
    header: bytes
    content_bytes: int
    content_digest: bytes
    file_bytes: int
    checksum: bytes


AS_ANOTHER: Final = "it was read back as another one than was written"


@contextlib.contextmanager
def read_back(path: Path) -> Iterator[None]:
    """Delete the file at `path`, which was just written, if reading it back fails inside."""
    try:
        yield
    except (SnapshotError, OSError):
        path.unlink(missing_ok=True)
        raise


# --- snapshots


def write_snapshot(
    directory: Path, header: SnapshotHeader, pieces: Iterable[bytes]
) -> SnapshotFile:
    """Keep a snapshot durably in `directory`, which exists; return it as it was read back.

    Raises:
        OSError: the disk refused; no snapshot was harmed. And whatever `pieces` raises.
        SnapshotCorrupt: what was read back is not what was written; the file is gone again.
    """
    path = directory / snapshot_name(header.term, header.index)
    checksum = write_file(path, form.SNAPSHOT_MAGIC, header, packed(pieces))
    with read_back(path):
        found = verify_snapshot(path, header.cell)
        if found.checksum != checksum or found.header != header:
            raise SnapshotCorrupt(path.name, AS_ANOTHER)
    return found


def verify_snapshot(path: Path, cell: str) -> SnapshotFile:
    """Read all of the snapshot at `path` and return what it is.

    Raises:
        SnapshotMissing, SnapshotCorrupt, SnapshotUnsupported, SnapshotForeign: it cannot be used.
        OSError: the disk refused.
    """
    read = read_frames(path, form.SNAPSHOT_MAGIC, lambda block: None, form.CONTENT_BYTES_MAX)
    header = form.decode_header(read.lead, read.header, SnapshotHeader, path.name)
    if header.cell != cell:
        raise SnapshotForeign(path.name, f"it is of cell {header.cell!r}, not {cell!r}")
    named = parse_snapshot_name(path.name)
    if named is not None and named != (header.term, header.index):
        inside = snapshot_name(header.term, header.index)
        raise SnapshotCorrupt(path.name, f"its content belongs to {inside}")
    return SnapshotFile(
        path, header, read.content_bytes, read.content_digest, read.file_bytes, read.checksum
    )


def read_snapshot(path: Path, cell: str) -> tuple[SnapshotFile, Iterator[bytes]]:
    """Return the snapshot at `path`, verified, and its content in pieces of at most 1 MiB.

    Raises:
        as `verify_snapshot`. The pieces raise SnapshotCorrupt if the file changed meanwhile: the
            last one comes only when all of them are known to be right.
    """
    file = verify_snapshot(path, cell)
    return file, _content(file)


def list_snapshots(directory: Path) -> list[Path]:
    """Return the snapshots in `directory`, newest position first; nothing is verified."""
    found = [
        (name, path) for path in files_in(directory) if (name := parse_snapshot_name(path.name))
    ]
    return [path for _, path in sorted(found, reverse=True)]


def newest_snapshot(directory: Path, cell: str) -> tuple[SnapshotFile | None, list[SnapshotError]]:
    """Return the newest snapshot that verifies, None if none does, and why newer ones do not."""
    skipped: list[SnapshotError] = []
    for path in list_snapshots(directory):
        try:
            return verify_snapshot(path, cell), skipped
        except SnapshotError as error:
            skipped.append(error)
    return None, skipped


# --- any file


def sync_directory(directory: Path) -> None:
    """Make the names in `directory` durable.

    Raises:
        OSError: the disk refused.
    """
    opened = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(opened)
    finally:
        os.close(opened)


def move_into_place(unfinished: Path, path: Path) -> None:
    """Give a file that is synced its name, durably, over what has it.

    Raises:
        OSError: the disk refused, and there is no file of that name: a second sync might succeed
            without having written what the first one lost.
    """
    os.replace(unfinished, path)
    try:
        sync_directory(path.parent)
    except OSError:
        path.unlink(missing_ok=True)
        raise


def remove_unfinished(directory: Path) -> list[Path]:
    """Remove what crashes left half written in `directory`; return what was removed."""
    found = sorted(directory.glob(f"*{UNFINISHED}"))
    for path in found:
        path.unlink(missing_ok=True)
    return found


def files_in(directory: Path) -> Iterator[Path]:
    """Yield what is in a directory; nothing where there is none."""
    try:
        yield from directory.iterdir()
    except FileNotFoundError:
        return


def write_file(
    path: Path, magic: bytes, header: msgspec.Struct, frames: Iterable[tuple[bytes, bytes]]
) -> bytes:
    """Write a file of frames, each content and what it is packed into, durably under its name;
    return its checksum.

    Raises:
        OSError: the disk refused; nothing was harmed.
    """
    unfinished = path.with_name(path.name + UNFINISHED)
    try:
        with create(unfinished) as file:
            checksum = _put_frames(file, form.encode_lead(magic, header), frames)
            file.flush()
            os.fsync(file.fileno())
            _forget_pages(file.fileno())
        move_into_place(unfinished, path)
    except BaseException:
        unfinished.unlink(missing_ok=True)
        raise
    return checksum


def _forget_pages(descriptor: int) -> None:
    """Let what is read back come from the disk and not from memory, as far as the kernel likes."""
    with contextlib.suppress(OSError):
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)


def create(path: Path) -> BinaryIO:
    """Open a new file to write, in place of what has its name."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW
    return open(os.open(path, flags, 0o600), "wb", buffering=_BUFFER_BYTES)


def write_frames(file: BinaryIO, lead: bytes, pieces: Iterable[bytes]) -> bytes:
    """Write all of a file that begins with `lead` and holds `pieces`; return its checksum."""
    return _put_frames(file, lead, packed(pieces))


def packed(pieces: Iterable[bytes]) -> Iterator[tuple[bytes, bytes]]:
    """Yield content in blocks of 1 MiB, each with its frame."""
    for block in zstd.blocks(pieces):
        yield block, zstd.compress(block)


def _put_frames(file: BinaryIO, lead: bytes, frames: Iterable[tuple[bytes, bytes]]) -> bytes:
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
    """Open a file to read; what the disk has lost of it is damage, as any other."""
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


def read_frames(
    path: Path, magic: bytes, take: Callable[[bytes], object], content_max: int
) -> FrameFile:
    """Read a file to its end, give its content to `take`, and check everything about it."""
    name = path.name
    sums = form.Summing()
    with opened(path) as file:
        size = os.fstat(file.fileno()).st_size
        lead = file.read(form.LEAD.size)
        header = file.read(form.header_bytes(lead, magic, name))
        sums.file.update(lead + header)
        for block in _frames(file, sums, name, content_max):
            take(block)
        rest = file.read(form.END.size + form.CHECKSUM_BYTES + 1)
    end = sums.end()
    checksum = rest[form.END.size :]
    sums.file.update(end)
    is_whole = rest[: form.END.size] == end[form.LENGTH.size :]
    if not is_whole or sums.file.digest() != checksum:
        raise SnapshotCorrupt(name, "its checksum does not match")
    return FrameFile(lead, header, sums.content_bytes, sums.content.digest(), size, checksum)


def _frames(file: BinaryIO, sums: form.Summing, name: str, content_max: int) -> Iterator[bytes]:
    """Yield the content of each frame; what is read goes into `sums`."""
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
    """Yield the content of a file that was verified, the last piece after looking at all again."""
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
