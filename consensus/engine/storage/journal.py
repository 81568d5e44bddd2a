"""The journal: entries, term and vote on disk, in segments of atomic frames.

The content of older entries is on the disk only (`entries`).

`sync` writes one frame and waits for the disk. So a bad frame at the very end was never
acknowledged, and is truncated. Any other damage may concern acknowledged entries, so the replica
does not start: otherwise a leader without them could be elected. When a segment is full, the next
one is prepared under a temporary name, with the hard state and its base, and renamed. Old segments
are removed as a whole, oldest first, once a dump covers them. Written bytes are never overwritten,
and every entry is in the journal or in a dump at any moment.
"""

from __future__ import annotations

import errno
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final, Protocol, overload

from pysyncobj.journal import Journal

from consensus.engine.storage.disk import Disk
from consensus.engine.storage.entries import Entries, SegmentReader
from consensus.engine.storage.records import (
    ENTRY_HEAD_BYTES,
    pack_begin,
    pack_cut,
    pack_entry,
    pack_start,
    pack_vote,
)
from consensus.engine.storage.recovery import (
    Kept,
    Recovered,
    keep_none,
    mark_cut,
    recover,
)
from consensus.engine.storage.segments import (
    FRAME_BYTES,
    TEMPORARY,
    Header,
    Identity,
    Segment,
    segment_name,
    write_segment,
)
from consensus.errors import DiskFull, LogDamaged, invariant
from consensus.histogram import Histogram
from consensus.leadership import Position
from consensus.limits import SEGMENT_BYTES

Head = tuple[None, int, int]
"""An entry without its content: None, index, term."""
_FULL: Final = (errno.ENOSPC, errno.EDQUOT)


class Watcher(Protocol):
    """Receives all changes of the log, in order, before they are durable."""

    def added(self, index: int, term: int, command: bytes) -> None:
        """An entry follows the last one."""

    def cut(self, index: int) -> None:
        """The entries from `index` on were truncated: another leader's log differs there."""

    def based(self, index: int) -> None:
        """The entries up to and including `index` were dropped: a dump covers them."""


