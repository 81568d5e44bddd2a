"""The folder that becomes a replica's data: empty, or left by a restore that died in it.

Crash story. `restore.json` comes first and goes last; it holds the identity of the claim, so that
the same restore may go on under the same generation. What is fetched has its name only once it is
whole. The engine's disk is seeded last (`consensus.engine.seeding`). Until a generation is begun
nothing here counts, and a restore that ends takes it all back.
"""

from __future__ import annotations

import contextlib
import os
import shutil
from pathlib import Path
from typing import Final

import msgspec

from consensus.engine.seeding import seed
from consensus.leadership import Position
from cron.errors import ConfigError
from cron.failpoints import hit
from cron.state.imaging import Imaging
from cron.state.state import State
from cron.storage.folders import FOLDERS, Folders
from snapshots.disk import UNFINISHED, sync_directory
from snapshots.manifest import STORED_NAME

NOTE: Final = "restore.json"
WORK: Final = "restore"
RAFT: Final = "raft"
_FETCHED: Final = (WORK, *FOLDERS)


class Note(msgspec.Struct, frozen=True):
    """What a restore that died must know to go on. `generation` is 0 until it may have begun
    one."""

    claim: str
    cell: str
    generation: int = msgspec.field(name=STORED_NAME, default=0)
    replica: str = ""


class Target:
    """The data folder of one replica to be."""

    def __init__(self, data: Path, cell: str, replica: str) -> None:
        self.data = data
        self.cell = cell
        self.replica = replica
        self.folders = Folders(data, cell)
        self.work = data / WORK
        self._made: list[Path] = []
        self._is_open = False
        self._generation = 0

    def open(self, draw: str) -> Note:
        """Make the folder ready; return the note of a restore that died here, or a new one with
        the identity `draw`. `leave` ends it, also where this raised.

        Raises:
            ConfigError: something else is there, or the folder cannot be made.
        """
        try:
            note = self._read_note()
            self._check(note)
            self._is_open = True
            self._generation = note.generation if note is not None else 0
            for folder in _missing(self.data):
                folder.mkdir()
                self._made.append(folder)
                sync_directory(folder.parent)
            if note is None:
                note = Note(draw, self.cell, replica=self.replica)
                self.keep(note)
            shutil.rmtree(self.work, ignore_errors=True)
            self.work.mkdir()
            self.folders.open()
        except OSError as error:
            hint = "name a folder that you may write"
            raise ConfigError(f"{self.data}: {error.strerror or error}", hint) from error
        return note

    def _check(self, note: Note | None) -> None:
        """Refuse a folder with anything in it that no restore of this replica has left."""
        ours: tuple[str, ...] = (NOTE + UNFINISHED,)
        if note is not None:
            died_for = (note.cell, note.replica or self.replica)
            if died_for != (self.cell, self.replica):
                text = f"a restore of replica {died_for[1]} of cell {died_for[0]} died here"
                hint = "go on with the configuration of that replica, or name another folder"
                raise ConfigError(f"{self.data}: {text}", hint)
            ours += (NOTE, *_FETCHED)
            ours += (RAFT,) if note.generation else ()
        found = sorted(path.name for path in self.data.iterdir()) if self.data.exists() else []
        strange = [name for name in found if name not in ours]
        if strange:
            hint = "restore into an empty folder, or move this one away"
            raise ConfigError(f"{self.data}: it is not empty: there is {strange[0]}", hint)

    def _read_note(self) -> Note | None:
        try:
            return msgspec.json.decode((self.data / NOTE).read_bytes(), type=Note)
        except FileNotFoundError:
            return None
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            hint = "remove it to begin anew, under another generation"
            raise ConfigError(f"{self.data / NOTE}: {error}", hint) from error

    def keep(self, note: Note) -> None:
        """Keep the note, durably."""
        self._generation = note.generation
        path = self.data / NOTE
        unfinished = path.with_name(path.name + UNFINISHED)
        with unfinished.open("wb") as file:
            file.write(msgspec.json.encode(note))
            file.flush()
            os.fsync(file.fileno())
        unfinished.replace(path)
        sync_directory(self.data)

    def leave(self) -> None:
        """Take back all that was put here, and folders that were made, unless a generation was
        begun: who only looks, or is refused, changes nothing."""
        if self._generation or not self._is_open:
            return
        for name in _FETCHED:
            shutil.rmtree(self.data / name, ignore_errors=True)
        with contextlib.suppress(OSError):
            for name in (NOTE + UNFINISHED, NOTE):
                (self.data / name).unlink(missing_ok=True)
            for folder in reversed(self._made):
                folder.rmdir()

    @property
    def is_done(self) -> bool:
        """Whether a restore that died here had written all but its own traces."""
        raft = self.data / RAFT
        return raft.is_dir() and any(path.name.startswith("wal-") for path in raft.iterdir())

    def finish(self, state: State, position: Position) -> None:
        """Write the replica's disk. Raises what seeding raises."""
        hit("restore-seeded")
        pieces = Imaging.begin(state).pieces()
        seed(self.data / RAFT, self.cell, self.replica, position, pieces)

    def clear(self) -> None:
        """Remove the traces of the restore."""
        shutil.rmtree(self.work, ignore_errors=True)
        (self.data / NOTE).unlink(missing_ok=True)
        with contextlib.suppress(OSError):  # all is written; a note that comes back does no harm
            sync_directory(self.data)


def _missing(folder: Path) -> list[Path]:
    """Return the folder and those above it that are not there, the outermost first."""
    return [one for one in reversed((folder, *folder.parents)) if not one.exists()]
