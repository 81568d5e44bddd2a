"""The first disk of a cell that does not begin with nothing: a state is there, no members are.

A seeded disk is a new one in all but its log, which begins with a dump. Its cell is founded like
any other, by the votes of all its replicas; those that are empty cannot win over it, since their
logs are behind, and get its dump. A disk of the life before knows its id with another token: it
keeps it out, and the seeded replica ends.

Crash story: the dump comes first, under its own name, the journal last and in one step. What has a
dump and no journal is no replica's disk yet: it does not start, and seeding may begin again.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Final

from consensus.engine.membership import encode_members
from consensus.engine.storage.disk import DirectoryDisk, Disk
from consensus.engine.storage.dump import IN_FORCE, TAKEN, check_dump, write_dump
from consensus.engine.storage.journal import FileJournal
from consensus.engine.storage.segments import TEMPORARY, Identity
from consensus.errors import NotEmpty, invariant
from consensus.leadership import Position

_UNFINISHED: Final = (IN_FORCE, TAKEN, TEMPORARY)
"""What a seeding that died leaves."""


def seed(
    directory: Path, cell: str, replica: str, position: Position, pieces: Iterable[bytes]
) -> None:
    """Make `directory` the disk of `replica` in a cell to be founded, whose log begins with the
    state in `pieces` at `position`.

    Raises:
        NotEmpty: something is there that no seeding left. DataInUse: a process works there.
        DiskFull, OSError: nothing but what the next seeding removes is left.
    """
    directory.mkdir(parents=True, exist_ok=True)
    disk = DirectoryDisk(directory)
    try:
        seed_disk(disk, Identity(cell, replica, draw_token(), joins=False), position, pieces)
    finally:
        disk.close()


def seed_disk(
    disk: Disk,
    identity: Identity,
    position: Position,
    pieces: Iterable[bytes],
    *,
    before_last: Callable[[], None] = lambda: None,
) -> None:
    """Do it on any disk; `before_last` is called when all but the journal is there."""
    invariant(position.index > 0 and position.term > 0, "a state is at a position")
    clear_unfinished(disk)
    write_dump(disk, TAKEN, position, encode_members({}), pieces)
    disk.rename(TAKEN, IN_FORCE)
    disk.sync_names()
    check_dump(disk, IN_FORCE)
    before_last()
    base = (position.index, position.term)
    FileJournal.create(disk, identity, base=base)._destroy()


def clear_unfinished(disk: Disk) -> None:
    """Remove what a seeding left that died.

    Raises:
        NotEmpty: something else is there.
    """
    names = disk.names()
    others = [name for name in names if name not in _UNFINISHED]
    if others:
        raise NotEmpty(disk.place, f"there is {others[0]}")
    for name in names:
        disk.remove(name)
    disk.sync_names()


def draw_token() -> int:
    """Return a number that no other disk has."""
    return int.from_bytes(os.urandom(8), "big") >> 2 or 1
