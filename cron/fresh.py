"""A start on a disk without a log: moves existing files aside until the cell has admitted the disk.

A start that is refused restores the directory, because the next start may be of another kind
(`--join` after a refused `--bootstrap`), and the files may be the only copy of older data. If the
process is killed in between, it leaves the directory `ASIDE`, which the next successful start
removes, and a log that acknowledged nothing, which the engine treats as empty.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Final

ASIDE: Final = ".before-start"
"""The directory for files that were moved aside, in the data directory."""
JOIN: Final = "join"
"""A file in a data directory without a log: the replica joins, as with --join, whatever the options
of its unit say. `raftcron join` makes it."""
_OURS: Final = ("raft", "segments", "snapshots")
"""The files and directories that a replica creates in its data directory."""
_LOCK: Final = "lock"


class FreshStart:
    """One start of a replica that has no log yet. Calls block; there are few files."""

    def __init__(self, data: Path) -> None:
        """List the files in `data`, and move aside those of an earlier start. Empty directories
        stay, because an operator may have mounted a disk there.
        """
        self._data = data
        self._aside = data / ASIDE
        self._had_raft = (data / "raft").is_dir()
        self._had_lock = (data / "raft" / _LOCK).exists()
        found = [path for path in self._found() if path.name != "raft"]
        self._stays = [
            path
            for path in found
            if path.is_dir() and not any(path.iterdir()) and not self._kept(path).exists()
        ]
        for path in found:
            if path not in self._stays:
                self._aside.mkdir(exist_ok=True)
                if self._kept(path).exists():  # left by a start that was killed
                    _remove(path)
                else:
                    path.rename(self._kept(path))

    def _found(self) -> list[Path]:
        return [path for pattern in _OURS for path in sorted(self._data.glob(pattern))]

    def _kept(self, path: Path) -> Path:
        return self._aside / path.name

    def undo(self) -> None:
        """Restore the directory; call it after all files in it are closed."""
        for path in self._found():
            if path in self._stays:
                for made in path.iterdir():
                    _remove(made)
            elif path.name != "raft":
                _remove(path)
        raft = self._data / "raft"
        if not self._had_raft:
            shutil.rmtree(raft, ignore_errors=True)
        else:
            for path in sorted(raft.iterdir()):
                if path.name != _LOCK or not self._had_lock:
                    _remove(path)
        if self._aside.is_dir():
            for path in sorted(self._aside.iterdir()):
                path.rename(self._data / path.name)
            self._aside.rmdir()


def has_log(data: Path) -> bool:
    """Return whether the data directory of a replica has a log; it need not exist."""
    raft = data / "raft"
    return raft.is_dir() and any(one.name != "lock" for one in raft.iterdir())


def keep(data: Path) -> None:
    """Delete what only the start needed, after the cell has admitted the replica: the files that
    were moved aside, and JOIN."""
    shutil.rmtree(data / ASIDE, ignore_errors=True)
    (data / JOIN).unlink(missing_ok=True)


def _remove(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)
