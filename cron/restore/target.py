"""The folder that becomes a replica's data: empty, or left by a restore that died in it.

Crash story. `restore.json` comes first and goes last; it holds the identity of the claim, so that
the same restore may go on under the same lineage. What is fetched has its name only once it is
whole. The engine's disk is seeded last (`consensus.engine.seeding`).
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Final

import msgspec

from consensus.engine.seeding import seed
from consensus.leadership import Position
from cron.errors import ConfigError
from cron.failpoints import hit
from cron.keeper.shelf import Folders
from cron.state.imaging import Imaging
from cron.state.state import State
from snapshots.disk import UNFINISHED, sync_directory

NOTE: Final = "restore.json"
WORK: Final = "restore"
RAFT: Final = "raft"
_OURS: Final = (NOTE, NOTE + UNFINISHED, WORK, "segments", "snapshots", RAFT)


class Note(msgspec.Struct, frozen=True):
    """What a restore that died must know to go on."""

    claim: str
    cell: str
    lineage: int = 0


class Target:
    """The data folder of one replica to be."""

    def __init__(self, data: Path, cell: str, replica: str) -> None:
        self.data = data
        self.cell = cell
        self.replica = replica
        self.folders = Folders(data, cell)
        self.work = data / WORK

    def open(self, draw: str) -> Note:
        """Make the folder ready; return the note of a restore that died here, or a new one with
        the identity `draw`.

        Raises:
            ConfigError: something else is there, or the folder cannot be made.
        """
        try:
            self.data.mkdir(parents=True, exist_ok=True)
            names = sorted(path.name for path in self.data.iterdir())
            note = self._read_note()
            strange = [name for name in names if note is None or name not in _OURS]
            if strange:
                hint = "restore into an empty folder, or move this one away"
                raise ConfigError(f"{self.data}: it is not empty: there is {strange[0]}", hint)
            shutil.rmtree(self.work, ignore_errors=True)
            self.work.mkdir()
            self.folders.open()
            if note is None:
                note = Note(draw, self.cell)
                self.keep(note)
        except OSError as error:
            hint = "name a folder that you may write"
            raise ConfigError(f"{self.data}: {error.strerror or error}", hint) from error
        return note

    def _read_note(self) -> Note | None:
        try:
            return msgspec.json.decode((self.data / NOTE).read_bytes(), type=Note)
        except FileNotFoundError:
            return None
        except msgspec.MsgspecError as error:
            hint = "remove it to begin anew, under another lineage"
            raise ConfigError(f"{self.data / NOTE}: {error}", hint) from error

    def keep(self, note: Note) -> None:
        """Keep the note, durably."""
        path = self.data / NOTE
        unfinished = path.with_name(path.name + UNFINISHED)
        unfinished.write_bytes(msgspec.json.encode(note))
        unfinished.replace(path)
        sync_directory(self.data)

    @property
    def is_done(self) -> bool:
        """Whether a restore that died here had written all but its own traces."""
        raft = self.data / RAFT
        return raft.is_dir() and any(path.name.startswith("wal-") for path in raft.iterdir())

    def finish(self, state: State, position: Position) -> None:
        """Write the replica's disk. Raises what seeding raises."""
        if not self.is_done:
            hit("restore-seeded")
            pieces = Imaging.begin(state).pieces()
            seed(self.data / RAFT, self.cell, self.replica, position, pieces)
        self.clear()

    def clear(self) -> None:
        """Remove the traces of the restore."""
        shutil.rmtree(self.work, ignore_errors=True)
        (self.data / NOTE).unlink(missing_ok=True)
        sync_directory(self.data)
