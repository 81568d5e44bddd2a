"""The first disk of a cell that does not begin with nothing: a state is there, no members are.

A seeded disk is a new one in all but its log, which begins with a dump. Its cell is founded like
any other, by the votes of all its replicas; those that are empty cannot win over it, since their
logs are behind, and get its dump. The disk's token names the cell's *life*, which stands in that
dump and in every later one: disks of different lives do not let each other in.

Crash story: the dump comes first, under its own name, the journal last and in one step. What has a
dump and no journal is no replica's disk yet: it does not start, and seeding may begin again.
"""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterable
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
"""What a seeding that died leaves."""
_FULL: Final = (errno.ENOSPC, errno.EDQUOT)


def seed(
    directory: Path, cell: str, replica: str, position: Position, pieces: Iterable[bytes]
) -> None:
    """Make `directory` the disk of `replica` in a cell to be founded, whose log begins with the
    state in `pieces` at `position`.

    Raises:
        NotEmpty: something is there that no seeding left. DataInUse: a process works there.
        DiskFull, OSError: nothing but what the next seeding removes is left. What `pieces` raises.
    """
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
    before_last()
    base = (position.index, position.term)
    FileJournal.create(disk, identity, base=base)._destroy()


def clear_unfinished(disk: Disk) -> None:
    """Remove what a seeding left that died.

    Raises:
        NotEmpty: something else is there, a dump too that a founded cell has taken: it may be all
            that is left of it.
    """
    names = disk.names()
    others = [name for name in names if name not in _UNFINISHED]
    if others:
        raise NotEmpty(disk.place, f"there is {others[0]}")
    if IN_FORCE in names:
        _check_unfinished(disk)
    for name in names:
        disk.remove(name)
    if names:
        disk.sync_names()


def _check_unfinished(disk: Disk) -> None:
    try:
        is_ours = is_half_seeded(disk)
    except ConsensusError as error:
        raise NotEmpty(disk.place, f"there is a dump that cannot be read: {error}") from error
    if not is_ours:
        raise NotEmpty(disk.place, "there is the dump of a cell, without its journal")
