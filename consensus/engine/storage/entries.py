"""The entries of a journal: their places on the disk, and a cache of the newest ones.

An entry takes 16 bytes of memory: its place, its length and its CRC-32. Its content is in memory
only while it is among the newest `ENTRY_CACHE_BYTES`, or not yet on the disk. `read` reads an older
entry from its segment and verifies it with the checksum computed when it was added, so that damaged
bytes are never sent or applied.
"""

from __future__ import annotations

import zlib
from array import array
from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Callable
from operator import itemgetter
from typing import Final

from consensus.engine.storage.disk import Disk, File
from consensus.engine.storage.records import Entry
from consensus.engine.storage.segments import segment_name
from consensus.errors import LogDamaged
from consensus.limits import ENTRY_CACHE_BYTES

ENTRY_OVERHEAD_BYTES: Final = 64
"""The overhead of an entry in the cache or in a message."""
_OFFSET_BITS: Final = 32
_GAP_BYTES_MAX: Final = (
    4096  # how much one read skips between two entries: headers, votes, truncations
)
_FILES_MAX: Final = 2


class SegmentReader:
    """Reads the segments of a journal whose first segment is `origin`; keeps two files open."""

    def __init__(self, disk: Disk, origin: int) -> None:
        self._disk = disk
        self._origin = origin
        self._files: OrderedDict[int, File] = OrderedDict()

    def place(self, number: int, offset: int) -> int:
        """Return the place of a byte of a segment; places increase along the journal."""
        return (number - self._origin) << _OFFSET_BITS | offset

    def read(self, place: int, count: int) -> bytes:
        """Return `count` bytes.

        Raises:
            LogDamaged: the segment is missing, too short, or cannot be read.
        """
        number, offset = self._where(place)
        file = self._files.get(number)
        if file is None:
            while len(self._files) >= _FILES_MAX:
                self._files.popitem(last=False)[1].close()
            try:
                file = self._disk.open(segment_name(number))
            except FileNotFoundError as error:
                what = "missing, but its entries are needed"
                raise LogDamaged(self.describe(place), what) from error
            self._files[number] = file
        try:
            content = file.read(offset, count)
        except OSError as error:
            raise LogDamaged(self.describe(place), f"cannot be read back: {error}") from error
        if len(content) < count:
            raise LogDamaged(self.describe(place), f"ends before {count} bytes that were written")
        return content

    def describe(self, place: int) -> str:
        """Return the name of the file of `place`, for error messages."""
        return f"{self._disk.place}/{segment_name(self._where(place)[0])}"

    def offset(self, place: int) -> int:
        """Return the offset of `place` in its file."""
        return self._where(place)[1]

    def _where(self, place: int) -> tuple[int, int]:
        return (place >> _OFFSET_BITS) + self._origin, place & (1 << _OFFSET_BITS) - 1

    def close(self) -> None:
        """Close all files, so that removed segments free their space."""
        while self._files:
            self._files.popitem()[1].close()


