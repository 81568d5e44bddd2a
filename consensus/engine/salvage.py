"""Reads the disk of a stopped replica, for a cell that has lost its majority.

Nothing is changed. The state in the dump was committed. One disk of three does not show whether the
entries behind the dump were committed: each may have been acknowledged by this disk and one other.
A restore uses all of them, and treats launches that they did not finish as doubtful.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import msgspec

from consensus.engine.envelope import ENTRY, unseal
from consensus.engine.storage.disk import ReadDirectory
from consensus.engine.storage.dump import IN_FORCE, Dump, check_dump, read_pieces
from consensus.engine.storage.entries import Entries
from consensus.engine.storage.records import Entry
from consensus.engine.storage.recovery import recover
from consensus.engine.storage.segments import segment_numbers
from consensus.errors import LogDamaged, NoData
from consensus.leadership import Position
from consensus.limits import DUMP_PIECE_BYTES


class SalvagedEntry(msgspec.Struct, frozen=True):
    """An entry for the Applier."""

    position: Position
    entry: bytes


class Salvaged(msgspec.Struct, frozen=True):
    """The newest state on a disk: a dump, if there is one, and the entries after it.

    `last` is the position of the last entry of any kind, `term` the newest term on the disk. It is
    unknown whether `entries` are committed.
    """

    cell: str
    replica: str
    dump: Position | None
    entries: list[SalvagedEntry]
    last: Position
    term: int


class Salvage:
    """One disk, locked while this is open, so that no replica starts on it."""

    def __init__(self, directory: Path) -> None:
        """Open the disk.

        Raises:
            NoData: it does not exist. DataInUse: a process uses it.
        """
        if not directory.is_dir():
            raise NoData(str(directory))
        self._disk = ReadDirectory(directory)
        self._dump: Dump | None = None

    def read(self) -> Salvaged:
        """Return the verified contents.

        Raises:
            NoData: the directory is empty. LogDamaged: it cannot be read. UnknownFormat: a newer
            version wrote it.
        """
        names = self._disk.names()
        if not segment_numbers(names):
            if IN_FORCE in names:
                raise LogDamaged(self._disk.place, "the journal is missing, but a dump is there")
            raise NoData(self._disk.place)
        found, log = recover(self._disk)
        self._dump = check_dump(self._disk, IN_FORCE) if IN_FORCE in names else None
        after = Position() if self._dump is None else self._dump.position
        if log.begin > max(after.index, 1):
            what = f"the dump before entry {log.begin} is missing"
            raise LogDamaged(self._disk.place, what)
        behind = _behind(log, after)
        log.reader.close()
        entries = [
            SalvagedEntry(Position(term, index), envelope.entry)
            for command, index, term in behind
            if (envelope := unseal(command)) is not None and envelope.kind == ENTRY
        ]
        last = Position(term=behind[-1][2], index=behind[-1][1]) if behind else after
        return Salvaged(
            found.identity.cell,
            found.identity.replica,
            self._dump.position if self._dump is not None else None,
            entries,
            last,
            max(found.term, last.term),
        )

    def pieces(self) -> Iterator[bytes]:
        """Return the dump's state in pieces; nothing if there is no dump. Call it after `read`."""
        return iter(()) if self._dump is None else read_pieces(self._disk, self._dump)

    def close(self) -> None:
        """Unlock the disk."""
        self._disk.close()


def _behind(log: Entries, after: Position) -> list[Entry]:
    """Return the entries behind a dump at `after`; none if the journal differs there, because a
    leader's dump was installed and the journal was not restarted yet.
    """
    is_there = log.begin <= after.index <= log.last
    if after.index and is_there and log.term_at(after.index) != after.term:
        return []
    behind: list[Entry] = []
    index = max(log.begin, after.index) + 1
    while index <= log.last:
        behind += log.read(index, log.last, DUMP_PIECE_BYTES)
        index = behind[-1][1] + 1
    return behind
