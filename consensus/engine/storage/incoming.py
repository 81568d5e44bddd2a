"""A dump that arrives from the leader in pieces, in a temporary file until it is complete.

A second file has marks `term u64 | index u64 | size u64 | digest 32 | offset u64 | crc32 u32`. A
mark is appended when the dump is synced up to that offset, so that a restarted replica resumes
there. The tick thread only appends; syncing and verifying the digest happen in another thread.
"""

from __future__ import annotations

import logging
import struct
import zlib
from collections.abc import Callable
from typing import Final, Protocol, TypeVar

import msgspec

from consensus.engine.storage.disk import Disk, File
from consensus.engine.storage.dump import FILE_BYTES_MAX, Dump, check_dump
from consensus.errors import LogDamaged
from consensus.leadership import Position
from consensus.limits import DUMP_SYNC_BYTES, ROOM_BYTES_MIN

INCOMING: Final = "dump.incoming"
MARKS: Final = "dump.marks"

_MARK: Final = struct.Struct("<QQQ32sQ")
_MARK_BYTES: Final = _MARK.size + 4
_DIGEST_BYTES: Final = 32
_log = logging.getLogger(__name__)
T = TypeVar("T")


class Aside(Protocol):
    """Runs work in another thread, then passes its result or error to the tick thread."""

    def __call__(self, work: Callable[[], T], then: Callable[[T | Exception], None]) -> None:
        """Return at once; `then` is called later, in the tick thread."""


def ignore(_: object) -> None:
    """Ignore the result of work in another thread."""


class Target(msgspec.Struct, frozen=True):
    """The dump that is being received: its position, the size of its file, its digest."""

    term: int
    index: int
    size: int
    digest: bytes


class Incoming:
    """The dump that is being received, if any; used in the tick thread."""

    def __init__(self, disk: Disk, aside: Aside) -> None:
        """Resume the transfer of an earlier process, if there is one."""
        self.target: Target | None = None
        self.offset = 0
        self._disk = disk
        self._aside = aside
        self._file: File | None = None
        self._marked = 0
        self._is_marking = False
        self._is_checking = False
        self._transfer = 0
        self._refused: Target | None = None
        self._resume()

    def take(self, target: Target, offset: int, piece: bytes, whole: Callable[[Dump], None]) -> int:
        """Write a piece of `target`; return the next offset wanted, or its size if it is complete.

        A piece at another offset is dropped. A complete dump is synced and verified in another
        thread; then `whole` is called with it, or it is dropped and requested again from its start.
        """
        if self._is_checking:
            return target.size if target == self.target else 0
        if target != self.target and not self._begin(target):
            return 0
        try:
            if self._file is not None and offset == self.offset:
                self._file.append(piece[: target.size - offset])
                self.offset = self._file.size
        except OSError as error:
            _log.warning("a dump cannot be received: %s", error)
            self.drop()
        if self.target is None:
            return 0
        if self.offset == target.size:
            self._check(target, whole)
            return target.size
        if self.offset - self._marked >= DUMP_SYNC_BYTES and not self._is_marking:
            self._mark(target)
        return self.offset

    def drop(self) -> None:
        """Drop the dump; the result of work in another thread is ignored."""
        self._transfer += 1
        file, self._file = self._file, None
        self.target = None
        self.offset = self._marked = 0
        self._is_marking = self._is_checking = False
        self._disk.remove(INCOMING)
        self._disk.remove(MARKS)
        if file is not None:  # the file is deleted when its last user closes it
            self._aside(file.close, ignore)

    def _begin(self, target: Target) -> bool:
        self.drop()
        fits = target.size <= FILE_BYTES_MAX and len(target.digest) == _DIGEST_BYTES
        if not fits or self._disk.room_bytes() < target.size + ROOM_BYTES_MIN:
            if target != self._refused:
                room = self._disk.room_bytes()
                _log.warning("a dump of %d bytes is refused; room: %d", target.size, room)
            self._refused = target
            return False
        try:
            self._file = self._disk.create(INCOMING)
            self._disk.create(MARKS).close()
        except OSError as error:
            _log.warning("a dump cannot be received: %s", error)
            self.drop()
            return False
        self.target = target
        return True

    # --- in another thread

    def _mark(self, target: Target) -> None:
        disk, offset, transfer = self._disk, self.offset, self._transfer
        content, marks = disk.open(INCOMING), disk.open(MARKS)
        is_first = self._marked == 0

        def work() -> int:
            try:
                content.sync()
                mark = _MARK.pack(target.term, target.index, target.size, target.digest, offset)
                marks.append(mark + zlib.crc32(mark).to_bytes(4, "little"))
                marks.sync()
                if is_first:
                    disk.sync_names()
            finally:
                content.close()
                marks.close()
            return offset

        def then(result: int | Exception) -> None:
            if transfer != self._transfer:
                return
            self._is_marking = False
            if isinstance(result, Exception):
                _log.warning("a dump cannot be received: %s", result)
                self.drop()
            else:
                self._marked = result

        self._is_marking = True
        self._aside(work, then)

    def _check(self, target: Target, whole: Callable[[Dump], None]) -> None:
        disk, transfer = self._disk, self._transfer

        def work() -> Dump:
            file = disk.open(INCOMING)
            try:
                file.sync()
            finally:
                file.close()
            dump = check_dump(disk, INCOMING)
            if (dump.position, dump.digest) != (Position(target.term, target.index), target.digest):
                raise LogDamaged(f"{disk.place}/{INCOMING}", "not the dump that was announced")
            return dump

        def then(result: Dump | Exception) -> None:
            if transfer != self._transfer:
                return
            self._is_checking = False
            if isinstance(result, Exception):
                _log.warning("a received dump is dropped: %s", result)
                self.drop()
            else:
                whole(result)

        self._is_checking = True
        self._aside(work, then)

    # --- an earlier process

    def _resume(self) -> None:
        found = _last_mark(self._disk)
        if found is None:
            self.drop()
            return
        target, offset = found
        self._file = self._disk.open(INCOMING)
        if self._file.size < offset or offset > target.size:
            self.drop()
            return
        self._file.cut(offset)
        self.target, self.offset, self._marked = target, offset, offset


def _last_mark(disk: Disk) -> tuple[Target, int] | None:
    if not {INCOMING, MARKS} <= set(disk.names()):
        return None
    file = disk.open(MARKS)
    content = file.read(0, file.size)
    file.cut(len(content) - len(content) % _MARK_BYTES)  # so that the next mark replaces it
    file.close()
    found: tuple[Target, int] | None = None
    for start in range(0, len(content) - _MARK_BYTES + 1, _MARK_BYTES):
        mark = content[start : start + _MARK.size]
        checksum = content[start + _MARK.size : start + _MARK_BYTES]
        if zlib.crc32(mark).to_bytes(4, "little") == checksum:
            term, index, size, digest, offset = _MARK.unpack(mark)
            found = Target(term, index, size, digest), offset
    return found
