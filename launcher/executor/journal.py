"""An append-only file of records: synced records survive any crash, or their loss is detected.

Theory of operation. A journal is a head and records. A record has a length, a CRC over itself and
its position, and the offset up to which the journal was synced when the record was written.
Positions never go back: a rewritten journal begins at the position at which the old one ended.

After a crash, the end of the file may be torn. Records that were not synced may be missing or
damaged, with whole ones behind them, because the kernel writes pages in any order. Nothing followed
from them, so the journal ends before the first damaged one. If a later record or the mark shows
that a damaged record was synced, the journal is damaged.

The mark is a small file beside the journal, with the position up to which the journal was synced.
It reveals a journal whose end was cut off, or that an older copy replaced. It is written after each
sync and is not synced itself, so it may be too low, and is never too high.

Every start rewrites the journal. So a torn end is never overwritten in place, and records that an
earlier process could not sync do not count as synced because the kernel still had them in memory.
"""

from __future__ import annotations

import contextlib
import os
import struct
import uuid
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final, NamedTuple
from zlib import crc32

from launcher import disk_errors
from launcher.errors import LedgerDamaged, LedgerOld, LedgerStuck

VERSION: Final = 5
OLDEST: Final = 4
"""The oldest version that can be read; it is rewritten as VERSION."""
REWRITE_BYTES_MIN: Final = 1 << 20
"""A journal is rewritten when it is longer than this, and than twice its size after the last
rewrite."""
_HEAD: Final = struct.Struct("<8sIQ16s")
_MAGIC: Final = b"raftcron"
_RECORD: Final = struct.Struct("<4sIQ")
_SYNC: Final = b"\xffrj\n"
"""Begins each record; no UTF-8 text contains 0xff."""
_CRC: Final = struct.Struct("<I")
_PLACE: Final = struct.Struct("<Q")
_MARK_BYTES: Final = 200


