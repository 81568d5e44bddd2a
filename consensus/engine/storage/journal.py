"""The journal: entries, term and vote on disk, in segments of frames that are whole or not there.

`sync` writes one frame and waits for the disk. So a bad frame at the very end was never
acknowledged and is cut off; anything else that is bad had been, and the replica does not start (a
silent loss of acknowledged entries could elect a leader without them). When a segment is full the
next one is prepared beside it, with the hard state and the point where it begins, and given its
name; old ones are removed whole, oldest first, once a dump holds what is in them. Nothing that was
written is ever written again, and at no moment is an entry in neither journal nor dump.
"""

from __future__ import annotations

import errno
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final, Protocol, overload

from pysyncobj.journal import Journal

from consensus.engine.storage.disk import Disk
from consensus.engine.storage.records import (
    BASE_COMMAND,
    Entry,
    pack_begin,
    pack_cut,
    pack_entry,
    pack_start,
    pack_vote,
)
from consensus.engine.storage.recovery import Kept, Recovered, mark_cut, recover
from consensus.engine.storage.segments import (
    TEMPORARY,
    Header,
    Identity,
    Segment,
    segment_name,
    write_segment,
)
from consensus.errors import DiskFull, LogDamaged, invariant
from consensus.limits import SEGMENT_BYTES

_FULL: Final = (errno.ENOSPC, errno.EDQUOT)


class Watcher(Protocol):
    """Told what is in the log, in order, durable or not yet."""

    def added(self, index: int, term: int, command: bytes) -> None:
        """An entry follows the last one."""

    def cut(self, index: int) -> None:
        """The entries from `index` on are gone: another leader's log has something else there."""

    def based(self, index: int) -> None:
        """The entries up to and including `index` are gone: they are in a dump."""


