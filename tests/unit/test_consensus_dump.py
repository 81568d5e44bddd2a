"""A dump's file: proven by its digest, never whole in memory, and nothing is left of a bad one."""

from __future__ import annotations

import errno
import zlib
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

import consensus.engine.storage.dump as dump_module
from consensus.engine.storage.dump import Dump, check_dump, read_pieces, write_dump
from consensus.errors import LogDamaged, UnknownFormat
from consensus.leadership import Position
from consensus.limits import DUMP_PIECE_BYTES, DUMP_SYNC_BYTES, ROOM_BYTES_MIN
from tests.fakes.memory_disk import MemoryDisk

AT = Position(3, 90)


@pytest.fixture
def disk() -> MemoryDisk:
    return MemoryDisk("r1")


def written(disk: MemoryDisk, *pieces: bytes) -> Dump:
    return write_dump(disk, "dump", AT, b"members", pieces)


def state(disk: MemoryDisk, dump: Dump) -> bytes:
    return b"".join(read_pieces(disk, dump))


def test_a_dump_comes_back(disk: MemoryDisk) -> None:
    dump = written(disk, b"state ", b"", b"in pieces")
    assert (dump.position, dump.members, dump.size) == (AT, b"members", 15)
    assert check_dump(disk, "dump") == dump
    assert state(disk, dump) == b"state in pieces"


def test_an_empty_state_is_a_state(disk: MemoryDisk) -> None:
    dump = written(disk)
    assert check_dump(disk, "dump") == dump
    assert state(disk, dump) == b""


@given(pieces=st.lists(st.binary(max_size=40)), members=st.binary(max_size=20))
def test_however_a_state_is_cut_the_file_is_the_same(pieces: list[bytes], members: bytes) -> None:
    disk, other = MemoryDisk(), MemoryDisk()
    dump = write_dump(disk, "dump", AT, members, pieces)
    write_dump(other, "dump", AT, members, [b"".join(pieces)])
    assert disk.content("dump") == other.content("dump")
    assert state(disk, dump) == b"".join(pieces)
    assert check_dump(other, "dump") == dump


def test_a_great_state_passes_in_pieces_and_is_waited_for_now_and_then(disk: MemoryDisk) -> None:
    longest = 0
    original = dump_module._Writer.flush

    def flush(writer: dump_module._Writer) -> None:
        nonlocal longest
        longest = max(longest, len(writer._buffer))
        original(writer)

    count = 3 * DUMP_SYNC_BYTES // 1000

    def many() -> Iterator[bytes]:
        for _ in range(count):
            yield b"x" * 1000

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(dump_module._Writer, "flush", flush)
        dump = write_dump(disk, "dump", AT, b"", many())
    assert longest <= 2 * DUMP_PIECE_BYTES
    assert disk.syncs >= 3
    lengths = [len(piece) for piece in read_pieces(disk, dump)]
    assert sum(lengths) == count * 1000
    assert max(lengths) == DUMP_PIECE_BYTES


def test_any_flipped_bit_and_any_missing_end_is_noticed(disk: MemoryDisk) -> None:
    written(disk, b"state")
    content = disk.content("dump")
    for place in range(len(content)):
        for bit in range(8):
            changed = bytearray(content)
            changed[place] ^= 1 << bit
            disk.put("dump", bytes(changed))
            with pytest.raises(LogDamaged):
                check_dump(disk, "dump")
        disk.put("dump", content[:place])
        with pytest.raises(LogDamaged):
            check_dump(disk, "dump")
    disk.put("dump", content + b"\0")
    with pytest.raises(LogDamaged):
        check_dump(disk, "dump")


def test_a_dump_of_a_newer_format_is_told_from_a_damaged_one(disk: MemoryDisk) -> None:
    written(disk, b"state")
    content = bytearray(disk.content("dump"))
    content[8] = 2
    length = 16 + int.from_bytes(content[12:16], "little")
    content[length : length + 4] = zlib.crc32(content[:length]).to_bytes(4, "little")
    disk.put("dump", bytes(content))
    with pytest.raises(UnknownFormat, match="dump: format 2 is newer"):
        check_dump(disk, "dump")


def test_a_state_over_the_limit_is_refused_and_leaves_nothing(
    disk: MemoryDisk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dump_module, "DUMP_BYTES_MAX", 10)
    assert written(disk, b"x" * 10).size == 10
    with pytest.raises(OSError, match="over 10 bytes") as caught:
        write_dump(disk, "dump.taken", AT, b"", [b"x" * 10, b"x"])
    assert caught.value.errno == errno.EFBIG
    assert disk.names() == ["dump"]


def test_the_last_room_is_the_journals(disk: MemoryDisk) -> None:
    disk.room = ROOM_BYTES_MIN + 2 * DUMP_PIECE_BYTES
    with pytest.raises(OSError, match="room") as caught:
        written(disk, *[b"x" * DUMP_PIECE_BYTES] * 9)
    assert caught.value.errno == errno.ENOSPC
    assert disk.names() == []
    assert disk.room_bytes() == ROOM_BYTES_MIN + 2 * DUMP_PIECE_BYTES


def test_a_state_that_fails_on_its_way_leaves_nothing(disk: MemoryDisk) -> None:
    def broken() -> Iterator[bytes]:
        yield b"one"
        raise ValueError("no more")

    with pytest.raises(ValueError, match="no more"):
        write_dump(disk, "dump.taken", AT, b"", broken())
    disk.fail_sync()
    with pytest.raises(OSError, match="injected"):
        write_dump(disk, "dump.taken", AT, b"", [b"state"])
    assert disk.names() == []


def test_who_reads_a_dump_keeps_it_when_a_newer_one_takes_its_name(disk: MemoryDisk) -> None:
    dump = written(disk, b"old")
    pieces = read_pieces(disk, dump)
    write_dump(disk, "dump.taken", Position(3, 95), b"", [b"new"])
    disk.rename("dump.taken", "dump")
    assert b"".join(pieces) == b"old"
    with pytest.raises(LogDamaged, match="another dump"):
        read_pieces(disk, dump)
