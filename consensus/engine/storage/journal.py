"""The journal: entries, term and vote on disk, in frames that are whole or not there.

Layout: a header `magic 8 | salt 8 | id length u8 | id | crc32 u32`, then frames
`mark 4 | length u32 | sequence u64 | crc32 u32 | records`. One `sync` writes one frame and syncs
it. So a bad frame at the end was never acknowledged and is cut off; a bad frame with a good one
behind it had been synced, which is damage: the replica does not start (a silent loss of
acknowledged entries could elect a leader without them). The checksum covers salt and sequence,
so that an entry that contains the bytes of a frame is not taken for one.

Records: `E index u64 term u64 length u32 command`, `T index u64` (cut from there), `V term u64
length u32 vote` and `B index u64 term u64` (forget everything; the log starts behind this point).
A compaction writes a new file and renames it: at no moment is an entry in neither of them.
"""

from __future__ import annotations

import os
import struct
import zlib
from pathlib import Path
from typing import Final, overload

from pysyncobj.journal import Journal

from consensus.engine.storage.disk import replace, write_all
from consensus.errors import LogDamaged, invariant

Entry = tuple[bytes, int, int]
"""Command, index, term: the engine's order."""

MAGIC: Final = b"RCJOURN1"
MARK: Final = b"\xf5RCf"
BASE_COMMAND: Final = b"\x01"
_FRAME: Final = struct.Struct("<4sIQI")
_ENTRY: Final = struct.Struct("<cQQI")
_CUT: Final = struct.Struct("<cQ")
_VOTE: Final = struct.Struct("<cQI")
_BASE: Final = struct.Struct("<cQQ")


