"""The output of one command, in two files of bounded size.

Each file takes half of the bound. When `.new` is full, it replaces `.old`. So the files contain the
last part of the output, at least half of the bound. Each file begins with 8 bytes: the offset of
its first byte in the whole output. The spawner writes them, from a pipe, so a command that writes
too much becomes slower; the executor reads them.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
from pathlib import Path
from typing import BinaryIO, Final, NamedTuple

HEADER_BYTES: Final = 8
SUFFIXES: Final = (".old", ".new")
READ_TRIES: Final = 3


class Output:
    """The last part of a command's output: at most `bound` bytes on the disk. After `close`, more
    may be written."""

    def __init__(self, stem: str, bound: int) -> None:
        self._stem, self._half = stem, bound // 2
        self._fd, self._size, self._old_size = -1, 0, 0
        self._position = 0
        self.problem = ""

    @property
    def kept(self) -> int:
        """Bytes on the disk."""
        return self._size + self._old_size

    def write(self, data: bytes | memoryview) -> None:
        """Keep `data`. After an error of the disk, output is dropped, so that the command never
        waits."""
        view = memoryview(data)
        while view and not self.problem:
            try:
                if self._size == 0 or self._size >= self._half:
                    if self._size:
                        self.close()
                        os.replace(f"{self._stem}.new", f"{self._stem}.old")
                        self._old_size, self._size = self._size, 0
                    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC
                    self._fd = os.open(f"{self._stem}.new", flags, 0o600)
                    os.write(self._fd, self._position.to_bytes(HEADER_BYTES, "big"))
                elif self._fd < 0:
                    flags = os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC
                    self._fd = os.open(f"{self._stem}.new", flags)
                count = os.write(self._fd, view[: self._half - self._size])
            except OSError as error:
                self.problem = f"output is not kept: {error.strerror}"
                return
            self._size += count
            self._position += count
            view = view[count:]

    def close(self) -> None:
        """Close the file."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


class Piece(NamedTuple):
    """A part of an output, the offset of its first byte in the whole output, and how many bytes of
    the output are kept and dropped."""

    data: bytes
    offset: int
    kept: int
    dropped: int


def stem_of(name: str) -> str:
    """Return the file name, without suffix, of an attempt's output: a hash, because names can be
    longer than a file name."""
    return hashlib.blake2b(name.encode(), digest_size=16).hexdigest()


def read(stem: Path | str, offset: int, limit: int, *, tail: bool) -> Piece:
    """Return up to `limit` bytes from `offset` of the whole output, or the last `limit` ones.

    Bytes before the first one that is kept are skipped. A command without output has no file.
    """
    with contextlib.ExitStack() as files:
        parts = _open(stem, files)
        if not parts:
            return Piece(b"", 0, 0, 0)
        dropped, end = parts[0].base, parts[-1].base + parts[-1].size
        begin = max(dropped, end - limit) if tail else min(max(offset, dropped), end)
        data = bytearray()
        for part in parts:
            data += part.read(begin + len(data), limit - len(data))
    return Piece(bytes(data), begin, end - dropped, dropped)


class _Part(NamedTuple):
    """One of the two files: the offset of its first byte in the whole output, and its size."""

    base: int
    size: int
    file: BinaryIO

    def read(self, offset: int, limit: int) -> bytes:
        """Return up to `limit` bytes from `offset` of the whole output, as far as they are here."""
        place = offset - self.base
        if not 0 <= place < self.size:
            return b""
        count = min(limit, self.size - place)
        return os.pread(self.file.fileno(), count, HEADER_BYTES + place)


def _open(stem: Path | str, files: contextlib.ExitStack) -> list[_Part]:
    """Return the files that belong together, in order."""
    parts: list[_Part] = []
    for _ in range(READ_TRIES):
        found = [_open_part(Path(f"{stem}{suffix}"), files) for suffix in SUFFIXES]
        parts = [part for part in found if part is not None]
        if len(parts) < 2 or parts[0].base + parts[0].size == parts[1].base:
            return parts
        # `.new` replaced `.old` meanwhile: look again.
    return parts[1:]


def _open_part(path: Path, files: contextlib.ExitStack) -> _Part | None:
    try:
        file = files.enter_context(path.open("rb", buffering=0))
    except FileNotFoundError:
        return None
    size = os.fstat(file.fileno()).st_size
    if size < HEADER_BYTES:
        return None
    base = int.from_bytes(os.pread(file.fileno(), HEADER_BYTES, 0), "big")
    return _Part(base, size - HEADER_BYTES, file)