class Disk:
    """The files of the journal at `path`, in a directory that no other process uses. All methods
    but `read_mark`, `write_mark` and `close` may raise OSError."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._mark_path = path.with_name(f"{path.name}.mark")
        self._fd = self._mark = -1

    def read(self) -> bytes | None:
        """Return the content of the journal, None if there is none."""
        try:
            return self.path.read_bytes()
        except FileNotFoundError:
            return None

    def replace(self, pieces: Iterable[bytes]) -> None:
        """Write a new journal and replace the old one by it, durably. The old one is complete until
        then; later appends go to the new one."""
        fresh = self.path.with_name(f"{self.path.name}.new")
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND | os.O_CLOEXEC
        fd = os.open(fresh, flags, 0o600)
        try:
            for piece in pieces:
                _write(fd, piece)
            os.fsync(fd)
            fresh.replace(self.path)
            folder = os.open(self.path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            try:
                os.fsync(folder)
            finally:
                os.close(folder)
        except BaseException:
            os.close(fd)
            fresh.unlink(missing_ok=True)  # the old one may need the space
            raise
        self.close()
        self._fd = fd

    def append(self, data: bytes) -> None:
        """Append `data`; it survives a crash of the process, not of the host."""
        _write(self._fd, data)

    def sync(self) -> None:
        """Return once everything appended is on the disk."""
        os.fdatasync(self._fd)

    def read_mark(self) -> bytes:
        """Return the content of the mark, b"" if it cannot be read."""
        try:
            return os.pread(self._open_mark(), _MARK_BYTES, 0)
        except OSError:
            return b""

    def write_mark(self, content: bytes) -> None:
        """Overwrite the mark, whose content always has the same length, without a sync. After an
        error the mark is too low, which does no harm."""
        with contextlib.suppress(OSError):
            os.pwrite(self._open_mark(), content, 0)

    def close(self) -> None:
        """Close the files."""
        for fd in (self._fd, self._mark):
            if fd >= 0:
                os.close(fd)
        self._fd = self._mark = -1

    def _open_mark(self) -> int:
        if self._mark < 0:
            self._mark = os.open(self._mark_path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        return self._mark


def _write(fd: int, data: bytes) -> None:
    rest = memoryview(data)
    while rest:
        rest = rest[os.write(fd, rest) :]


class Contents(NamedTuple):
    """The content of a journal: its UUID, its records, and the position of its end."""

    uuid: str
    records: list[bytes]
    end: int


class _Found(NamedTuple):
    body: bytes
    synced: int
    end: int


class Journal:
    """The journal on `disk`. Call `load`, then `rewrite`; from then on `append`.

    Errors are final: after a failed append or sync, the content of the disk is unknown, so every
    later call raises the same LedgerStuck.
    """

    def __init__(self, disk: Disk) -> None:
        self.uuid = ""
        self._disk = disk
        self._base = self._size = self._synced = self._long = 0
        self._stuck: LedgerStuck | None = None

    @property
    def is_long(self) -> bool:
        """Whether it has more than twice its size after the last rewrite."""
        return self._size > self._long

    def load(self) -> list[bytes] | None:
        """Return the records, oldest first; None if there is no journal yet.

        Raises:
            LedgerDamaged: a synced record is missing or damaged.
            LedgerOld: an older version wrote it.
            LedgerStuck: the disk cannot be read.
        """
        try:
            data = self._disk.read()
        except OSError as error:
            raise self._fail(error) from error
        if data is None:
            return None
        try:
            found = read(data)
            self._check_end(found)
        except _OldVersion as error:
            raise old(self._disk.path) from error
        except ValueError as error:
            raise damaged(self._disk.path, str(error)) from error
        self.uuid, self._base = found.uuid, found.end
        return found.records

    def _check_end(self, found: Contents) -> None:
        try:
            name, number = self._disk.read_mark().decode("ascii").split()
            marked = int(number) if name == found.uuid else 0
        except ValueError:
            return
        if marked > found.end:
            missing = f"the newest {marked - found.end} of {marked} bytes are missing"
            raise ValueError(f"{missing}: its end is cut off, or it is an older copy")

    def rewrite(self, records: Iterable[bytes]) -> None:
        """Replace the content of the journal by `records`, synced.

        Raises:
            LedgerStuck: the disk is full, or fails.
        """
        if self._stuck is not None:
            raise self._stuck
        base = self._base + self._size
        size = 0

        def pieces() -> Iterator[bytes]:
            nonlocal size
            head = _HEAD.pack(_MAGIC, VERSION, base, uuid.UUID(self.uuid).bytes)
            size = _HEAD.size + _CRC.size
            yield head + _CRC.pack(crc32(head))
            for body in records:
                # A new journal is complete, or does not exist.
                piece = _record(body, base + size, synced=size)
                size += len(piece)
                yield piece

        try:
            self._disk.replace(pieces())
        except OSError as error:
            raise self._fail(error) from error
        self._base, self._size, self._synced = base, size, size
        self._long = max(REWRITE_BYTES_MIN, 2 * size)
        self._mark_synced()

    def append(self, body: bytes, *, synced: bool) -> None:
        """Append a record, or none if `body` is empty. With `synced`, all records are on the disk
        when this returns; without, they survive a crash of the process and not of the host.

        Raises:
            LedgerStuck: the disk is full, or fails.
        """
        if self._stuck is not None:
            raise self._stuck
        try:
            if body:
                piece = _record(body, self._base + self._size, synced=self._synced)
                self._disk.append(piece)
                self._size += len(piece)
            if not synced or self._synced == self._size:
                return
            self._disk.sync()
        except OSError as error:
            raise self._fail(error) from error
        self._synced = self._size
        self._mark_synced()

    def abandon(self, why: str) -> None:
        """Refuse all later writes."""
        self._stuck = self._stuck or LedgerStuck(f"journal {self._disk.path}: {why}")

    def close(self) -> None:
        """Close the files; appended records are in them."""
        self._disk.close()

    def _mark_synced(self) -> None:
        self._disk.write_mark(f"{self.uuid} {self._base + self._synced:020}\n".encode("ascii"))

    def _fail(self, error: OSError) -> LedgerStuck:
        path, what = self._disk.path, error.strerror or str(error)
        can = "cannot write" if error.errno in disk_errors.FULL else "cannot be used"
        hint = f"see to the disk of {path.parent}"
        if what_to_do := disk_errors.hint_of(error):
            hint = f"{hint}: {what_to_do}"
        self._stuck = LedgerStuck(f"journal {path}: {can}: {what}", hint)
        return self._stuck


class _OldVersion(ValueError):
    """A journal of a version before this one."""


def old(path: Path) -> LedgerOld:
    """Return the error for a ledger that an older version wrote."""
    return LedgerOld(
        f"ledger {path}: was written by a version of raftcron that this one cannot read",
        f"let that version end what it runs, then move {path.parent} away; the executor "
        "begins a new ledger, and the cell takes what is still open in this one for lost",
    )


def damaged(path: Path, problem: str) -> LedgerDamaged:
    """Return the error for a damaged journal."""
    return LedgerDamaged(
        f"journal {path}: cannot be read: {problem}",
        f"move {path.parent} away; the executor then begins a new ledger under a new UUID, "
        "and the cell takes its open launches for lost",
    )


def read(data: bytes) -> Contents:
    """Return the content of a journal, without a torn end that was never synced.

    Raises:
        ValueError: a synced record is damaged.
    """
    at = _HEAD.size + _CRC.size
    if len(data) < at or _CRC.unpack_from(data, _HEAD.size)[0] != crc32(data[: _HEAD.size]):
        raise ValueError("its head is damaged")
    magic, version, base, identity = _HEAD.unpack_from(data)
    if magic == _MAGIC and version < OLDEST:
        raise _OldVersion(f"version {version} is older than {OLDEST}")
    if magic != _MAGIC or version > VERSION:
        raise ValueError(f"version {version} is not {VERSION}")
    records: list[bytes] = []
    while (found := _at(data, at, base)) is not None:
        records.append(found.body)
        at = found.end
    # A record behind the first damaged one may show that this was synced.
    behind = at
    while (behind := data.find(_SYNC, behind + 1)) >= 0:
        later = _at(data, behind, base)
        if later is not None and later.synced > at:
            raise ValueError(f"the record at byte {at} is damaged, and was synced")
    return Contents(str(uuid.UUID(bytes=identity)), records, base + at)


def _at(data: bytes, at: int, base: int) -> _Found | None:
    """Return the record at offset `at`, None if there is no complete one."""
    begin = at + _RECORD.size + _CRC.size
    if begin > len(data):
        return None
    sync, length, synced = _RECORD.unpack_from(data, at)
    end = begin + length
    if sync != _SYNC or end > len(data):
        return None
    body = data[begin:end]
    head = data[at : at + _RECORD.size] + _PLACE.pack(base + at)
    if _CRC.unpack_from(data, at + _RECORD.size)[0] != crc32(body, crc32(head)):
        return None
    return _Found(body, synced, end)


def _record(body: bytes, place: int, *, synced: int) -> bytes:
    head = _RECORD.pack(_SYNC, len(body), synced)
    return head + _CRC.pack(crc32(body, crc32(head + _PLACE.pack(place)))) + body
