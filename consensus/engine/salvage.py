"""What the disk of a replica that is stopped still knows, for a cell that has lost its majority.

Nothing is changed. Whether the last entries were committed, nobody can know who has one disk of
three: each may have been acknowledged by it and one other. Whoever goes on from here takes them
all, and takes for doubtful what they did not finish.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import msgspec

from consensus.engine.envelope import ENTRY, unseal
from consensus.engine.storage.disk import DirectoryDisk
from consensus.engine.storage.dump import IN_FORCE, Dump, check_dump, read_pieces
from consensus.engine.storage.recovery import recover
from consensus.engine.storage.segments import segment_numbers
from consensus.errors import LogDamaged, NoData
from consensus.leadership import Position


class SalvagedEntry(msgspec.Struct, frozen=True):
    """An entry for the Applier."""

    position: Position
    entry: bytes


class Salvaged(msgspec.Struct, frozen=True):
    """The newest state on a disk: a dump, if there is one, and the entries after it.

    `last` is the position of the last entry of any kind, `term` the newest that the disk has seen.
    """

    cell: str
    replica: str
    dump: Position | None
    entries: list[SalvagedEntry]
    last: Position
    term: int


class Salvage:
    """One disk, held as long as this is open, so that no process starts on it meanwhile."""

    def __init__(self, directory: Path) -> None:
        """Open the disk.

        Raises:
            NoData: there is none. DataInUse: a process works there.
        """
        if not directory.is_dir():
            raise NoData(str(directory))
        self._disk = DirectoryDisk(directory)
        self._dump: Dump | None = None

    def read(self) -> Salvaged:
        """Return what is there, checked.

        Raises:
            NoData: the directory is empty.
            LogDamaged, UnknownFormat: it cannot be read back.
        """
        names = self._disk.names()
        if not segment_numbers(names):
            raise NoData(self._disk.place)
        found = recover(self._disk)
        self._dump = check_dump(self._disk, IN_FORCE) if IN_FORCE in names else None
        base = found.entries[0][1]
        after = 0 if self._dump is None else self._dump.position.index
        if base > max(after, 1):
            raise LogDamaged(self._disk.place, f"the dump before entry {base} is missing")
        entries = [
            SalvagedEntry(Position(term, index), envelope.entry)
            for command, index, term in found.entries[1:]
            if index > after
            and (envelope := unseal(command)) is not None
            and envelope.kind == ENTRY
        ]
        _, index, term = found.entries[-1]
        last = Position(term, index)
        if self._dump is not None and self._dump.position.index > index:
            last = self._dump.position
        return Salvaged(
            found.identity.cell,
            found.identity.replica,
            self._dump.position if self._dump is not None else None,
            entries,
            last,
            max(found.term, last.term),
        )

    def pieces(self) -> Iterator[bytes]:
        """Return the dump's state, in pieces; nothing where there is none. After `read`."""
        return iter(()) if self._dump is None else read_pieces(self._disk, self._dump)

    def close(self) -> None:
        """Let go of the disk."""
        self._disk.close()