class FileJournal(Journal):
    """A replica's log on disk and in memory; PySyncObj's Journal, owned by one thread.

    `add` and `cut_from` take effect in memory and become durable with the next `sync`; the rest is
    durable on return. Positions in brackets are list positions, as PySyncObj asks.
    """

    def __init__(self, path: Path, replica: str) -> None:
        """Open or make the journal at `path`.

        Raises:
            LogDamaged: it cannot be read back, or belongs to another replica.
        """
        self.path = path
        self.replica = replica
        self.entries: list[Entry] = []
        self.term = 0
        self.vote: str | None = None
        self.size_bytes = 0
        self.syncs = 0
        self._salt = os.urandom(8)
        self._sequence = 0
        self._buffer: list[bytes] = []
        path.with_suffix(".new").unlink(missing_ok=True)
        if path.exists():
            self._descriptor = self._open()
        else:
            self._descriptor = self._create(path.with_suffix(".new"))
            replace(path.with_suffix(".new"), path)

    # --- reading

    def _open(self) -> int:
        content = self.path.read_bytes()
        start = self._read_header(content)
        end = self._read_frames(content, start)
        descriptor = os.open(self.path, os.O_RDWR | os.O_CLOEXEC)
        if end < len(content):
            os.ftruncate(descriptor, end)
            os.fsync(descriptor)
        os.lseek(descriptor, end, os.SEEK_SET)
        self.size_bytes = end
        return descriptor

    def _read_header(self, content: bytes) -> int:
        if len(content) < 17 or content[:8] != MAGIC:
            raise LogDamaged(str(self.path), "not a journal of this format")
        end = 17 + content[16]
        if zlib.crc32(content[:end]).to_bytes(4, "little") != content[end : end + 4]:
            raise LogDamaged(str(self.path), "header fails its checksum")
        owner = content[17:end].decode(errors="replace")
        if owner != self.replica:
            raise LogDamaged(str(self.path), f"belongs to replica {owner}, not {self.replica}")
        self._salt = content[8:16]
        return end + 4

    def _read_frames(self, content: bytes, offset: int) -> int:
        view = memoryview(content)
        while offset < len(content):
            frame = self._frame_at(view, offset, self._sequence)
            if frame is None:
                self._check_tail(content, offset)
                return offset
            records, offset = frame
            self._replay(records)
            self._sequence += 1
        return offset

    def _frame_at(
        self, view: memoryview, offset: int, sequence: int | None
    ) -> tuple[memoryview, int] | None:
        if offset + _FRAME.size > len(view):
            return None
        mark, length, number, checksum = _FRAME.unpack_from(view, offset)
        end = offset + _FRAME.size + length
        if mark != MARK or end > len(view) or (sequence is not None and number != sequence):
            return None
        records = view[offset + _FRAME.size : end]
        return (records, end) if self._checksum(number, records) == checksum else None

    def _check_tail(self, content: bytes, bad: int) -> None:
        offset = content.find(MARK, bad + 1)
        while offset != -1:
            if self._frame_at(memoryview(content), offset, None) is not None:
                raise LogDamaged(
                    str(self.path),
                    f"frame at byte {bad} is damaged, with a good one behind it at {offset}",
                )
            offset = content.find(MARK, offset + 1)

    def _replay(self, records: memoryview) -> None:
        offset = 0
        while offset < len(records):
            kind = bytes(records[offset : offset + 1])
            if kind == b"E":
                _, index, term, length = _ENTRY.unpack_from(records, offset)
                offset += _ENTRY.size + length
                self._expect_next(index)
                self.entries.append((bytes(records[offset - length : offset]), index, term))
            elif kind == b"T":
                _, index = _CUT.unpack_from(records, offset)
                offset += _CUT.size
                del self.entries[self._slot(index) :]
            elif kind == b"V":
                _, self.term, length = _VOTE.unpack_from(records, offset)
                offset += _VOTE.size + length
                self.vote = bytes(records[offset - length : offset]).decode() or None
            elif kind == b"B":
                _, index, term = _BASE.unpack_from(records, offset)
                offset += _BASE.size
                self.entries = [(BASE_COMMAND, index, term)]
            else:
                raise LogDamaged(str(self.path), f"unknown record {kind!r}")

    def _expect_next(self, index: int) -> None:
        if self.entries and index != self.entries[-1][1] + 1:
            raise LogDamaged(str(self.path), f"entry {index} follows {self.entries[-1][1]}")

    def _slot(self, index: int) -> int:
        return max(0, index - self.entries[0][1]) if self.entries else 0

    # --- writing

    def _checksum(self, sequence: int, records: bytes | memoryview) -> int:
        return zlib.crc32(records, zlib.crc32(self._salt + sequence.to_bytes(8, "little")))

    def _create(self, path: Path) -> int:
        name = self.replica.encode()
        header = MAGIC + self._salt + bytes([len(name)]) + name
        content = header + zlib.crc32(header).to_bytes(4, "little")
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        write_all(descriptor, content)
        os.fsync(descriptor)
        self.size_bytes = len(content)
        self._sequence = 0
        return descriptor

    def sync(self) -> None:
        """Make everything that was written durable. An OSError here must stop the replica: after
        a failed fsync nobody knows what is on the disk."""
        if not self._buffer:
            return
        records = b"".join(self._buffer)
        self._buffer = []
        checksum = self._checksum(self._sequence, records)
        frame = _FRAME.pack(MARK, len(records), self._sequence, checksum) + records
        write_all(self._descriptor, frame)
        os.fdatasync(self._descriptor)
        self._sequence += 1
        self.size_bytes += len(frame)
        self.syncs += 1

    def add(self, command: bytes, index: int, term: int) -> None:
        """Append one entry; its index follows the last one's."""
        follows = not self.entries or index == self.entries[-1][1] + 1
        invariant(follows, f"entry {index} does not follow the journal's last")
        self.entries.append((command, index, term))
        self._buffer.append(_ENTRY.pack(b"E", index, term, len(command)))
        self._buffer.append(command)

    def cut_from(self, index: int) -> None:
        """Forget the entries from `index` on: another leader's log has something else there."""
        invariant(index > self.entries[0][1], "a cut would empty the journal")
        del self.entries[self._slot(index) :]
        self._buffer.append(_CUT.pack(b"T", index))

    def set_base(self, index: int, term: int) -> None:
        """Forget everything: a dump holds what is up to (index, term), entries follow."""
        self.entries = [(BASE_COMMAND, index, term)]
        self._buffer.append(_BASE.pack(b"B", index, term))
        self.sync()

    def forget_before(self, index: int) -> None:
        """Keep the entries from `index` on, in a new file; what was there before is in a dump."""
        keep = self.entries[self._slot(index) :]
        invariant(bool(keep), "a compaction would empty the journal")
        self.sync()
        _, base_index, base_term = keep[0]
        self.entries = [(BASE_COMMAND, base_index, base_term), *keep[1:]]
        self._buffer = [self._vote_record(), _BASE.pack(b"B", base_index, base_term)]
        for command, entry_index, term in keep[1:]:
            self._buffer += [_ENTRY.pack(b"E", entry_index, term, len(command)), command]
        temporary = self.path.with_suffix(".new")
        old = self._descriptor
        self._descriptor = self._create(temporary)
        self.sync()
        replace(temporary, self.path)
        os.close(old)

    def _vote_record(self) -> bytes:
        vote = (self.vote or "").encode()
        return _VOTE.pack(b"V", self.term, len(vote)) + vote

    # --- what PySyncObj calls, by its names

    def setCurrentTerm(self, term: int, vote: str | None) -> None:  # noqa: N802
        """Keep term and vote; durable on return, so a message may follow."""
        self.term, self.vote = term, vote
        self._buffer.append(self._vote_record())
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
        self.sync()
        os.close(self._descriptor)

    @overload
    def __getitem__(self, slot: int) -> Entry: ...
    @overload
    def __getitem__(self, slot: slice) -> list[Entry]: ...
    def __getitem__(self, slot: int | slice) -> Entry | list[Entry]:
        return self.entries[slot]

    def __len__(self) -> int:
        return len(self.entries)
