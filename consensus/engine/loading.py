"""Loads a replica's journal and dump at its start, after a crash at any moment."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Final

import msgspec

from consensus.config import EngineConfig
from consensus.engine.envelope import changes_members
from consensus.engine.membership import decode_members
from consensus.engine.storage.disk import Disk
from consensus.engine.storage.dump import IN_FORCE, TAKEN, Dump, check_dump
from consensus.engine.storage.incoming import INCOMING, MARKS
from consensus.engine.storage.journal import FileJournal
from consensus.engine.storage.recovery import recover
from consensus.engine.storage.segments import TEMPORARY, Identity, segment_numbers
from consensus.errors import ALONE, DiskFull, LogDamaged, NoData, UnknownFormat
from consensus.limits import ROOM_BYTES_MIN, SEGMENT_BYTES

_PRE_RELEASE: Final = "journal"
_PRE_RELEASE_MAGIC: Final = b"RCJOURN1"


class Loaded(msgspec.Struct, frozen=True):
    """The journal, which continues the dump, and the installed dump if there is one."""

    journal: FileJournal
    dump: Dump | None


def load(
    disk: Disk,
    config: EngineConfig,
    draw_token: Callable[[], int],
    *,
    segment_bytes: int = SEGMENT_BYTES,
) -> Loaded:
    """Load the files on `disk`. An empty disk begins as `config.start` says, with a new token. So
    does a disk whose journal acknowledged nothing, as a refused start leaves it.

    Raises:
        NoData: it is empty, and `config.start` is `resume`. DiskFull: there is too little free
        space. LogDamaged: journal or dump cannot be read, or entries between them are missing.
        UnknownFormat: another version wrote it.
    """
    try:
        return _load(disk, config, draw_token, segment_bytes)
    except LogDamaged as error:
        if len(config.peers) == 1 and error.hint == LogDamaged.hint:
            error.hint = f"what this disk acknowledged may be lost; {ALONE}"
        raise


def _load(
    disk: Disk, config: EngineConfig, draw_token: Callable[[], int], segment_bytes: int
) -> Loaded:
    names = disk.names()
    _refuse_pre_release(disk, names)
    has_journal, has_dump = bool(segment_numbers(names)), IN_FORCE in names
    if has_dump and not has_journal:
        if not is_half_seeded(disk):
            raise LogDamaged(disk.place, "the journal is missing, but a dump is there")
        error = LogDamaged(disk.place, "a state was being put here, which did not finish")
        error.hint = "this is no replica's disk yet; run `raftcron restore` again"
        raise error
    if not has_journal and config.start == "resume":
        raise NoData(disk.place, is_alone=len(config.peers) == 1)
    disk.remove(TAKEN)
    disk.remove(TEMPORARY)
    if disk.room_bytes() < ROOM_BYTES_MIN:
        disk.remove(INCOMING)
        disk.remove(MARKS)
    room = disk.room_bytes()
    if room < ROOM_BYTES_MIN:
        raise DiskFull(disk.place, f"{room} bytes are free, at least {ROOM_BYTES_MIN} are needed")
    if has_journal and not has_dump and config.start == "join" and _promised_nothing(disk):
        for name in disk.names():
            disk.remove(name)
        disk.sync_names()
        has_journal = False
    if not has_journal:
        identity = Identity(config.cell, config.replica, draw_token(), config.start == "join")
        journal = FileJournal.create(
            disk, identity, segment_bytes=segment_bytes, keeps=changes_members
        )
        return Loaded(journal, None)
    dump = check_dump(disk, IN_FORCE) if has_dump else None
    journal = FileJournal.open(
        disk, config.replica, config.cell, segment_bytes=segment_bytes, keeps=changes_members
    )
    _join(disk, journal, dump)
    return Loaded(journal, dump)


def _promised_nothing(disk: Disk) -> bool:
    """Return whether the journal has neither a vote nor an entry, so that no replica relies on it.
    A disk that was created to join is kept: its token may be in the others' logs before its own log
    has an entry.
    """
    if len(segment_numbers(disk.names())) > 1:
        return False
    found, log = recover(disk)
    is_virgin = found.term == 0 and found.vote is None and len(log) == 1
    return is_virgin and log.begin == 1 and not found.identity.joins


def draw_token() -> int:
    """Return a random token for a new disk."""
    return int.from_bytes(os.urandom(8), "big") >> 2 or 1


def is_half_seeded(disk: Disk) -> bool:
    """Return whether the dump on `disk`, which has no journal, was left by an interrupted seeding:
    such a dump has no members.

    Raises:
        LogDamaged, UnknownFormat: it cannot be read.
    """
    dump = check_dump(disk, IN_FORCE)
    return dump.life != 0 and not decode_members(dump.members)


def _refuse_pre_release(disk: Disk, names: list[str]) -> None:
    if _PRE_RELEASE not in names:
        return
    file = disk.open(_PRE_RELEASE)
    magic = file.read(0, len(_PRE_RELEASE_MAGIC))
    file.close()
    if magic == _PRE_RELEASE_MAGIC:
        error = UnknownFormat(f"{disk.place}/{_PRE_RELEASE}: written by a pre-release")
        error.hint = "it cannot be read; start the cell anew in empty directories"
        raise error


def _join(disk: Disk, journal: FileJournal, dump: Dump | None) -> None:
    begin = journal.log.begin
    place = f"{disk.place}/{IN_FORCE}"
    if dump is None:
        if begin > 1:
            raise LogDamaged(place, f"missing, but the journal begins at {begin}")
        return
    if begin > max(dump.position.index, 1):
        raise LogDamaged(
            place, f"holds what is up to {dump.position.index}, but the journal begins at {begin}"
        )
    journal.continue_dump(dump.position)
    journal.remove_obsolete()
