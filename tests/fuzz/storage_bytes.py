"""What any bytes in the place of a segment, a dump or a chunk may do: nothing but be refused.

The first byte chooses a door. Behind some of them checksums are made right, so that what is behind
the checksum is reached too.
"""

from __future__ import annotations

import hashlib
import struct
import zlib
from contextlib import suppress

from consensus.engine.storage.dump import FORMAT as DUMP_FORMAT
from consensus.engine.storage.dump import MAGIC as DUMP_MAGIC
from consensus.engine.storage.dump import Dump, check_dump, read_pieces
from consensus.engine.storage.incoming import Incoming, Target
from consensus.engine.storage.journal import FileJournal
from consensus.engine.storage.segments import (
    FORMAT,
    MAGIC,
    Header,
    Identity,
    Segment,
    segment_name,
    write_segment,
)
from consensus.errors import LogDamaged, UnknownFormat
from tests.fakes.memory_disk import MemoryDisk
from tests.unit.storage_rig import at_once, whole

_IDENTITY = Identity("c", "r1", 5, joins=False)
_INDEX_MAX = 2**62


def feed(content: bytes) -> None:
    """Give `content` to one of the doors."""
    if content:
        DOORS[content[0] % len(DOORS)](content[1:])


def segment(content: bytes) -> None:
    """As the file of a segment."""
    disk = MemoryDisk()
    disk.put(segment_name(1), content)
    go_on(disk)


def sealed_header(content: bytes) -> None:
    """As a segment's header."""
    disk = MemoryDisk()
    lead = struct.pack("<8sII", MAGIC, FORMAT, len(content)) + content
    disk.put(segment_name(1), lead + zlib.crc32(lead).to_bytes(4, "little"))
    go_on(disk)


def sealed_frames(content: bytes) -> None:
    """As the records of frames in one segment or two, each behind a length."""
    disk = MemoryDisk()
    file = FileJournal.create(disk, _IDENTITY)._tail
    number, sequence = 1, 1
    while content:
        length, content = content[0] % 128, content[1:]
        records, content = content[:length], content[length:]
        if length % 7 == 3:
            number += 1
            file = write_segment(disk, Header(number, sequence, _IDENTITY), records)
        else:
            Segment(file.file, Header(number, 0, _IDENTITY)).append(sequence, records)
        sequence += 1
    go_on(disk)


def torn(content: bytes) -> None:
    """As what stands behind good frames."""
    disk = MemoryDisk()
    journal = FileJournal.create(disk, _IDENTITY)
    for index in range(2, 5):
        journal.add(b"entry", index, 1)
        journal.sync()
    name = segment_name(1)
    disk.put(name, disk.content(name) + content)
    with suppress(LogDamaged, UnknownFormat):
        again = FileJournal.open(disk, "r1", "c")
        if whole(again) != whole(journal):
            raise RuntimeError("an entry was invented")


def go_on(disk: MemoryDisk) -> None:
    """Open the journal on `disk`; if it can be, writing goes on and all of it comes back."""
    with suppress(LogDamaged, UnknownFormat):
        journal = FileJournal.open(disk, "r1", "c")
        if journal[-1][1] > _INDEX_MAX or journal[-1][2] > _INDEX_MAX:
            return
        journal.add(b"more", journal[-1][1] + 1, journal[-1][2])
        journal.sync()
        if whole(FileJournal.open(disk, "r1", "c")) != whole(journal):
            raise RuntimeError("what was written does not come back")


def dump(content: bytes) -> None:
    """As the file of a dump."""
    disk = MemoryDisk()
    disk.put("dump", content)
    with suppress(LogDamaged, UnknownFormat):
        list(read_pieces(disk, check_dump(disk, "dump")))


def sealed_dump(content: bytes) -> None:
    """As header and state of a dump whose checksums and digest are right."""
    length = content[0] if content else 0
    header, state = content[1 : 1 + length], content[1 + length :]
    lead = struct.pack("<8sII", DUMP_MAGIC, DUMP_FORMAT, len(header)) + header
    proven = lead + zlib.crc32(lead).to_bytes(4, "little") + state
    end = struct.pack("<Q32s", len(state), hashlib.sha256(proven).digest())
    disk = MemoryDisk()
    disk.put("dump", proven + end + zlib.crc32(end).to_bytes(4, "little"))
    with suppress(LogDamaged, UnknownFormat):
        found = check_dump(disk, "dump")
        if b"".join(read_pieces(disk, found)) != state:
            raise RuntimeError("another state came back")


def chunks(content: bytes) -> None:
    """As pieces of a dump at any place, after what an earlier life may have left."""
    disk = MemoryDisk()
    if content[:1] > b"\x80":
        disk.put("dump.incoming", content[1:40])
        disk.put("dump.marks", content[40:140])
    whole: list[Dump] = []
    incoming = Incoming(disk, at_once)
    for start in range(0, len(content), 16):
        part = content[start : start + 16]
        if len(part) == 16:
            term, index, size, offset = struct.unpack_from("<BBHH", part)
            digest = bytes([term]) * 32
            wanted = incoming.take(
                Target(term, index, size, digest), offset, part[6:], whole.append
            )
            if not 0 <= wanted <= size:
                raise RuntimeError("more is wanted than there is")
    if whole:
        raise RuntimeError("a dump was taken that nobody sent")


DOORS = (segment, sealed_header, sealed_frames, torn, dump, sealed_dump, chunks)
