"""The folder that becomes a replica's data: empty, or left by an interrupted restore.

`restore.json` is written first and removed last. It has the identity of the claim, so that an
interrupted restore continues under the same generation. A fetched file gets its name only once it
is complete. The engine's disk is seeded last (`consensus.engine.seeding`). Until a generation is
begun, nothing here counts, and a restore that ends removes all of it.
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
    """What an interrupted restore needs to continue. `generation` is 0 before it begins one."""

    claim: str
    cell: str
    generation: int = msgspec.field(name=STORED_NAME, default=0)
    replica: str = ""


class Target:
    """The data folder of a new replica."""

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
        """Prepare the folder. Return the note of an interrupted restore, or a new one with the
        identity `draw`. Call `leave` afterwards, also after an error.

        Raises:
            ConfigError: something else is there, or the folder cannot be created.
        """
        try:
            note = self._read_note()
            self._check(note)
            self._is_open = True
            self._generation = note.generation if note is not None else 0
            missing = [one for one in (self.data, *self.data.parents) if not one.exists()]
            for folder in reversed(missing):  # the outermost first
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
        """Refuse a folder with files that no restore of this replica left."""
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
        """Write the note durably."""
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
        """Remove all files and folders that this restore created, unless it began a generation."""
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
        """Whether an interrupted restore had written everything."""
        raft = self.data / RAFT
        return raft.is_dir() and any(path.name.startswith("wal-") for path in raft.iterdir())

    def finish(self, state: State, position: Position) -> None:
        """Write the replica's disk. Raises as `seed`."""
        hit("restore-seeded")
        pieces = Imaging.begin(state).pieces()
        seed(self.data / RAFT, self.cell, self.replica, position, pieces)

    def clear(self) -> None:
        """Remove the files of the restore itself."""
        shutil.rmtree(self.work, ignore_errors=True)
        (self.data / NOTE).unlink(missing_ok=True)
        with contextlib.suppress(OSError):  # all is written; a note that reappears does no harm
            sync_directory(self.data)
