"""A start on a disk without a log: what it finds is set aside until the cell has taken it in.

A start that is refused leaves the folder as it was: the next one may be of another kind (`--join`
after a `--bootstrap` that the cell refused), and what an earlier life of the disk left may be all
that a person has. A process that is killed in between leaves `ASIDE`, which the next start that
takes part removes, and a log that promised nothing, which the engine takes for none.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Final

ASIDE: Final = ".before-start"
"""A folder in the data directory."""
_OURS: Final = ("raft", "segments", "snapshots")
"""What a replica makes in its data directory."""
_LOCK: Final = "lock"


class FreshStart:
    """One start of a replica that has no log yet. Blocks; the files are few."""

    def __init__(self, data: Path) -> None:
        """List the files in `data`, and set aside those that an earlier start kept. An empty folder
        stays, which an operator may have made on a disk of its own."""
        self._data = data
        self._aside = data / ASIDE
        self._had_raft = (data / "raft").is_dir()
        self._had_lock = (data / "raft" / _LOCK).exists()
        found = [path for path in self._found() if path.name != "raft"]
        self._stays = [path for path in found if _is_empty(path) and not self._kept(path).exists()]
        for path in found:
            if path not in self._stays:
                self._aside.mkdir(exist_ok=True)
                if self._kept(path).exists():  # of a start that was killed
                    _remove(path)
                else:
                    path.rename(self._kept(path))

    def _found(self) -> list[Path]:
        return [path for pattern in _OURS for path in sorted(self._data.glob(pattern))]

    def _kept(self, path: Path) -> Path:
        return self._aside / path.name

    def undo(self) -> None:
        """Leave the folder as it was found; after all files in it are closed."""
        for path in self._found():
            if path in self._stays:
                for made in path.iterdir():
                    _remove(made)
            elif path.name != "raft":
                _remove(path)
        self._undo_raft(self._data / "raft")
        if self._aside.is_dir():
            for path in sorted(self._aside.iterdir()):
                path.rename(self._data / path.name)
            self._aside.rmdir()

    def _undo_raft(self, raft: Path) -> None:
        if not self._had_raft:
            shutil.rmtree(raft, ignore_errors=True)
            return
        for path in sorted(raft.iterdir()):
            if path.name != _LOCK or not self._had_lock:
                _remove(path)


def keep(data: Path) -> None:
    """Let go of what a start set aside: the cell has taken the replica in."""
    shutil.rmtree(data / ASIDE, ignore_errors=True)


def _is_empty(path: Path) -> bool:
    return path.is_dir() and not any(path.iterdir())


def _remove(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)
