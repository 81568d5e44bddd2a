"""Creates the first disk of a cell that begins with a given state and without members.

A seeded disk is like a new one, except that its log begins with a dump. The cell is founded by the
votes of all its replicas. Replicas with empty logs cannot win the election, because their logs are
behind; they get the dump. The disk's token names the cell's *life*, which this dump and every later
one contain: disks of different lives refuse each other.

Crashes: the dump is renamed first, and the journal is created last, in one step. A directory with a
dump and no journal is not a disk yet: a replica does not start on it, and seeding may be repeated.
"""

from __future__ import annotations

import errno
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from consensus.engine.loading import draw_token, is_half_seeded
from consensus.engine.membership import encode_members
from consensus.engine.storage.disk import DirectoryDisk, Disk
from consensus.engine.storage.dump import IN_FORCE, TAKEN, check_dump, write_dump
from consensus.engine.storage.journal import FileJournal
from consensus.engine.storage.segments import TEMPORARY, Identity
from consensus.errors import ConsensusError, DiskFull, NotEmpty, invariant
from consensus.leadership import Position

_UNFINISHED: Final = (IN_FORCE, TAKEN, TEMPORARY)
"""Files that an interrupted seeding may leave."""
_FULL: Final = (errno.ENOSPC, errno.EDQUOT)


def seed(
    directory: Path, cell: str, replica: str, position: Position, pieces: Iterable[bytes]
) -> None:
    """Make `directory` the disk of `replica` in a new cell whose log begins with the state in
    `pieces` at `position`.

    Raises:
        NotEmpty: it contains files of something else. DataInUse: a process uses it.
        DiskFull, OSError: the write failed; the next seeding removes what is left. Errors of
            `pieces` pass.
    """
    disk = DirectoryDisk(directory)
    try:
        seed_disk(disk, Identity(cell, replica, draw_token(), joins=False), position, pieces)
    finally:
        disk.close()


def seed_disk(disk: Disk, identity: Identity, position: Position, pieces: Iterable[bytes]) -> None:
    """Seed any disk."""
    invariant(position.index > 0 and position.term > 0, "a state is at a position")
    clear_unfinished(disk)
    life = identity.token
    try:
        write_dump(disk, TAKEN, position, encode_members({}), pieces, life=life)
    except OSError as error:
        if error.errno in _FULL:
            raise DiskFull(disk.place, "the state cannot be written") from error
        raise
    disk.rename(TAKEN, IN_FORCE)
    disk.sync_names()
    check_dump(disk, IN_FORCE)
    base = (position.index, position.term)
    FileJournal.create(disk, identity, base=base)._destroy()


def clear_unfinished(disk: Disk) -> None:
    """Remove the files of an interrupted seeding.

    Raises:
        NotEmpty: there are other files, such as a dump of a founded cell, which may be all that is
            left of it.
    """
    names = disk.names()
    others = [name for name in names if name not in _UNFINISHED]
    if others:
        raise NotEmpty(disk.place, f"there is {others[0]}")
    if IN_FORCE in names:
        try:
            is_ours = is_half_seeded(disk)
        except ConsensusError as error:
            raise NotEmpty(disk.place, f"there is a dump that cannot be read: {error}") from error
        if not is_ours:
            raise NotEmpty(disk.place, "there is the dump of a cell, without its journal")
    for name in names:
        disk.remove(name)
    if names:
        disk.sync_names()