class Entries:
    """The entries behind the base of the log; owned by the journal's thread.

    `begin` is the index of the base, which has no content. Terms are stored as runs, because a log
    has few. The content of entries for which `keeps` returns True stays in memory (`kept`).
    """

    def __init__(
        self, reader: SegmentReader, index: int, term: int, keeps: Callable[[bytes], bool]
    ) -> None:
        self.reader = reader
        self._keeps = keeps
        self.restart(index, term)

    def restart(self, index: int, term: int) -> None:
        """Forget everything, and start behind (index, term)."""
        self.begin = index
        self.last = index
        self._terms = [(index, term)]
        self._places = array("Q")
        self._lengths = array("I")
        self._sums = array("I")
        self._cache: list[bytes] = []  # the content of the last entries
        self._cached_bytes = 0
        self.kept: list[Entry] = []
        self.reader.close()

    def __len__(self) -> int:
        """The number of entries, including the base."""
        return self.last - self.begin + 1

    @property
    def last_term(self) -> int:
        """The term of the last entry."""
        return self._terms[-1][1]

    @property
    def cached_from(self) -> int:
        """The index from which on all content is in memory."""
        return self.last + 1 - len(self._cache)

    def term_at(self, index: int) -> int:
        """Return the term of an existing entry, or of the base."""
        first, term = self._terms[-1]
        if index >= first:
            return term
        return self._terms[bisect_right(self._terms, index, key=itemgetter(0)) - 1][1]

    def length_at(self, index: int) -> int:
        """Return the size of an entry's content; 0 for the base."""
        return self._lengths[index - self.begin - 1] if index > self.begin else 0

    # --- changes

    def add(self, command: bytes, term: int, place: int) -> None:
        """Append an entry whose content is at `place`, or will be once it is written."""
        self.last += 1
        if term != self._terms[-1][1]:
            self._terms.append((self.last, term))
        self._places.append(place)
        self._lengths.append(len(command))
        self._sums.append(zlib.crc32(command))
        self._cache.append(command)
        self._cached_bytes += len(command) + ENTRY_OVERHEAD_BYTES
        if self._keeps(command):
            self.kept.append((command, self.last, term))

    def written(self) -> None:
        """Record that all entries are on the disk, so that the oldest can leave the cache."""
        if self._cached_bytes <= ENTRY_CACHE_BYTES:
            return
        # An eighth at once, so that the list is not shifted for every entry; never the last one.
        least, count = ENTRY_CACHE_BYTES - ENTRY_CACHE_BYTES // 8, 0
        while self._cached_bytes > least and count < len(self._cache) - 1:
            self._cached_bytes -= len(self._cache[count]) + ENTRY_OVERHEAD_BYTES
            count += 1
        del self._cache[:count]

    def cut_from(self, index: int) -> None:
        """Drop the entries from `index` on; it is above `begin`."""
        if index > self.last:
            return
        slot = index - self.begin - 1
        for column in (self._places, self._lengths, self._sums):
            del column[slot:]
        stays = max(0, len(self._cache) - (self.last - index + 1))
        dropped = self._cache[stays:]
        del self._cache[stays:]
        self._cached_bytes -= sum(map(len, dropped)) + len(dropped) * ENTRY_OVERHEAD_BYTES
        self.last = index - 1
        while self._terms[-1][0] > self.last:
            self._terms.pop()
        while self.kept and self.kept[-1][1] > self.last:
            self.kept.pop()

    def forget_before(self, index: int) -> None:
        """Make the existing entry `index` the base, without its content."""
        terms = [run for run in self._terms if run[0] > index]
        self._terms = [(index, self.term_at(index)), *terms]
        for column in (self._places, self._lengths, self._sums):
            del column[: index - self.begin]
        self.begin = index
        gone = max(0, len(self._cache) - (self.last - index))
        self._cached_bytes -= sum(map(len, self._cache[:gone])) + gone * ENTRY_OVERHEAD_BYTES
        del self._cache[:gone]
        self.kept = [entry for entry in self.kept if entry[1] > index]
        self.reader.close()

    # --- reading

    def read(self, first: int, upto: int, bytes_max: int) -> list[Entry]:
        """Return the entries `first` to `upto`, or fewer: the entry that reaches `bytes_max` is the
        last. There is at least one if `first` is not above `upto`.

        Raises:
            LogDamaged: an entry on the disk differs from what was written.
        """
        end, size = first, 0
        while end <= upto and size < bytes_max:
            size += self.length_at(end) + ENTRY_OVERHEAD_BYTES
            end += 1
        edge = self.cached_from
        commands = self._from_disk(first, min(end, edge))
        if end > edge:
            commands += self._cache[max(first, edge) - edge : end - edge]
        return [(command, at, self.term_at(at)) for at, command in enumerate(commands, first)]

    def _from_disk(self, first: int, end: int) -> list[bytes]:
        commands: list[bytes] = []
        slot, stop = first - self.begin - 1, end - self.begin - 1
        places, lengths = self._places, self._lengths
        while slot < stop:
            after = slot + 1  # the end of the entries that one read returns
            while after < stop:
                gap = places[after] - places[after - 1] - lengths[after - 1]
                if not 0 <= gap <= _GAP_BYTES_MAX:
                    break
                after += 1
            start = places[slot]
            content = self.reader.read(start, places[after - 1] + lengths[after - 1] - start)
            for at in range(slot, after):
                offset = places[at] - start
                command = content[offset : offset + lengths[at]]
                if zlib.crc32(command) != self._sums[at]:
                    place, index = places[at], self.begin + 1 + at
                    byte = self.reader.offset(place)
                    what = f"entry {index} at byte {byte} is not what was written there"
                    raise LogDamaged(self.reader.describe(place), what)
                commands.append(command)
            slot = after
        return commands