class FileJournal(Journal):
    """A replica's log on disk; PySyncObj's Journal, owned by one thread.

    It is never empty: its first entry is the base, which has no content. `add` and `cut_from` take
    effect in memory and become durable with the next `sync`; the other changes are durable on
    return. After an OSError or DiskFull the replica must stop, because it is unknown what is on the
    disk. Positions in brackets are list positions, as PySyncObj requires, and return no content;
    `log.read` returns content by index.
    """

    def __init__(
        self,
        disk: Disk,
        found: Recovered,
        log: Entries,
        tail: Segment,
        segment_bytes: int = SEGMENT_BYTES,
    ) -> None:
        """Use the files that `create` made or `open` found."""
        self.identity = found.identity
        self.log = log
        self.term = found.term
        self.vote = found.vote
        self.watcher: Watcher | None = None
        self.syncs = Histogram()
        self._disk = disk
        self._sequence = found.sequence
        self._kept = found.kept
        self._tail = tail
        self._segment_bytes = segment_bytes
        self._buffer: list[bytes] = []
        self._buffered_bytes = 0
        self._is_broken = False
        self._obsolete: deque[str] = deque()

    @staticmethod
    def create(
        disk: Disk,
        identity: Identity,
        *,
        base: tuple[int, int] = (1, 0),
        segment_bytes: int = SEGMENT_BYTES,
        keeps: Callable[[bytes], bool] = keep_none,
    ) -> FileJournal:
        """Create a journal in a directory that has none: only a base, at index 1 or at the (index,
        term) of an installed dump. The content of entries for which `keeps` returns True stays in
        memory (`log.kept`).

        Raises:
            DiskFull: there is no space for it.
        """
        index, term = base
        found = Recovered(identity, SegmentReader(disk, 1), keeps, term=term)
        try:
            tail = write_segment(disk, Header(1, 0, identity), _first_frame(term, None, base))
        except OSError as error:
            raise _refusal(disk, error) from error
        found.sequence = 1
        found.kept = [Kept(1, index, tail.file.size)]
        log = Entries(found.reader, index, term, keeps)
        return FileJournal(disk, found, log, tail, segment_bytes)

    @staticmethod
    def open(
        disk: Disk,
        replica: str,
        cell: str,
        *,
        segment_bytes: int = SEGMENT_BYTES,
        keeps: Callable[[bytes], bool] = keep_none,
    ) -> FileJournal:
        """Open the existing journal, without a torn last frame; `keeps` as for `create`.

        Raises:
            LogDamaged: it cannot be read, or belongs to another replica or cell.
            UnknownFormat: a newer version wrote it.
        """
        found, log = recover(disk, keeps)
        owner = found.identity
        for what, ours, theirs in (("replica", replica, owner.replica), ("cell", cell, owner.cell)):
            if ours != theirs:
                raise LogDamaged(disk.place, f"the journal belongs to {what} {theirs}, not {ours}")
        last = found.kept[-1]
        file = disk.open(segment_name(last.number))
        if file.size > last.size:
            file.cut(last.size)
        # A killed process may not have synced its last writes, and this replica acknowledges all
        # entries that it reads.
        file.sync()
        disk.remove(TEMPORARY)
        disk.sync_names()
        tail = Segment(file, Header(last.number, 0, found.identity))
        return FileJournal(disk, found, log, tail, segment_bytes)

    @property
    def size_bytes(self) -> int:
        """The size in bytes of the segments that are needed."""
        return sum(segment.size for segment in self._kept)

    @property
    def has_obsolete(self) -> bool:
        """Return whether there are segments to remove."""
        return bool(self._obsolete)

    # --- writing

    def sync(self) -> None:
        """Make everything that was written durable, in one frame.

        Raises:
            DiskFull: there is no space for it. OSError: the disk failed.
        """
        if not self._buffer:
            return
        invariant(not self._is_broken, "the journal goes on after its disk failed")
        records = b"".join(self._buffer)
        self._buffer, self._buffered_bytes = [], 0
        began_s = time.monotonic()
        with self._stopping():
            self._tail.append(self._sequence, records)
        self.syncs.note((time.monotonic() - began_s) * 1000)
        self.log.written()
        self._sequence += 1
        self._kept[-1].size = self._tail.file.size
        if self._tail.file.size >= self._segment_bytes:
            self._begin_segment()

    def _begin_segment(self) -> None:
        # All frames of the previous segment are on the disk, so the base of this one is known.
        point = (self.log.last, self.log.last_term)
        number = self._tail.number + 1
        header = Header(number, self._sequence, self.identity)
        with self._stopping():
            tail = write_segment(self._disk, header, _first_frame(self.term, self.vote, point))
        self._tail.file.close()
        self._tail = tail
        self._sequence += 1
        self._kept.append(Kept(number, point[0], tail.file.size))

    def add(self, command: bytes, index: int, term: int) -> None:
        """Append one entry; its index follows the last one's."""
        invariant(index == self.log.last + 1, f"entry {index} does not follow the last")
        # The next sync writes one frame, at the end of the tail as it is now.
        offset = self._tail.file.size + FRAME_BYTES + self._buffered_bytes + ENTRY_HEAD_BYTES
        self.log.add(command, term, self.log.reader.place(self._tail.number, offset))
        self._write(pack_entry(command, index, term))
        self._write(command)
        if self.watcher is not None:
            self.watcher.added(index, term, command)

    def _write(self, record: bytes) -> None:
        self._buffer.append(record)
        self._buffered_bytes += len(record)

    def cut_from(self, index: int) -> None:
        """Truncate the entries from `index` on: another leader's log differs there."""
        invariant(index > self.log.begin, "a cut would empty the journal")
        self.log.cut_from(index)
        mark_cut(self._kept, index)
        self._write(pack_cut(index))
        if self.watcher is not None:
            self.watcher.cut(index)

    def set_base(self, index: int, term: int) -> None:
        """Drop all entries: an installed dump covers everything up to (index, term)."""
        self.sync()
        if self.watcher is not None and self.log.last > index:
            self.watcher.cut(index + 1)
        self.log.restart(index, term)
        self._write(pack_begin(index, term))
        self.sync()
        if self._kept[-1].base != index or not self._kept[-1].opens:
            self._begin_segment()
        self.forget_before(index)

    def continue_dump(self, dumped: Position) -> None:
        """Make the journal continue the dump at `dumped`: keep the tail if the journal has that
        entry, otherwise restart behind it.
        """
        log, index = self.log, dumped.index
        if not (log.begin <= index <= log.last and log.term_at(index) == dumped.term):
            self.set_base(index, dumped.term)

    def forget_before(self, index: int) -> None:
        """Drop the entries before `index`, and the content of `index`, because an installed dump
        covers them. `remove_obsolete` removes segments that are not needed any more.
        """
        invariant(self.log.begin <= index <= self.log.last, f"{index} is not in the journal")
        self.sync()
        self.log.forget_before(index)
        first = max(
            (at for at, kept in enumerate(self._kept) if kept.opens and kept.base <= index),
            default=0,
        )
        self._obsolete.extend(segment_name(kept.number) for kept in self._kept[:first])
        del self._kept[:first]
        if self.watcher is not None:
            self.watcher.based(index)

    def remove_obsolete(self) -> None:
        """Remove the segments that are not needed; in any thread, but one at a time, because it may
        take long. The oldest is removed first and each removal is synced, so that a crash leaves no
        gap.
        """
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

    # --- methods that PySyncObj calls, with its names

    def setCurrentTerm(self, term: int, vote: str | None) -> None:  # noqa: N802
        """Store term and vote; durable on return, so a message may follow."""
        self.term, self.vote = term, vote
        self._write(pack_vote(term, vote))
        self.sync()

    def getCurrentTerm(self) -> int:  # noqa: N802
        """Return the newest term this replica has seen."""
        return self.term

    def getVotedForNodeId(self) -> str | None:  # noqa: N802
        """Return the candidate that it voted for in that term."""
        return self.vote

    def setRaftCommitIndex(self, index: int) -> None:  # noqa: N802
        """Ignore the commit index: a leader sends it again (a stored one could be ahead of the
        log).
        """

    def getRaftCommitIndex(self) -> int:  # noqa: N802
        """Return the index that is always committed."""
        return 1

    def _destroy(self) -> None:
        if not self._is_broken:
            self.sync()
        self.log.reader.close()
        self._tail.file.close()

    @overload
    def __getitem__(self, slot: int) -> Head: ...
    @overload
    def __getitem__(self, slot: slice) -> list[Head]: ...
    def __getitem__(self, slot: int | slice) -> Head | list[Head]:
        log = self.log
        if isinstance(slot, slice):
            indexes = range(log.begin, log.last + 1)[slot]
            return [(None, index, log.term_at(index)) for index in indexes]
        last = log.last
        index = log.begin + slot if slot >= 0 else last + 1 + slot
        if not log.begin <= index <= last:
            raise IndexError(f"no entry at position {slot}")
        return None, index, log.term_at(index)

    def __len__(self) -> int:
        return len(self.log)


def _first_frame(term: int, vote: str | None, point: tuple[int, int]) -> bytes:
    return pack_vote(term, vote) + pack_start(*point)


def _refusal(disk: Disk, error: OSError) -> Exception:
    if error.errno in _FULL:
        return DiskFull(disk.place, "the journal cannot be written")
    if error.filename is None and error.errno is not None:  # a descriptor has no name
        error.filename = disk.place
    return error
