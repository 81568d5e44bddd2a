"""Object storage in a directory: `file:///DIRECTORY`, the embedded default.

An object is a file whose path is the object's name. `put` writes it under a temporary name in the
same directory, syncs it, links or renames it to its name, and syncs the directory. A link fails if
the name exists, which implements "if absent" also between processes. Temporary files that a crash
leaves are never listed, and are removed after a day. Files whose names no object can have are not
listed either.
"""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import BinaryIO, Final

from snapshots.disk import sync_directory
from snapshots.errors import ObjectDamaged, ObjectMissing, StoreAway, StoreError, StoreRefused
from snapshots.store import ObjectEntry, Tell, check_name, is_name

TEMPORARY: Final = ".tmp-"
LEFT_S: Final = 86_400
"""A temporary file older than this was left by a process that died."""
SWEEP_PUTS: Final = 100
_COPY_BYTES: Final = 1 << 20
_LOST: Final = frozenset({errno.EIO, errno.EBADMSG, errno.EUCLEAN})
"""Errors that mean that the disk lost one file; other errors concern the whole store."""
_REFUSALS: Final = (PermissionError, NotADirectoryError, IsADirectoryError)


class DirectoryStore:
    """The objects below `root`; the first write creates `root`."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._puts: dict[Path, int] = {}
        self.url = root.as_uri()

    def conditional(self) -> bool:
        """Return True: a link to an existing name fails."""
        return True

    def put(self, name: str, content: bytes, *, if_absent: bool = False) -> bool:
        """Put an object."""
        return self._put(name, lambda file: file.write(content), if_absent)

    def sign_put(self, name: str, size: int, sha256: bytes, valid_s: int) -> None:
        """Return None: only this process can write here."""

    def put_file(
        self, name: str, path: Path, *, if_absent: bool = False, progress: Tell | None = None
    ) -> bool:
        """Put a file."""

        def copy(file: BinaryIO) -> None:
            with path.open("rb") as source:
                _copy(iter(lambda: source.read(_COPY_BYTES), b""), file, progress)

        return self._put(name, copy, if_absent)

    def _put(self, name: str, write: Callable[[BinaryIO], object], if_absent: bool) -> bool:
        with self._translated():
            path = self._path(name)
            _make(path.parent)
            if if_absent and path.exists():
                return False
            temporary = path.with_name(f"{TEMPORARY}{secrets.token_hex(8)}")
            try:
                with open(temporary, "xb", opener=_private) as file:
                    write(file)
                    file.flush()
                    os.fsync(file.fileno())
                self._sweep(temporary)
                if not if_absent:
                    os.replace(temporary, path)
                else:
                    try:
                        os.link(temporary, path)
                    except FileExistsError:
                        return False
            finally:
                temporary.unlink(missing_ok=True)
            sync_directory(path.parent)
        return True

    def _sweep(self, temporary: Path) -> None:
        """Remove old temporary files beside `temporary`, in one of many calls; ignore errors. Ages
        are measured by the file system's clock.
        """
        folder = temporary.parent
        self._puts[folder] = self._puts.get(folder, -1) + 1
        if self._puts[folder] % SWEEP_PUTS:
            return
        with contextlib.suppress(OSError):
            old_s = temporary.stat().st_mtime - LEFT_S
            for path in folder.glob(f"{TEMPORARY}*"):
                if path.stat().st_mtime < old_s:
                    path.unlink(missing_ok=True)

    def get(self, name: str, bytes_max: int) -> bytes:
        """Return an object."""
        with self._translated(name):
            path = self._path(name)
            size = path.stat().st_size
            if size > bytes_max:
                raise ObjectDamaged(self.url, name, f"{size} bytes are more than {bytes_max}")
            return path.read_bytes()

    def get_file(self, name: str, path: Path) -> int:
        """Write an object to a file."""
        with self._translated(name):
            source = self._path(name).open("rb")
        with source, open(path, "wb", opener=_private) as file:
            done = _copy(self._pieces(name, source), file)
            file.flush()
            os.fsync(file.fileno())
        return done

    def _pieces(self, name: str, source: BinaryIO) -> Iterator[bytes]:
        """Yield the pieces of an object. Read errors are raised as errors of the store."""
        while True:
            with self._translated(name):
                piece = source.read(_COPY_BYTES)
            if not piece:
                return
            yield piece

    def head(self, name: str) -> ObjectEntry | None:
        """Return an object's entry."""
        with self._translated():
            try:
                stat = self._path(name).stat()
            except FileNotFoundError:
                return None
        return ObjectEntry(name, stat.st_size, stat.st_mtime_ns // 1_000_000)

    def list(self, prefix: str) -> Iterator[ObjectEntry]:
        """Yield entries by name."""
        with self._translated():
            found = sorted(self._names(self._root / prefix.rpartition("/")[0]))
        ours = (name for name in found if name.startswith(prefix) and is_name(name))
        for name in ours:
            if (entry := self.head(name)) is not None:
                yield entry

    def _names(self, folder: Path) -> Iterator[str]:
        for place, folders, files in os.walk(folder):
            folders[:] = [one for one in folders if not Path(place, one).is_symlink()]
            inside = Path(place).relative_to(self._root)
            for file in files:
                if not file.startswith(TEMPORARY):
                    yield (inside / file).as_posix()

    def delete(self, names: Sequence[str]) -> None:
        """Delete objects."""
        with self._translated():
            for name in names:
                self._path(name).unlink(missing_ok=True)

    def close(self) -> None:
        """Do nothing: no file is held open."""

    def _path(self, name: str) -> Path:
        path = self._root / check_name(name)
        parent = path.parent.resolve()
        if not parent.is_relative_to(self._root.resolve()):
            raise StoreRefused(self.url, f"object {name} would be outside of it, at {parent}")
        return path

    @contextlib.contextmanager
    def _translated(self, name: str = "") -> Iterator[None]:
        """Raise errors of the file system as StoreError."""
        try:
            yield
        except StoreError:
            raise
        except FileNotFoundError as error:
            if name:
                raise ObjectMissing(self.url, name) from error
            raise StoreAway(self.url, f"{error.strerror or error}") from error
        except _REFUSALS as error:
            hint = "give this user write permission, or use another directory"
            raise StoreRefused(self.url, f"{error.strerror or error}", hint) from error
        except OSError as error:
            if name and error.errno in _LOST:
                text = f"it cannot be read: {error.strerror}"
                raise ObjectDamaged(self.url, name, text) from error
            raise StoreAway(self.url, f"{error.strerror or error}") from error


def _private(path: str, flags: int) -> int:
    """Open a new file that no other user may read."""
    return os.open(path, flags, 0o600)


def _make(folder: Path) -> None:
    """Create a directory and its parents, and sync them."""
    missing = []
    while not folder.is_dir():
        missing.append(folder)
        folder = folder.parent
    for one in reversed(missing):
        one.mkdir(mode=0o700, exist_ok=True)
        sync_directory(one.parent)


def _copy(pieces: Iterator[bytes], target: BinaryIO, progress: Tell | None = None) -> int:
    done = 0
    for piece in pieces:
        target.write(piece)
        done += len(piece)
        if progress is not None:
            progress(done)
    return done