class FileJournal(Journal):
    """A replica's log on disk and in memory; PySyncObj's Journal, owned by one thread.

    It never is empty: its first entry says where it begins, and has no content. `add` and
    `cut_from` take effect in memory and become durable with the next `sync`; the rest is durable on
    return. After an OSError or DiskFull of any of them the replica must stop: nobody knows what is
    on the disk. Positions in brackets are list positions, as PySyncObj asks.
    """

    def __init__(
        self, disk: Disk, found: Recovered, tail: Segment, segment_bytes: int = SEGMENT_BYTES
    ) -> None:
        """Go on with what `create` made or `open` found."""
        self.identity = found.identity
        self.entries = found.entries
        self.term = found.term
        self.vote = found.vote
        self.watcher: Watcher | None = None
        self.syncs = 0
        self._disk = disk
        self._sequence = found.sequence
        self._kept = found.kept
        self._tail = tail
        self._segment_bytes = segment_bytes
        self._buffer: list[bytes] = []
        self._is_broken = False
        self._obsolete: deque[str] = deque()

    @staticmethod
    def create(
        disk: Disk,
        identity: Identity,
        *,
        base: tuple[int, int] = (1, 0),
        segment_bytes: int = SEGMENT_BYTES,
    ) -> FileJournal:
        """Return a new journal in a directory that has none: nothing but its begin, at index 1 or
        at the (index, term) of a dump that is in force, whose term is the newest that was.

        Raises:
            DiskFull: there is no room for it.
        """
        index, term = base
        found = Recovered(identity, [(BASE_COMMAND, index, term)], term=term)
        try:
            tail = write_segment(disk, Header(1, 0, identity), _first_frame(found, base))
        except OSError as error:
            raise _refusal(disk, error) from error
        found.sequence = 1
        found.kept = [Kept(1, index, tail.file.size)]
        return FileJournal(disk, found, tail, segment_bytes)

    @staticmethod
    def open(
        disk: Disk, replica: str, cell: str, *, segment_bytes: int = SEGMENT_BYTES
    ) -> FileJournal:
        """Return the journal that is there, without a torn last frame.

        Raises:
            LogDamaged: it cannot be read back, or belongs to another replica or cell.
            UnknownFormat: a newer version wrote it.
        """
        found = recover(disk)
        for what, ours, theirs in (
            ("replica", replica, found.identity.replica),
            ("cell", cell, found.identity.cell),
        ):
            if ours != theirs:
                raise LogDamaged(disk.place, f"the journal belongs to {what} {theirs}, not {ours}")
        last = found.kept[-1]
        file = disk.open(segment_name(last.number))
        if file.size > last.size:
            file.cut(last.size)
        # Who was killed may not have synced what it wrote, and we answer for all that we read.
        file.sync()
        disk.remove(TEMPORARY)
        disk.sync_names()
        tail = Segment(file, Header(last.number, 0, found.identity))
        return FileJournal(disk, found, tail, segment_bytes)

    @property
    def size_bytes(self) -> int:
        """How much the segments have that are needed."""
        return sum(segment.size for segment in self._kept)

    @property
    def has_obsolete(self) -> bool:
        """Whether there is something to remove."""
        return bool(self._obsolete)

    # --- writing

    def sync(self) -> None:
        """Make everything that was written durable, in one frame.

        Raises:
            DiskFull: there is no room for it. OSError: the disk failed.
        """
        if not self._buffer:
            return
        invariant(not self._is_broken, "the journal goes on after its disk failed")
        records = b"".join(self._buffer)
        self._buffer = []
        with self._stopping():
            self._tail.append(self._sequence, records)
        self._sequence += 1
        self.syncs += 1
        self._kept[-1].size = self._tail.file.size
        if self._tail.file.size >= self._segment_bytes:
            self._begin_segment()

    def _begin_segment(self) -> None:
        # All frames of the one before are on the disk, so what it begins behind is known.
        _, index, term = self.entries[-1]
        number = self._tail.number + 1
        found = Recovered(self.identity, term=self.term, vote=self.vote)
        header = Header(number, self._sequence, self.identity)
        with self._stopping():
            tail = write_segment(self._disk, header, _first_frame(found, (index, term)))
        self._tail.file.close()
        self._tail = tail
        self._sequence += 1
        self._kept.append(Kept(number, index, tail.file.size))

    def add(self, command: bytes, index: int, term: int) -> None:
        """Append one entry; its index follows the last one's."""
        invariant(index == self.entries[-1][1] + 1, f"entry {index} does not follow the last")
        self.entries.append((command, index, term))
        self._buffer.append(pack_entry(command, index, term))
        self._buffer.append(command)
        if self.watcher is not None:
            self.watcher.added(index, term, command)

    def cut_from(self, index: int) -> None:
        """Forget the entries from `index` on: another leader's log has something else there."""
        invariant(index > self.entries[0][1], "a cut would empty the journal")
        del self.entries[index - self.entries[0][1] :]
        mark_cut(self._kept, index)
        self._buffer.append(pack_cut(index))
        if self.watcher is not None:
            self.watcher.cut(index)

    def set_base(self, index: int, term: int) -> None:
        """Forget everything: a dump, in force already, holds what is up to (index, term)."""
        self.sync()
        if self.watcher is not None and self.entries[-1][1] > index:
            self.watcher.cut(index + 1)
        self.entries = [(BASE_COMMAND, index, term)]
        self._buffer.append(pack_begin(index, term))
        self.sync()
        if self._kept[-1].base != index or not self._kept[-1].opens:
            self._begin_segment()
        self.forget_before(index)

    def forget_before(self, index: int) -> None:
        """Let the entries before `index` go, and its own content: a dump, in force already, holds
        them. What is not needed any more on the disk, `remove_obsolete` removes."""
        slot = index - self.entries[0][1]
        invariant(0 <= slot < len(self.entries), f"{index} is not in the journal")
        self.sync()
        self.entries = [(BASE_COMMAND, index, self.entries[slot][2]), *self.entries[slot + 1 :]]
        first = max(
            (at for at, kept in enumerate(self._kept) if kept.opens and kept.base <= index),
            default=0,
        )
        self._obsolete.extend(segment_name(kept.number) for kept in self._kept[:first])
        del self._kept[:first]
        if self.watcher is not None:
            self.watcher.based(index)

    def remove_obsolete(self) -> None:
        """Remove the segments that nothing needs; in any thread, but in one at a time, as a file
        system takes its time. Oldest first and each durably, so that whoever dies in it leaves no
        gap, whatever order the file system keeps names in."""
        while self._obsolete:
            self._disk.remove(self._obsolete[0])
            self._disk.sync_names()
            self._obsolete.popleft()

    @contextmanager
    def _stopping(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            self._is_broken = True
            raise _refusal(self._disk, error) from error

    # --- what PySyncObj calls, by its names

    def setCurrentTerm(self, term: int, vote: str | None) -> None:  # noqa: N802
        """Keep term and vote; durable on return, so a message may follow."""
        self.term, self.vote = term, vote
        self._buffer.append(pack_vote(term, vote))
        self.sync()

    def getCurrentTerm(self) -> int:  # noqa: N802
        """Return the newest term this replica has seen."""
        return self.term

    def getVotedForNodeId(self) -> str | None:  # noqa: N802
        """Return whom it voted for in that term."""
        return self.vote

    def setRaftCommitIndex(self, index: int) -> None:  # noqa: N802
        """Not kept: a leader says it again (an own one could run ahead of the log)."""

    def getRaftCommitIndex(self) -> int:  # noqa: N802
        """Return the index that is always committed."""
        return 1

    def _destroy(self) -> None:
        if not self._is_broken:
            self.sync()
        self._tail.file.close()

    @overload
    def __getitem__(self, slot: int) -> Entry: ...
    @overload
    def __getitem__(self, slot: slice) -> list[Entry]: ...
    def __getitem__(self, slot: int | slice) -> Entry | list[Entry]:
        return self.entries[slot]

    def __len__(self) -> int:
        return len(self.entries)


def _first_frame(found: Recovered, point: tuple[int, int]) -> bytes:
    return pack_vote(found.term, found.vote) + pack_start(*point)


def _refusal(disk: Disk, error: OSError) -> Exception:
    if error.errno in _FULL:
        return DiskFull(disk.place, "the journal cannot be written")
    return error
